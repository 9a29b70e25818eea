"""A Python without SGLang, or with another release of it, is found before anything starts."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from pdctl.launch import installed_parts
from pdctl.launch.deployment import Deployment
from tests.launch.conftest import deploy

ENGINE, ROUTER = "sglang.launch_server", "sglang_router.launch_router"


def installed(folder: Path, version: str | None, router: bool = True) -> None:
    """What pip leaves behind of the two packages; None: sources without it, as in a checkout on the path."""
    (folder / "sglang").mkdir()
    (folder / "sglang" / "__init__.py").touch()
    for name, number in (("sglang", version), ("sglang_router", "0.3.2" if router else None)):
        if number is not None:
            info = folder / f"{name}-{number}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {number}\n"
            )


def sglang(folder: Path, release: str) -> Deployment:
    """The stand-ins' deployment with SGLang's commands, started by this Python with `folder` on its path."""
    found = deploy()
    env = (("PYTHONPATH", str(folder)),)
    assert found.router is not None
    roles = tuple(dataclasses.replace(spec, argv=(sys.executable, "-m", ENGINE), env=env) for spec in found.roles)
    router = dataclasses.replace(found.router, argv=(sys.executable, "-m", ROUTER, "--pd-disaggregation"), env=env)
    return dataclasses.replace(found, engine="sglang", roles=roles, router=router, release=release)


@pytest.mark.parametrize(
    ("version", "release", "fix"),
    [
        ("0.5.8", "0.5.8", None),
        ("0.5.23", "0.5.8", "--set engine.version=0.5.23"),
        ("0.5.8.post1", "0.5.23", "--set engine.version=0.5.8.post1"),
        ("0.5.9", "0.5.8", "--set engine.version=0.5.9"),
        ("0.5.9.post9", "0.5.9", None),  # nobody has read it: the rules of 0.5.9 answer for it
        ("0.6.0", "0.5.23", None),
        ("0.0.0.dev1", "0.5.23", None),  # older than all, or a branch's own number
        (None, "0.5.23", None),
        ("0.5.8", "", None),  # nobody said for which release
    ],
)
def test_the_release_the_commands_were_made_for(
    tmp_path: Path, version: str | None, release: str, fix: str | None
) -> None:
    installed(tmp_path, version)
    found = list(installed_parts.obstacles(sglang(tmp_path, release)))
    assert [(each.code, each.fix) for each in found] == ([("other-release", fix)] if fix else [])


def test_a_router_that_is_missing_is_found_before_the_servers_start(tmp_path: Path) -> None:
    installed(tmp_path, "0.5.8", router=False)
    (found,) = installed_parts.obstacles(sglang(tmp_path, "0.5.8"))
    assert found.code == "package-missing"
    assert found.message == f"router: {sys.executable} has no sglang-router"
    assert found.fix.endswith("or set router.command in the topology")


def test_a_python_that_cannot_be_asked_is_left_alone(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    whole = sglang(tmp_path, "0.5.8")
    roles = tuple(dataclasses.replace(spec, argv=(str(broken), *spec.argv[1:])) for spec in whole.roles)
    assert list(installed_parts.obstacles(dataclasses.replace(whole, roles=roles, router=None))) == []


def test_other_commands_are_not_asked() -> None:
    assert list(installed_parts.obstacles(deploy())) == []
