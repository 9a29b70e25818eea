"""SIGKILL of each process in turn, under load: clients get an answer or an error, the rest goes on, nothing leaks."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import httpx
import psutil
import pytest

from tests import plain_http
from tests.e2e.conftest import ROOT, Deployment, wait_for
from tests.ports import free_block

CLIENTS = 8
BEFORE, AFTER = 2 * CLIENTS, 10 * CLIENTS  # requests that have ended when a process dies, and from then on
# No client may wait longer than this for an answer or an error, whichever process dies.
DEADLINE = 60.0


async def load(url: str, over: asyncio.Event, outcomes: Counter[str]) -> None:
    """CLIENTS clients, each asking again and again until `over`; outcomes are counted, none may exceed DEADLINE."""
    limits = httpx.Limits(max_connections=CLIENTS)
    async with plain_http.AsyncClient(timeout=httpx.Timeout(DEADLINE), limits=limits) as client:

        async def one(number: int) -> None:
            body = {
                "input_ids": [5 + number % 90] * (20 + 18 * number),
                "sampling_params": {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True},
            }
            while not over.is_set():
                try:
                    answer = await client.post(f"{url}/generate", json=body)
                except httpx.TimeoutException:
                    outcomes["timeout"] += 1
                except httpx.TransportError:
                    outcomes["connection"] += 1
                    await asyncio.sleep(0.05)
                else:
                    outcomes[str(answer.status_code)] += 1
                    if answer.status_code != 200:
                        assert answer.json()["error"]["message"], answer.text
                        await asyncio.sleep(0.05)

        await asyncio.gather(*(one(number) for number in range(CLIENTS)))


async def counted(outcomes: Counter[str], least: int) -> None:
    deadline = time.monotonic() + 2 * DEADLINE
    while outcomes.total() < least:
        assert time.monotonic() < deadline, f"not {least} ends of a request: {outcomes}"
        await asyncio.sleep(0.02)


def victim(deployment: Deployment, name: str, rank: bool) -> int:
    pid = deployment.processes()[name]
    if not rank:
        return pid
    children = psutil.Process(pid).children(recursive=True)
    return next(child.pid for child in children if "pdctl.engine.scheduler" in " ".join(child.cmdline()))


def answers(deployment: Deployment) -> bool:
    body = {"text": "Repeat: after the storm", "sampling_params": {"temperature": 0, "max_new_tokens": 4}}
    return plain_http.post(f"{deployment.router}/generate", json=body, timeout=DEADLINE).status_code == 200


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("prefill-0", False),
        ("decode-0", True),
        pytest.param("prefill-1", True, marks=pytest.mark.heavy),
        pytest.param("decode-0", False, marks=pytest.mark.heavy),
        pytest.param("router", False, marks=pytest.mark.heavy),
    ],
)
def test_kill_under_load(two_prefills: Deployment, name: str, rank: bool) -> None:
    wait_for("an answer before the kill", lambda: answers(two_prefills), 120)
    outcomes: Counter[str] = Counter()
    before = two_prefills.processes()[name]

    async def scenario() -> None:
        over = asyncio.Event()
        loading = asyncio.create_task(load(two_prefills.router, over, outcomes))
        await counted(outcomes, BEFORE)
        os.kill(victim(two_prefills, name, rank), signal.SIGKILL)
        await counted(outcomes, outcomes.total() + AFTER)
        over.set()
        await loading

    asyncio.run(scenario())
    assert outcomes["200"] > 0, f"nobody was answered: {outcomes}"
    assert not outcomes["timeout"], outcomes
    if name != "router":
        assert not outcomes["connection"], outcomes
    if name == "prefill-0":
        assert outcomes["200"] > 0.9 * sum(outcomes.values()), f"the other prefill should have served: {outcomes}"
    wait_for(f"restart of {name}", lambda: two_prefills.processes()[name] != before, 120)
    wait_for("an answer after the kill", lambda: answers(two_prefills), 120)
    wait_for("return of every page", two_prefills.all_pages_free, 120)


@pytest.mark.heavy
def test_sigkill_of_the_launcher_leaves_nothing(tmp_path: Path) -> None:
    """By default: of stand-ins (launch/test_supervisor.py), of a server (engine/frontend/test_lifecycle.py)."""
    router, http, bootstrap = free_block(1), free_block(2), free_block(1)
    sets = [f"router.port={router}", f"ports.http={http}", f"ports.bootstrap={bootstrap}"]
    log = (tmp_path / "launch.log").open("w")
    launcher = subprocess.Popen(
        [sys.executable, "-m", "pdctl", "launch", "topologies/1p1d.yaml", *(w for s in sets for w in ("--set", s))],
        env={**os.environ, "PDCTL_HOME": str(tmp_path)},
        stdout=log,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
    )
    wait_for(
        "serving", lambda: plain_http.get(f"http://127.0.0.1:{router}/readiness", timeout=2).status_code == 200, 180
    )
    family = psutil.Process(launcher.pid).children(recursive=True)
    assert len(family) >= 5  # two servers, two ranks, one router
    launcher.kill()
    launcher.wait()
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive, [str(process) for process in alive]
    log.close()
