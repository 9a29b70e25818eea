"""The published routers in front of our engine (heavy; docs/testing.md says how to run it).

PDCTL_TEST_SGLANG_ROUTER names a Python that has sglang-router 0.3.2, PDCTL_TEST_SMG the smg 1.13.0 executable.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests import plain_http
from tests.e2e.conftest import ROOT, TINY, wait_for
from tests.ports import free_block

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(300)]


def healthy(url: str) -> bool:
    return plain_http.get(url, timeout=5).status_code == 200


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[tuple[str, int]], str]]:
    """Two prefills, as (URL, bootstrap port), and the URL of one decode; no router."""
    logs = tmp_path_factory.mktemp("engines")
    http, bootstrap = free_block(3), free_block(2)
    roles = [
        ("--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", str(bootstrap)),
        ("--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", str(bootstrap + 1)),
        ("--disaggregation-mode", "decode"),
    ]
    processes = []
    for index, role in enumerate(roles):
        command = [sys.executable, "-m", "pdctl.engine", "--model-path", str(TINY), "--served-model-name", "tiny"]
        with (logs / f"{index}.log").open("w") as log:
            processes.append(
                subprocess.Popen([*command, "--port", str(http + index), *role], stdout=log, stderr=log, cwd=ROOT)
            )
    urls = [f"http://127.0.0.1:{http + index}" for index in range(3)]
    for url in urls:
        wait_for(f"engine at {url}", lambda url=url: healthy(f"{url}/health"), 60)
    yield [(urls[0], bootstrap), (urls[1], bootstrap + 1)], urls[2]
    for process in processes:
        process.terminate()
    assert [process.wait(30) for process in processes] == [0, 0, 0]


def router_command(kind: str) -> list[str]:
    if kind == "sglang-router":
        python = os.environ.get("PDCTL_TEST_SGLANG_ROUTER")
        if not python:
            pytest.skip("PDCTL_TEST_SGLANG_ROUTER names no Python with sglang-router")
        return [python, "-m", "sglang_router.launch_router"]
    smg = os.environ.get("PDCTL_TEST_SMG")
    if not smg:
        pytest.skip("PDCTL_TEST_SMG names no smg executable")
    return [smg, "launch"]


def responses(url: str, count: int) -> list[httpx.Response]:
    """`count` requests, a third each of generate, chat and streamed chat."""
    message = {"model": "tiny", "messages": [{"role": "user", "content": "Repeat: two boats"}], "max_tokens": 6}
    generate = {"text": "two boats", "sampling_params": {"temperature": 0, "max_new_tokens": 6}}
    kinds = [
        ("/generate", generate),
        ("/v1/chat/completions", message),
        ("/v1/chat/completions", {**message, "stream": True}),
    ]
    with plain_http.Client(base_url=url, timeout=30) as client:
        return [client.post(*kinds[index % 3][:1], json=kinds[index % 3][1]) for index in range(count)]


@pytest.mark.parametrize("kind", ["sglang-router", "smg"])
@pytest.mark.parametrize("ports", [True, False], ids=["ports given", "no ports"])
def test_in_front_of_our_engine(
    engines: tuple[list[tuple[str, int]], str], kind: str, ports: bool, tmp_path: Path
) -> None:
    prefills, decode = engines
    port, metrics = free_block(1), free_block(1)
    command = [*router_command(kind), "--pd-disaggregation", "--policy", "round_robin", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--prometheus-port", str(metrics), "--decode", decode]
    for url, bootstrap in prefills:
        command += ["--prefill", url, *([str(bootstrap)] if ports else [])]
    with (tmp_path / "router.log").open("w") as log:
        router = subprocess.Popen(command, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(f"{kind} ready", lambda: healthy(f"{url}/readiness"), 120)
        wait_for(f"{kind} with three workers", lambda: plain_http.get(f"{url}/workers").json()["total"] == 3, 60)
        answers = responses(url, 100 if ports else 3)
        if ports:
            assert {answer.status_code for answer in answers} == {200}
        else:
            assert {answer.status_code for answer in answers} == {400}
            assert all("bootstrap_port is missing" in answer.text for answer in answers)
            assert all(answer.elapsed.total_seconds() < 2 for answer in answers)
    finally:
        router.terminate()
        router.wait(30)
