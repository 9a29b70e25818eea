"""An instance that took another role: everybody who reads the run knows, and it is started again as what it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdctl.errors import PdctlError
from pdctl.launch import turned_instances
from pdctl.launch.deployment import Deployment, ServerRole, Spec
from pdctl.launch.turned_instances import TurnedInstance

ROUTER = (
    "python", "-m", "pdctl.router", "--policy", "round_robin", "--prefill", "http://h:1", "91", "--prefill",
    "http://h:2", "92", "--decode", "http://h:3", "--decode", "http://h:4",
)  # fmt: skip


def spec(name: str, role: ServerRole, port: int, **more: object) -> Spec:
    mode, bootstrap = ("--disaggregation-mode", role.value), ("--disaggregation-bootstrap-port", str(90 + port))
    argv = ("engine", "--port", str(port), *mode, *bootstrap)
    prefill = {"bootstrap_port": 90 + port, "ranks": 2} if role is ServerRole.PREFILL else {}
    return Spec(name, role, argv, (), "h", port, (), **{**prefill, **more})  # type: ignore[arg-type]


def deployment() -> Deployment:
    instances = (
        spec("prefill-0", ServerRole.PREFILL, 1), spec("prefill-1", ServerRole.PREFILL, 2),
        spec("decode-0", ServerRole.DECODE, 3), spec("decode-1", ServerRole.DECODE, 4),
    )  # fmt: skip
    return Deployment("d", "embedded", "m", "", instances, Spec("router", ServerRole.ROUTER, ROUTER, (), "h", 9, ()))


def test_what_nobody_switched_is_as_planned(tmp_path: Path) -> None:
    assert turned_instances.read_roles(tmp_path) == {}
    assert turned_instances.with_roles(deployment(), {}) == deployment()


def test_a_prefill_that_is_a_decode(tmp_path: Path) -> None:
    turned_instances.note_role(tmp_path, "prefill-1", TurnedInstance(ServerRole.DECODE, 0))
    now = turned_instances.with_roles(deployment(), turned_instances.read_roles(tmp_path))
    assert now.shape == "1P3D"
    turned = now.roles[1]
    assert (turned.role, turned.bootstrap_port, turned.ranks) == (ServerRole.DECODE, None, 0)
    assert turned.argv[turned.argv.index("--disaggregation-mode") + 1] == "decode"
    assert now.router is not None
    assert now.router.argv[5:] == (
        "--prefill", "http://h:1", "91", "--decode", "http://h:2", "--decode", "http://h:3", "--decode", "http://h:4",
    )  # fmt: skip


def test_a_decode_that_is_a_prefill_and_one_that_came_back(tmp_path: Path) -> None:
    turned_instances.note_role(tmp_path, "decode-0", TurnedInstance(ServerRole.PREFILL, 2))
    turned_instances.note_role(tmp_path, "decode-1", TurnedInstance(ServerRole.PREFILL, 2))
    turned_instances.note_role(tmp_path, "decode-1", TurnedInstance(ServerRole.DECODE, 0))
    now = turned_instances.with_roles(deployment(), turned_instances.read_roles(tmp_path))
    turned = now.roles[2]
    assert (turned.role, turned.bootstrap_port, turned.ranks) == (ServerRole.PREFILL, 93, 2)
    assert now.roles[3] == deployment().roles[3]
    assert now.router is not None
    assert now.router.argv[-5:] == ("--prefill", "http://h:3", "93", "--decode", "http://h:4")


def test_every_node_of_an_instance_goes_with_it(tmp_path: Path) -> None:
    other = spec("decode-0-node1", ServerRole.DECODE, 5, node=1)
    made = Deployment("d", "embedded", "m", "", (*deployment().roles, other), None)
    now = turned_instances.with_roles(made, {"decode-0": TurnedInstance(ServerRole.PREFILL, 4)})
    assert [(one.role, one.ranks) for one in (now.roles[2], now.roles[4])] == [
        (ServerRole.PREFILL, 4),
        (ServerRole.PREFILL, 0),
    ]


def test_all_starts_as_planned_again(tmp_path: Path) -> None:
    turned_instances.note_role(tmp_path, "decode-0", TurnedInstance(ServerRole.PREFILL, 2))
    turned_instances.forget_roles(tmp_path)
    assert turned_instances.read_roles(tmp_path) == {}


@pytest.mark.parametrize("text", ["{", "[]", '{"decode-0": {"role": "both", "ranks": 1}}', '{"decode-0": 3}'])
def test_a_file_that_cannot_be_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "roles.json").write_text(text)
    with pytest.raises(PdctlError, match=r"roles\.json cannot be read"):
        turned_instances.read_roles(tmp_path)
