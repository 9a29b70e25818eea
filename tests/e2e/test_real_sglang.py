"""Our router in front of real SGLang servers (heavy; see docs/testing.md). No bootstrap port is given to the router.

PDCTL_TEST_SGLANG_PREFILLS and PDCTL_TEST_SGLANG_DECODES are comma-separated URLs of servers that already run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import plain_http
from tests.e2e.conftest import ROOT, wait_for
from tests.ports import free_block

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(400)]


def urls(variable: str) -> list[str]:
    given = [url for url in os.environ.get(variable, "").split(",") if url]
    if not given:
        pytest.skip(f"{variable} names no running SGLang server")
    return given


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    command = [sys.executable, "-m", "pdctl.router", "--port", str(port := free_block(1))]
    for url in urls("PDCTL_TEST_SGLANG_PREFILLS"):
        command += ["--prefill", url]
    for url in urls("PDCTL_TEST_SGLANG_DECODES"):
        command += ["--decode", url]
    log: Path = tmp_path_factory.mktemp("router") / "router.log"
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, cwd=ROOT)
    url = f"http://127.0.0.1:{port}"
    expected = len(urls("PDCTL_TEST_SGLANG_PREFILLS")) + len(urls("PDCTL_TEST_SGLANG_DECODES"))
    wait_for(
        "readiness", lambda: plain_http.get(f"{url}/readiness", timeout=5).json()["healthy_workers"] == expected, 120
    )
    yield url
    process.terminate()
    assert process.wait(30) == 0


def test_fifty_requests_use_every_prefill(router: str) -> None:
    used: Counter[str] = Counter()
    with plain_http.Client(base_url=router, timeout=60) as client:
        for index in range(50):
            body = {"text": f"hello world {index}", "sampling_params": {"temperature": 0, "max_new_tokens": 4}}
            answer = client.post("/generate", json=body)
            assert answer.status_code == 200, answer.text
            used[answer.headers["x-pd-prefill"]] += 1
    assert set(used) == set(urls("PDCTL_TEST_SGLANG_PREFILLS")), used


def test_the_router_learnt_every_bootstrap_port(router: str) -> None:
    workers = plain_http.get(f"{router}/workers", timeout=10).json()["workers"]
    for worker in workers:
        if worker["worker_type"] == "prefill":
            told = plain_http.get(f"{worker['url']}/server_info", timeout=60).json()["disaggregation_bootstrap_port"]
            assert worker["bootstrap_port"] == told


def test_a_stream_arrives_whole(router: str) -> None:
    body = {"text": "count to ten", "sampling_params": {"temperature": 0, "max_new_tokens": 6}, "stream": True}
    with plain_http.stream("POST", f"{router}/generate", json=body, timeout=60) as answer:
        assert answer.status_code == 200
        events = [line for line in answer.iter_lines() if line.startswith("data: ")]
    assert events[-1] == "data: [DONE]"
