"""Every thread and task that serves everybody, ended by an error in turn on a live 1P1D: nobody goes on half alive.

/health, the router and the supervisor know (the times are printed), the last line of the log names the thread and the
error, and the restart policy acts. Attention DP on the decode, so that it has a DP controller:

    pytest -m heavy tests/e2e/test_thread_deaths.py -s
"""

from __future__ import annotations

import concurrent.futures
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

from tests import plain_http
from tests.e2e.conftest import Deployment, start, wait_for

PREFILL = {
    "kv-manager": "rank TP0 cannot go on: its KV manager thread ended on RuntimeError: ",
    "kv-transfer": "rank TP0 cannot go on: its thread kv-transfer-",
    "scheduler": "rank TP0 cannot go on: RuntimeError: ",
    "forward": "rank TP0 cannot go on: RuntimeError: ",
    "tokenizer-manager": "the tokenizer manager ended on RuntimeError: ",
    "bootstrap-server": "the bootstrap server on port ",
    "http-server": "the HTTP server ended on RuntimeError: ",
    "rank-watch": "its thread wait rank TP0 ended on RuntimeError: ",
}
DECODE = {
    "kv-manager": "cannot go on: its KV manager thread ended on RuntimeError: ",
    "scheduler": "cannot go on: RuntimeError: ",
    "dp-controller": "DP controller cannot go on: RuntimeError: ",
    "silence-watch": "the watch of the tokenizer manager over silent schedulers ended on RuntimeError: ",
}
CASES = [("prefill-0", thread) for thread in PREFILL] + [("decode-0", thread) for thread in DECODE]
BODY = {"input_ids": [7] * 1500, "sampling_params": {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True}}

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Deployment, Path]]:
    folder = tmp_path_factory.mktemp("files")
    sets = ["readiness.restart={policy: instance, max: 30, backoff: 250ms, backoff-max: 250ms}"]
    for role, threads in (("prefill", PREFILL), ("decode", DECODE)):
        asked = "; ".join(f"raise:thread.{one}@when={folder}/{role}-0.{one}" for one in threads)
        sets.append(f"roles.{role}.env.PDCTL_FAULTS={json.dumps(asked)}")
    sets += ["roles.decode.dp=2", "roles.decode.tp=2"]
    words = (word for one in sets for word in ("--set", one))
    deployment = start(tmp_path_factory.mktemp("state"), "threads", "topologies/1p1d.yaml", 1, *words)
    yield deployment, folder
    deployment.pdctl("down", "threads")


def ask(deployment: Deployment) -> int:
    with suppress(httpx.HTTPError):
        return plain_http.post(f"{deployment.router}/generate", json=BODY, timeout=60).status_code
    return 0


def healthy(url: str) -> bool:
    with suppress(httpx.HTTPError):
        return plain_http.get(f"{url}/health", timeout=5).status_code == 200
    return False


def routed(deployment: Deployment, url: str) -> bool:
    workers = plain_http.get(f"{deployment.router}/workers", timeout=10).json()["workers"]
    return any(one["url"] == url and one["is_healthy"] for one in workers)


@pytest.mark.parametrize(("name", "thread"), CASES, ids=[f"{name}-{thread}" for name, thread in CASES])
def test_the_death_of_a_thread_is_known_and_acted_upon(live: tuple[Deployment, Path], name: str, thread: str) -> None:
    deployment, folder = live
    url = (*deployment.prefills, *deployment.decodes)[name == "decode-0"]
    wait_for("an answer before the fault", lambda: ask(deployment) == 200, 60)
    process = psutil.Process(deployment.processes()[name])
    trigger = folder / f"{name}.{thread}"
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        trigger.touch()
        asked = [pool.submit(ask, deployment) for _ in range(8)]
        wait_for("a /health that fails", lambda: not healthy(url), 30)
        sick = time.monotonic()
        times = {}
        for what, check in {
            "router": lambda: not routed(deployment, url),
            "exit": lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE,
            "supervisor": lambda: deployment.processes()[name] != process.pid or died(deployment, name, process.pid),
        }.items():
            wait_for(what, check, 20)
            times[what] = time.monotonic() - sick
        trigger.unlink()
        codes = sorted(future.result() for future in asked)
    log = (deployment.home / "runs" / deployment.name / "logs" / f"{name}.log").read_text()
    last = [line for line in log.splitlines() if "Instance ends: " in line][-1]
    print(f"\n{name} {thread}: clients {codes}; " + ", ".join(f"{what} {at:.2f} s" for what, at in times.items()))
    print(f"  {last}")
    wait_for("an answer after the restart", lambda: ask(deployment) == 200, 90)
    status = deployment.pdctl("status", check=False).stdout
    print("  " + "\n  ".join(status.splitlines()))
    assert (PREFILL if name == "prefill-0" else DECODE)[thread] in last
    assert f"thread.{thread}@when" in last
    assert f"{name} left with exit code 1: " in status
    assert f"thread.{thread}@when" in status


def died(deployment: Deployment, name: str, pid: int) -> bool:
    run = json.loads((deployment.home / "runs" / deployment.name / "run.json").read_text())
    return any(one["name"] == name and one["pid"] == pid and one.get("exit") for one in run["processes"])
