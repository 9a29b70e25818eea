from __future__ import annotations

from pdctl.layout.hosts import Seat, Site, Wish, assign, local, pods
from pdctl.layout.shape import Shape

TP2 = Shape(tp=2, gpus_per_host=4)


def test_first_fit() -> None:
    seats = assign([Wish("prefill", "p", TP2)] * 3)
    assert seats == (Seat(("p-0",), 0, 0, 0), Seat(("p-0",), 2, 1, 1), Seat(("p-1",), 0, 0, 0))


def test_roles_share_a_pool() -> None:
    seats = assign([Wish("prefill", "p", TP2), Wish("decode", "p", TP2)])
    assert seats[1] == Seat(("p-0",), 2, 1, 0)


def test_an_instance_of_several_nodes_takes_hosts_of_its_own() -> None:
    small, wide = Shape(tp=2), Shape(tp=16)
    seats = assign([Wish("prefill", "p", small), Wish("decode", "p", wide), Wish("decode", "p", small)])
    assert [seat.hosts for seat in seats] == [("p-0",), ("p-1", "p-2"), ("p-0",)]


def test_spread_keeps_a_role_apart() -> None:
    seats = assign([Wish("prefill", "p", TP2, spread=True)] * 2 + [Wish("decode", "p", TP2, spread=True)])
    assert [seat.hosts for seat in seats] == [("p-0",), ("p-1",), ("p-0",)]


def test_everything_local() -> None:
    seats = local([Wish("prefill", "a", Shape()), Wish("prefill", "a", Shape()), Wish("decode", "b", Shape(tp=2))])
    assert seats == (
        Seat(("localhost",), 0, 0, 0),
        Seat(("localhost",), 1, 1, 1),
        Seat(("localhost",), 2, 2, 0),
    )


def test_no_gpu_is_given_twice() -> None:
    shapes = [Shape(tp=1), Shape(tp=3), Shape(tp=2, pp=2), Shape(tp=1, replicas=3), Shape(tp=4)]
    seats = assign([Wish("prefill", "p", shape) for shape in shapes for _ in range(3)])
    taken: set[tuple[str, int]] = set()
    for seat, shape in zip(seats, [shape for shape in shapes for _ in range(3)], strict=True):
        for gpu in range(seat.base_gpu_id, seat.base_gpu_id + shape.gpus):
            assert gpu < 8
            assert (seat.hosts[0], gpu) not in taken
            taken.add((seat.hosts[0], gpu))


def test_hosts_at_one_address_count_their_ports_together() -> None:
    wishes = [Wish("prefill", "cpu", Shape(gpus_per_host=1))] * 2 + [
        Wish("decode", "cpu", Shape(tp=2, gpus_per_host=1))
    ]
    sites = {f"cpu-{number}": Site(f"n{number}", "127.0.0.1") for number in range(4)}
    assert assign(wishes, sites) == (
        Seat(("cpu-0",), 0, 0, 0),
        Seat(("cpu-1",), 0, 1, 1),
        Seat(("cpu-2", "cpu-3"), 0, 2, 0),
    )
    apart = {name: Site(site.name, name) for name, site in sites.items()}
    assert [seat.before for seat in assign(wishes, apart)] == [0, 0, 0]


def test_in_kubernetes_every_node_is_a_pod_of_its_own() -> None:
    seats = pods([Wish("prefill", "qwen", TP2)] * 2 + [Wish("decode", "qwen", Shape(tp=16))])
    assert seats == (
        Seat(("qwen-prefill-0",), 0, 0, 0),
        Seat(("qwen-prefill-1",), 0, 0, 0),
        Seat(("qwen-decode-0", "qwen-decode-0-1"), 0, 0, 0),
    )
