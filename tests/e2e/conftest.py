"""Real deployments on free loopback ports, started and stopped with pdctl itself."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from pdctl.cli.app import VERBS as NAMED
from tests import plain_http
from tests.forks import run_fork
from tests.ports import free_block

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "pdctl" / "checkpoints" / "tiny"
VERBS = ("pdctl.cli.exits", *(verb.module.partition(":")[0] for verb in NAMED))  # what `pdctl` imports


def wait_for(what: str, check: Any, seconds: float = 90.0) -> Any:
    """The first truthy answer of `check`, or a failure that names what was waited for."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.HTTPError, OSError):
            answer = check()
            if answer:
                return answer
        time.sleep(0.05)
    pytest.fail(f"no {what} within {seconds} s")


@dataclass(frozen=True)
class Deployment:
    name: str
    home: Path
    router: str
    prefills: tuple[str, ...]
    decodes: tuple[str, ...]

    def pdctl(self, *argv: str, check: bool = True, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PDCTL_HOME": str(self.home)}
        done = run_fork("pdctl", argv, env, VERBS, timeout)
        if check and done.returncode:
            raise AssertionError(f"pdctl {' '.join(argv)} → {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def processes(self) -> dict[str, int]:
        """Instance name → pid, as the run directory has it."""
        run = json.loads((self.home / "runs" / self.name / "run.json").read_text())
        return {entry["name"]: entry["pid"] for entry in run["processes"]}

    def all_pages_free(self) -> bool:
        for url in (*self.prefills, *self.decodes):
            answer = plain_http.get(f"{url}/server_info", timeout=10)
            if answer.status_code != 200:
                return False  # still starting
            if any(state["free_pages"] != state["num_pages"] for state in answer.json()["internal_states"]):
                return False
        return True


def start(home: Path, name: str, topology: str, prefills: int, *extra: str) -> Deployment:
    router, http, bootstrap = free_block(1), free_block(prefills + 1), free_block(prefills + 1)
    deployment = Deployment(
        name,
        home,
        f"http://127.0.0.1:{router}",
        tuple(f"http://127.0.0.1:{http + index}" for index in range(prefills)),
        (f"http://127.0.0.1:{http + prefills}",),
    )
    sets = [f"router.port={router}", f"ports.http={http}", f"ports.bootstrap={bootstrap}"]
    deployment.pdctl("launch", topology, "-d", "--name", name, *(w for s in sets for w in ("--set", s)), *extra)
    return deployment


@pytest.fixture(scope="session")
def two_prefills(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """One for all that need no other, which run in one test process (`TOGETHER` of tests/conftest.py)."""
    sets = [f"roles.{role}.args.enable-pd-role-switch=true" for role in ("prefill", "decode")]
    # Some of them kill: the pauses that keep a broken machine from spinning are nobody's subject here.
    sets.append("readiness.restart={policy: instance, max: 10, backoff: 250ms, backoff-max: 250ms}")
    words = (word for one in sets for word in ("--set", one))
    deployment = start(tmp_path_factory.mktemp("state"), "e2e", "topologies/2p1d.yaml", 2, *words)
    yield deployment
    deployment.pdctl("down", "e2e")
