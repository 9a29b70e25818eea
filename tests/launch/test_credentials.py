from __future__ import annotations

import dataclasses
import os
import stat
from typing import TYPE_CHECKING

import pytest

from pdctl.deployment_secret import ENV
from pdctl.launch import credentials, deployment_plan
from pdctl.launch.run_opening import open_run
from pdctl.topology import resolve
from tests.launch.conftest import QUICK, deploy

if TYPE_CHECKING:
    from pathlib import Path

    from pdctl.launch.deployment import Deployment

OWN = ("python", "-m", "pdctl.engine")
BEHIND = ("numactl", "--localalloc", "python", "-m", "pdctl.engine")
SGLANG = ("python", "-m", "sglang.launch_server")
ROUTER = ("python", "-m", "pdctl.router")
GATEWAY = ("python", "-m", "sglang_router.launch_router")


def deployed(prefill: tuple[str, ...], decode: tuple[str, ...], router: tuple[str, ...]) -> Deployment:
    """A deployment whose processes have these commands."""
    base = deploy()
    assert base.router is not None
    commands = {"prefill": prefill, "decode": decode}
    roles = tuple(dataclasses.replace(spec, argv=commands[spec.role.value]) for spec in base.roles)
    return dataclasses.replace(base, roles=roles, router=dataclasses.replace(base.router, argv=router))


@pytest.mark.parametrize(
    ("deployment", "names", "why"),
    [
        (deployed(OWN, OWN, ROUTER), {"prefill", "decode", "router"}, ""),
        (deployed(BEHIND, OWN, ROUTER), {"prefill", "decode", "router"}, ""),
        (deployed(OWN, OWN, GATEWAY), {"prefill", "decode"}, "the router does not use it"),
        (deployed(SGLANG, SGLANG, ROUTER), {"router"}, "engines talk without it"),
        (deployed(OWN, SGLANG, ROUTER), {"router"}, "decode-0"),
        (deployed(SGLANG, SGLANG, GATEWAY), set(), "engines talk without it"),
    ],
)
def test_who_holds_the_secret(deployment: Deployment, names: set[str], why: str, tmp_path: Path) -> None:
    found = credentials.holders(deployment)
    assert {name.split("-")[0] for name in found.names} == names
    assert why in found.why_not
    credentials.mint(tmp_path, deployment, True)
    assert (tmp_path / credentials.FILE).exists() == bool(names)
    for spec in credentials.equipped(deployment.specs, deployment, tmp_path):
        expected = str(tmp_path / credentials.FILE) if spec.name in found.names else ""
        assert dict(spec.env)[ENV] == expected


def test_the_secret_is_in_its_file_only(tmp_path: Path) -> None:
    opened = open_run(
        tmp_path, "blue", deployed(OWN, OWN, ROUTER), QUICK, check=lambda _: (), argv=("pdctl", "launch", "2p1d")
    )
    os.close(opened.lock)
    file = opened.directory.path / credentials.FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    secret = credentials.read(opened.directory.path)
    assert secret is not None
    others = [path for path in opened.directory.path.rglob("*") if path.is_file() and path != file]
    assert others
    assert not any(secret.key in path.read_bytes() for path in others)
    assert secret.key.decode() not in repr(opened.run)


def test_each_run_has_a_new_secret_and_none_when_it_is_off(tmp_path: Path) -> None:
    deployment = deployed(OWN, OWN, ROUTER)
    keys = []
    for wanted in (True, True, False):
        credentials.mint(tmp_path, deployment, wanted)
        secret = credentials.read(tmp_path)
        keys.append(secret and secret.key)
    assert keys[0]
    assert keys[1]
    assert keys[0] != keys[1]
    assert keys[2] is None
    assert "security.deployment-secret is false" in credentials.decision(deployment, tmp_path)
    assert all(dict(spec.env)[ENV] == "" for spec in credentials.equipped(deployment.specs, deployment, tmp_path))


def test_the_topology_turns_it_off() -> None:
    topology, _ = resolve.resolve([resolve.topology_file("2p1d")], ["security.deployment-secret=false"])
    assert not topology.security.deployment_secret
    assert resolve.resolve([resolve.topology_file("2p1d")], [])[0].security.deployment_secret


def test_keys_leave_the_command_line_of_pdctls_own_processes_only(tmp_path: Path) -> None:
    ours = deployed((*OWN, "--api-key", "k1", "--port", "1"), OWN, (*ROUTER, "--admin-api-key=k2"))
    assert credentials.api_key(ours) == "k1"
    for spec in credentials.equipped(ours.specs, ours, tmp_path):
        assert "k1" not in spec.argv
        assert "--admin-api-key=k2" not in spec.argv
        env = dict(spec.env)
        expected = ("k1", None) if spec.role.value == "prefill" else (None, "k2" if spec.name == "router" else None)
        assert (env.get("PDCTL_API_KEY"), env.get("PDCTL_ADMIN_API_KEY")) == expected
    theirs = deployed((*SGLANG, "--api-key", "k1"), SGLANG, GATEWAY)
    assert any("k1" in spec.argv for spec in credentials.equipped(theirs.specs, theirs, tmp_path))
    assert credentials.api_key(theirs) == "k1"


def test_the_key_of_a_run_is_read_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PDCTL_API_KEY", raising=False)
    (tmp_path / "key").write_text("secret-key\n")
    topology, _ = resolve.resolve([resolve.topology_file("2p1d")], [f"security.api-key-file={tmp_path / 'key'}"])
    deployment = deployment_plan.deployment(topology, deployment_plan.plan_here(topology))
    for spec in deployment.specs:
        at = spec.argv.index("--api-key-file")
        assert spec.argv[at + 1] == str(tmp_path / "key")
    assert credentials.api_key(deployment) == "secret-key"
