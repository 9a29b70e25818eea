"""Everything that would keep a deployment from starting is found, and told at once with its fix."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdctl import program
from pdctl.errors import LaunchError, MissingExtraError
from pdctl.fleet import listeners
from pdctl.launch import installed_parts, preflight, procfs
from pdctl.launch.deployment import Deployment
from pdctl.launch.runtime import Obstacle
from tests.cli.verb import within
from tests.launch.conftest import deploy, eventually


@pytest.fixture
def squatter() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def move(deployment: Deployment, name: str, port: int) -> Deployment:
    """The deployment with one process listening on `port`."""

    def moved(spec):
        if spec.name != name:
            return spec
        first = dataclasses.replace(spec.ports[0], port=port)
        return dataclasses.replace(spec, port=port, ports=(first, *spec.ports[1:]))

    return dataclasses.replace(
        deployment,
        roles=tuple(map(moved, deployment.roles)),
        router=moved(deployment.router) if deployment.router else None,
    )


def test_nothing_to_say_about_a_deployment_that_can_start() -> None:
    assert preflight.check(deploy()) == ()


def test_a_taken_port_names_its_holder_and_a_free_place(squatter: socket.socket) -> None:
    port = squatter.getsockname()[1]
    (found,) = preflight.check(move(deploy(), "router", port))
    assert found.code == "port-taken"
    if procfs.LINUX:
        assert found.message.startswith(f"port {port} (router, http) is taken by pid {os.getpid()} (")
    key, _, free = found.fix.removeprefix("--set ").partition("=")
    assert key == "router.port"
    assert listeners.is_free(int(free), "127.0.0.1")
    assert int(free) > port


def test_the_fix_moves_the_whole_block(squatter: socket.socket) -> None:
    port = squatter.getsockname()[1]
    base = preflight.free_base(port, [port, port + 1])
    assert base is not None
    assert (base - port) % 100 == 0
    assert preflight.free_base(65500, [65500, 65501]) is None


def test_the_fix_takes_no_other_port_of_the_deployment(squatter: socket.socket) -> None:
    port = squatter.getsockname()[1]
    first = preflight.free_base(port, [port])
    assert first is not None
    deployment = move(move(deploy(), "router", port), "decode-0", first)
    (found,) = preflight.check(deployment)
    free = int(found.fix.removeprefix("--set router.port="))
    assert free not in (port, first)
    assert free == preflight.free_base(port, [port], avoid=[first])


@pytest.mark.skipif(not procfs.LINUX, reason="reads /proc/net")
def test_a_port_that_an_outgoing_connection_has_is_not_called_another_users() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        port = client.getsockname()[1]
        deployment = move(deploy(), "router", port)
        (found,) = preflight.check(deployment)
        assert found.message == f"port {port} (router, http) is in use by an open connection"
        client.close()  # the side that closes first keeps the port in TIME_WAIT
        assert accepted.recv(1) == b""
        accepted.close()
        waits = f"port {port} (router, http) was used a moment ago (TIME_WAIT): it is free in up to 60 s"
        eventually(lambda: [one.message for one in preflight.check(deployment)] == [waits], waits)


def test_all_problems_at_once(squatter: socket.socket, tmp_path: Path) -> None:
    deployment = move(deploy(), "router", squatter.getsockname()[1])
    bad = dataclasses.replace(deployment.roles[-1], argv=("no-such-engine", "--port", "1"))
    deployment = dataclasses.replace(
        deployment, roles=(*deployment.roles[:-1], bad), checkpoint=str(tmp_path / "nowhere")
    )
    found = preflight.check(deployment)
    assert [obstacle.code for obstacle in found] == ["command-missing", "checkpoint-unreadable", "port-taken"]
    error = preflight.refuse("blue", found)
    assert isinstance(error, LaunchError)
    lines = error.message.splitlines()
    assert lines[0] == "3 problems keep `blue` from starting:"
    assert lines[1] == "  1. decode-0: there is no command `no-such-engine`"
    assert lines[2].startswith("     fix: ")


def test_a_command_that_may_not_be_run_is_not_said_to_be_missing(tmp_path: Path) -> None:
    engine = tmp_path / "engine"
    engine.touch(mode=0o644)
    deployment = dataclasses.replace(
        deploy(), roles=(dataclasses.replace(deploy().roles[-1], argv=(str(engine),)),), router=None
    )
    (found,) = preflight.not_installed(deployment)
    assert found.message == f"decode-0: `{engine}` is not executable for this user"
    assert found.fix.startswith(f"chmod +x {engine}, or set ")


def test_a_missing_extra_is_said_with_the_line_that_installs_it() -> None:
    obstacle = Obstacle("extra-missing", "the engine is not installed here: torch missing", "pip install torch", True)
    error = preflight.refuse("blue", [obstacle])
    assert isinstance(error, MissingExtraError)
    assert error.fix == "pip install torch"


def test_a_dry_run_says_what_is_not_installed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    complete = within("launch", "1p1d", "--dry-run")
    assert (complete.returncode, complete.stderr) == (0, "")
    monkeypatch.setattr(installed_parts, "ENGINE_PARTS", ("json", "no_such_module"))
    for form in ("text", "json"):
        lacking = within("launch", "1p1d", "--dry-run", "-o", form)
        assert lacking.returncode == 0
        assert "the engine is not installed here: no_such_module missing\n  fix: " in lacking.stderr
    real = within("launch", "sglang-2p1d-cpu", "--dry-run", "--set", "router.command=[no-such-router]")
    assert "there is no command `no-such-router`" in real.stderr


def test_missing_modules_are_found_without_importing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = dataclasses.replace(deploy().roles[0], argv=("sh", "-m", "pdctl.engine"))
    deployment = dataclasses.replace(deploy(), roles=(engine,), router=None)
    monkeypatch.setattr(installed_parts, "ENGINE_PARTS", ("json", "no_such_module"))
    (found,) = preflight.check(deployment)
    assert found.missing_extra
    assert found.message == "the engine is not installed here: no_such_module missing"
    root = Path(program.__file__).parents[1]
    assert found.fix == f"{sys.executable} -m pip install -e '{root}[engine]'"


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({}, "config.json: No such file or directory"),
        ({"config.json": "{"}, "config.json is not JSON: Expecting property name"),
        ({"config.json": "{}"}, "no *.safetensors file"),
        ({"config.json": "{}", "model.safetensors": "x"}, "model.safetensors is cut off"),
        (
            {
                "config.json": "{}",
                "model-1.safetensors": "",
                "model.safetensors.index.json": json.dumps(
                    {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
                ),
            },
            "1 of 2 shards missing, first model-2.safetensors",
        ),
        ({"config.json": "{}", "model.safetensors.index.json": "{}"}, "model.safetensors.index.json is not an index"),
    ],
)
def test_unreadable_checkpoints(tmp_path: Path, files: dict[str, str], problem: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (found,) = preflight.check(dataclasses.replace(deploy(), checkpoint=str(tmp_path)))
    assert found.message.startswith(f"checkpoint {tmp_path}: {problem}")


def test_a_checkpoint_without_weights_will_do_where_none_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    deployment = dataclasses.replace(deploy(), checkpoint=str(tmp_path))
    assert [found.code for found in preflight.check(deployment)] == ["checkpoint-unreadable"]
    roles = tuple(dataclasses.replace(spec, argv=(*spec.argv, "--load-format", "dummy")) for spec in deployment.roles)
    assert preflight.check(dataclasses.replace(deployment, roles=roles)) == ()
    some = (*roles[:-1], deployment.roles[-1])
    assert preflight.check(dataclasses.replace(deployment, roles=some)), "one that reads weights needs them"


def test_a_router_that_is_not_there_is_the_routers_key() -> None:
    deployment = deploy()
    assert deployment.router is not None
    missing = dataclasses.replace(deployment.router, argv=("no-such-router",))
    (found,) = preflight.check(dataclasses.replace(deployment, router=missing))
    assert found.fix == "install it, or set router.command in the topology"
