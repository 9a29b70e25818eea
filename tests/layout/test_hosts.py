from __future__ import annotations

from pdctl.layout.hosts import HostSeat, HostWish, Site, assign, local, pods
from pdctl.layout.shape import Shape

TP2 = Shape(tp=2, gpus_per_host=4)


def test_first_fit() -> None:
    seats = assign([HostWish("prefill", "p", TP2)] * 3)
    assert seats == (HostSeat(("p-0",), 0, 0, 0), HostSeat(("p-0",), 2, 1, 1), HostSeat(("p-1",), 0, 0, 0))


def test_roles_share_a_pool() -> None:
    seats = assign([HostWish("prefill", "p", TP2), HostWish("decode", "p", TP2)])
    assert seats[1] == HostSeat(("p-0",), 2, 1, 0)


def test_an_instance_of_several_nodes_takes_hosts_of_its_own() -> None:
    small, wide = Shape(tp=2), Shape(tp=16)
    seats = assign([HostWish("prefill", "p", small), HostWish("decode", "p", wide), HostWish("decode", "p", small)])
    assert [seat.hosts for seat in seats] == [("p-0",), ("p-1", "p-2"), ("p-0",)]


def test_spread_keeps_a_role_apart() -> None:
    seats = assign([HostWish("prefill", "p", TP2, spread=True)] * 2 + [HostWish("decode", "p", TP2, spread=True)])
    assert [seat.hosts for seat in seats] == [("p-0",), ("p-1",), ("p-0",)]


def test_everything_local() -> None:
    seats = local(
        [HostWish("prefill", "a", Shape()), HostWish("prefill", "a", Shape()), HostWish("decode", "b", Shape(tp=2))]
    )
    assert seats == (
        HostSeat(("localhost",), 0, 0, 0),
        HostSeat(("localhost",), 1, 1, 1),
        HostSeat(("localhost",), 2, 2, 0),
    )


def test_no_gpu_is_given_twice() -> None:
    shapes = [Shape(tp=1), Shape(tp=3), Shape(tp=2, pp=2), Shape(tp=1, replicas=3), Shape(tp=4)]
    seats = assign([HostWish("prefill", "p", shape) for shape in shapes for _ in range(3)])
    taken: set[tuple[str, int]] = set()
    for seat, shape in zip(seats, [shape for shape in shapes for _ in range(3)], strict=True):
        for gpu in range(seat.base_gpu_id, seat.base_gpu_id + shape.gpus):
            assert gpu < 8
            assert (seat.hosts[0], gpu) not in taken
            taken.add((seat.hosts[0], gpu))


def test_hosts_at_one_address_count_their_ports_together() -> None:
    wishes = [HostWish("prefill", "cpu", Shape(gpus_per_host=1))] * 2 + [
        HostWish("decode", "cpu", Shape(tp=2, gpus_per_host=1))
    ]
    sites = {f"cpu-{number}": Site(f"n{number}", "127.0.0.1") for number in range(4)}
    assert assign(wishes, sites) == (
        HostSeat(("cpu-0",), 0, 0, 0),
        HostSeat(("cpu-1",), 0, 1, 1),
        HostSeat(("cpu-2", "cpu-3"), 0, 2, 0),
    )
    apart = {name: Site(site.name, name) for name, site in sites.items()}
    assert [seat.before for seat in assign(wishes, apart)] == [0, 0, 0]


def test_in_kubernetes_every_node_is_a_pod_of_its_own() -> None:
    seats = pods([HostWish("prefill", "qwen", TP2)] * 2 + [HostWish("decode", "qwen", Shape(tp=16))])
    assert seats == (
        HostSeat(("qwen-prefill-0",), 0, 0, 0),
        HostSeat(("qwen-prefill-1",), 0, 0, 0),
        HostSeat(("qwen-decode-0", "qwen-decode-0-1"), 0, 0, 0),
    )
