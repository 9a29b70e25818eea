"""Deployments of stand-in processes, and a supervisor in a process of its own to be interrupted and killed."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pdctl.launch import preflight, procfs, remote
from pdctl.launch.deployment import Deployment, LaunchOptions, ServerPort, ServerRole, Spec
from pdctl.launch.run_opening import Opened, open_run
from pdctl.launch.run_record import Run, State
from tests.ports import free_ports

STANDIN = str(Path(__file__).with_name("standin.py"))
DEADLINE = 90.0  # seconds: generous, the machine may be shared
QUICK = LaunchOptions(timeout=60.0, interval=0.05, backoff=0.05, drain=2.0, grace=8.0)


def eventually(condition: Callable[[], object], what: str, seconds: float = DEADLINE) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.02)


def standin(
    role: ServerRole, index: int, port: int, *faults: str, bootstrap: int | None = None, ranks: int = 1
) -> Spec:
    name = "router" if role is ServerRole.ROUTER else f"{role.value}-{index}"
    own = (ServerPort(port, "http", "router.port" if role is ServerRole.ROUTER else "ports.http"),)
    handshake = ("--disaggregation-bootstrap-port", str(bootstrap), "--tp-size", str(ranks)) if bootstrap else ()
    return Spec(
        name=name,
        role=role,
        argv=(sys.executable, STANDIN, "--disaggregation-mode", role.value, "--port", str(port), *handshake, *faults),
        env=(("STANDIN_NAME", name),),
        host="127.0.0.1",
        port=port,
        ports=(*own, ServerPort(bootstrap, "bootstrap", "ports.bootstrap")) if bootstrap else own,
        bootstrap_port=bootstrap,
        ranks=ranks if bootstrap else 0,
    )


def deploy(prefills: int = 1, faults: dict[str, tuple[str, ...]] | None = None, ranks: int = 1) -> Deployment:
    """`faults`: extra arguments of the stand-ins by name."""
    given = faults or {}
    ports = free_ports(2 * prefills + 2)
    roles = [
        standin(
            ServerRole.PREFILL, i, ports[2 * i], *given.get(f"prefill-{i}", ()), bootstrap=ports[2 * i + 1], ranks=ranks
        )
        for i in range(prefills)
    ]
    roles.append(standin(ServerRole.DECODE, 0, ports[-2], *given.get("decode-0", ())))
    workers = ("--workers", *(spec.url for spec in roles))
    router = standin(ServerRole.ROUTER, 0, ports[-1], *workers, *given.get("router", ()))
    return Deployment("standin", "embedded", "standin", "", tuple(roles), router)


class Supervised:
    """A run under a detached supervisor."""

    def __init__(self, opened: Opened, process: subprocess.Popen[bytes]) -> None:
        self.directory = opened.directory
        self.process = process

    @property
    def run(self) -> Run:
        return self.directory.load()

    def serving(self) -> Run:
        eventually(lambda: self.run.state is not State.STARTING, "the run serves or fails")
        run = self.run
        assert run.state is State.SERVING, run.outcome
        return run

    def ended(self) -> Run:
        self.process.wait(timeout=DEADLINE)
        return self.run

    def kinds(self) -> list[tuple[str, str]]:
        return [(event.kind.value, event.subject) for event in self.run.events]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Supervised]]:
    started: list[Supervised] = []

    def start(
        deployment: Deployment, options: LaunchOptions = QUICK, name: str = "standin", **changes: object
    ) -> Supervised:
        options = dataclasses.replace(options, **changes)  # type: ignore[arg-type]
        opened = open_run(
            tmp_path, name, deployment, options, check=preflight.check, argv=("pdctl", "launch"), detached=True
        )
        supervised = Supervised(opened, remote.detach(opened.directory, opened.lock))
        os.close(opened.lock)
        started.append(supervised)
        return supervised

    yield start
    for supervised in started:
        supervised.process.send_signal(signal.SIGKILL)
        supervised.process.wait()
        sessions = [process.pid for process in supervised.run.processes if process.pid]
        eventually(lambda pids=sessions: not any(procfs.session(pid) for pid in pids), "no process of the run is left")
