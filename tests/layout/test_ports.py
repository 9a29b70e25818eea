"""Ports: sglang's `PortArgs.init_new`, release by release, and the embedded engine's own."""

from __future__ import annotations

from pdctl.engines.versions import NEWEST, SGLANG, V0_5_3_POST2, V0_5_8, V0_5_13, V0_5_18, V0_5_23, Version, spell
from pdctl.layout.ports import BoundPort, Numbers, base_port, dist_port, embedded, occupied
from pdctl.layout.shape import Shape
from tests.cases import for_each

DP8 = Shape(tp=8, dp=8)


def numbers_of(shape: Shape, numbers: Numbers, version: Version) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for port in occupied(shape, numbers, version):
        found.setdefault(port.purpose, []).append(port.port)
    return found


# Three roles on one host without --dist-init-addr or --nccl-port, DP attention of 8 (the worked example).
CHANNELS = ("tokenizer", "detokenizer", "rpc", "metrics", "dp-controller")


@for_each(
    ("http", "bootstrap", "dist", "base", "handshake"),
    [(30000, 8998, 30233, 30234, 30013), (30001, 8999, 30234, 30235, 30014), (30100, None, 30333, 30334, 30113)],
)
@for_each("version", SGLANG, ids=spell)
def test_worked_example(
    version: Version, http: int, bootstrap: int | None, dist: int, base: int, handshake: int
) -> None:
    found = numbers_of(DP8, Numbers(http, bootstrap), version)
    wanted = {"http": [http], "dist-init": [dist]} | {name: [base + at] for at, name in enumerate(CHANNELS)}
    if bootstrap is not None:
        wanted["bootstrap"] = [bootstrap]
    if version < V0_5_3_POST2:
        wanted["scheduler-input"] = list(range(base + 5, base + 13))
    else:
        wanted |= {"load-collector": [base + 5], "worker-handshake": [handshake]}
    assert found == wanted


def test_without_dp_attention_channels_are_files() -> None:
    assert numbers_of(Shape(tp=8), Numbers(30000, 8998), NEWEST) == {"http": [30000], "bootstrap": [8998]}
    assert numbers_of(Shape(tp=8), Numbers(30000, nccl=25000), NEWEST) == {"http": [30000], "nccl": [25000]}


def test_several_nodes_need_the_rendezvous_port_on_the_leader() -> None:
    ports = occupied(Shape(tp=16), Numbers(30000, 8998, dist=20000), NEWEST)
    assert set(ports) == {
        BoundPort(0, 30000, "http", "http"),
        BoundPort(1, 30000, "http", "http"),
        BoundPort(0, 8998, "bootstrap", "http"),
        BoundPort(0, 20000, "dist-init", "tcp"),
    }


def test_an_explicit_rendezvous_port_moves_the_block() -> None:
    found = numbers_of(Shape(tp=16, dp=8), Numbers(30000, dist=20000), NEWEST)
    assert found["tokenizer"] == [20001]
    assert found["worker-handshake"] == [20013]


@for_each(
    ("version", "http", "dist"),
    [(V0_5_8, 65400, 65633), (V0_5_13, 65400, 65167), (V0_5_23, 65302, 65535), (V0_5_23, 65303, 65070)],
)
def test_rendezvous_port_near_the_end(version: Version, http: int, dist: int) -> None:
    assert dist_port(Numbers(http), version) == dist


@for_each(
    ("version", "dist", "base"),
    [
        (V0_5_8, 65530, 65531),
        (V0_5_13, 65530, 65531),
        (V0_5_13, 65531, 65525),
        (V0_5_18, 65529, 65530),
        (V0_5_18, 65530, 65523),
        (V0_5_23, 65530, 65523),
    ],
)
def test_channel_block_near_the_end(version: Version, dist: int, base: int) -> None:
    assert base_port(dist, version) == base


def test_embedded_engine() -> None:
    assert embedded(Numbers(30000, 8998)) == (
        BoundPort(0, 30000, "http", "http"),
        BoundPort(0, 8998, "bootstrap", "http"),
    )
    assert embedded(Numbers(30002)) == (BoundPort(0, 30002, "http", "http"),)
