"""Real Slurm clusters of this machine, and runs of pdctl on them from a login side of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pdctl.launch import procfs
from tests import plain_http
from tests.ports import free_block
from tests.slurm.cluster import Cluster, missing

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0  # seconds: the machine may be shared


class Login:
    """The login side: pdctl's verbs with the cluster's environment and a registry of runs of its own."""

    def __init__(self, cluster: Cluster, home: Path) -> None:
        self.cluster = cluster
        self.home = home
        home.mkdir(exist_ok=True)
        self.shared = home / "shared"
        self._started: list[str] = []

    @property
    def environ(self) -> dict[str, str]:
        own = {"PDCTL_HOME": str(self.home), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        return {**self.cluster.environ, **own}

    def pdctl(self, *argv: str, timeout: float = PATIENCE) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pdctl", *argv],
            env=self.environ,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def launch(self, topology: str, name: str, *sets: str) -> Run:
        """Detached, on ports of this process's own; fails with what pdctl said."""
        base = 20000 + 150 * (os.getpid() % 13)
        words = [
            f"router.port={free_block(1)}", f"ports.http={base}", f"ports.bootstrap={base + 2000}",
            f"ports.dist-init={base + 4000}", f"targets.slurm.shared-dir={self.shared}", *sets,
        ]  # fmt: skip
        self._started.append(name)
        flags = [word for setting in words for word in ("--set", setting)]
        done = self.pdctl("launch", topology, "-t", "slurm", "-d", "--name", name, "--no-doctor", *flags, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        return Run(self, name)

    def close(self) -> None:
        for name in self._started:
            self.pdctl("down", name, "--force", "--timeout", "20s")


class Run:
    def __init__(self, login: Login, name: str) -> None:
        self._login = login
        self.name = name
        self.directory = login.home / "runs" / name

    @property
    def state(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.directory / "run.json").read_text())
        return value

    @property
    def job(self) -> str:
        return str(self.state["allocation"]["job"])

    @property
    def url(self) -> str:
        router = self.spec("router")
        return f"http://{router['host']}:{router['port']}"

    def process(self, name: str) -> dict[str, Any]:
        return next(each for each in self.state["processes"] if each["name"] == name)

    def spec(self, name: str) -> dict[str, Any]:
        deployment = self.state["deployment"]
        return next(each for each in [*deployment["roles"], deployment["router"]] if each["name"] == name)

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [each for each in self.state["events"] if each["kind"] == kind]

    def ranks(self, name: str) -> list[int]:
        """Scheduler processes of one node of an instance."""
        below = procfs.descendants(self.process(name)["pid"])
        return [pid for pid in below if "pdctl.engine.scheduler" in procfs.command_line(pid)]

    def answer(self, text: str, tokens: int = 8) -> dict[str, Any]:
        body = {"text": text, "sampling_params": {"max_new_tokens": tokens, "temperature": 0}}
        answer = plain_http.post(f"{self.url}/generate", json=body, timeout=60)
        answer.raise_for_status()
        value: dict[str, Any] = answer.json()
        return value

    def kill(self, name: str) -> None:
        os.kill(self.ranks(name)[0], signal.SIGKILL)

    def verb(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return self._login.pdctl(*argv)


def eventually(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Four hosts at one address."""
    why = missing()
    if why:
        pytest.skip(why)
    with Cluster(4) as started:
        yield started


@pytest.fixture
def login(cluster: Cluster, tmp_path: Path) -> Iterator[Login]:
    side = Login(cluster, tmp_path / "login")
    yield side
    side.close()
