"""`pdctl doctor` in front of real SGLang servers and the real sglang-router (heavy; see docs/testing.md).

PDCTL_TEST_SGLANG_PREFILLS and PDCTL_TEST_SGLANG_DECODES are comma-separated URLs of servers that already run (two
prefills and one decode), PDCTL_TEST_SGLANG_ROUTER names a Python with sglang-router 0.3.2. No request is sent before
doctor speaks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


def bootstrap_port(url: str) -> int:
    return int(plain_http.get(f"{url}/server_info", timeout=60).json()["disaggregation_bootstrap_port"])


@contextmanager
def router(workers: list[str], log: Path) -> Iterator[str]:
    """sglang-router with these --prefill and --decode words, listening and with every worker registered."""
    python = os.environ.get("PDCTL_TEST_SGLANG_ROUTER")
    if not python:
        pytest.skip("PDCTL_TEST_SGLANG_ROUTER names no Python with sglang-router")
    port, metrics = free_block(1), free_block(1)
    command = [python, "-m", "sglang_router.launch_router", "--pd-disaggregation", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--prometheus-port", str(metrics), *workers]
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        expected = sum(word in ("--prefill", "--decode") for word in workers)
        wait_for("router", lambda: plain_http.get(f"http://127.0.0.1:{port}/workers").json()["total"] == expected, 120)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def doctor(*words: str) -> tuple[int, dict[str, Any], float]:
    began = time.monotonic()
    command = [sys.executable, "-m", "pdctl", "doctor", *words, "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), time.monotonic() - began


def errors(report: dict[str, Any]) -> set[str]:
    return {found["code"] for found in report["findings"] if found["severity"] == "error"}


def given(prefills: list[tuple[str, int | None]], decodes: list[str]) -> list[str]:
    words: list[str] = []
    for url, port in prefills:
        words += ["--prefill", url, *([str(port)] if port is not None else [])]
    for url in decodes:
        words += ["--decode", url]
    return words


def test_no_ports(tmp_path: Path) -> None:
    prefills, decodes = urls("PDCTL_TEST_SGLANG_PREFILLS"), urls("PDCTL_TEST_SGLANG_DECODES")
    with router(given([(url, None) for url in prefills], decodes), tmp_path / "router.log") as url:
        code, report, seconds = doctor("--router", url)
    assert code == 1
    assert seconds < 10
    assert "PD201" in errors(report)
    null = [found for found in report["findings"] if found["code"] == "PD201"]
    told = json.dumps(null)
    assert prefills[1] in told, "the pair that will fail is named"
    ports = [str(bootstrap_port(each)) for each in prefills]
    for prefill, port in zip(prefills, ports, strict=True):
        assert f"--prefill {prefill} {port}" in null[0]["fix"]
    assert [row["router"] for row in report["ports"]] == ["null"] * len(prefills)


def test_right_ports_are_all_green_with_the_canary(tmp_path: Path) -> None:
    prefills, decodes = urls("PDCTL_TEST_SGLANG_PREFILLS"), urls("PDCTL_TEST_SGLANG_DECODES")
    ports = [bootstrap_port(url) for url in prefills]
    with router(given(list(zip(prefills, ports, strict=True)), decodes), tmp_path / "router.log") as url:
        code, report, _ = doctor("--router", url, "--canary")
    assert code == 0, report["findings"]
    assert errors(report) == set()
    assert [cell["ok"] for cell in report["matrix"]] == [True] * len(prefills) * len(decodes)


@pytest.mark.parametrize(
    ("arrange", "code"),
    [
        (lambda ports: [9999 for _ in ports], "PD202"),
        (lambda ports: list(reversed(ports)), "PD203"),
    ],
    ids=["wrong", "swapped"],
)
def test_ports_that_are_not_the_prefills_own(arrange: Any, code: str, tmp_path: Path) -> None:
    prefills, decodes = urls("PDCTL_TEST_SGLANG_PREFILLS"), urls("PDCTL_TEST_SGLANG_DECODES")
    ports = arrange([bootstrap_port(url) for url in prefills])
    with router(given(list(zip(prefills, ports, strict=True)), decodes), tmp_path / "router.log") as url:
        status, report, seconds = doctor("--router", url)
    assert status == 1
    assert seconds < 10
    assert code in errors(report)


def test_swapped_roles(tmp_path: Path) -> None:
    prefills, decodes = urls("PDCTL_TEST_SGLANG_PREFILLS"), urls("PDCTL_TEST_SGLANG_DECODES")
    workers = given(
        [(decodes[0], bootstrap_port(decodes[0])), (prefills[1], bootstrap_port(prefills[1]))], prefills[:1]
    )
    with router(workers, tmp_path / "router.log") as url:
        status, report, seconds = doctor("--router", url)
    assert status == 1
    assert seconds < 10
    assert "PD301" in errors(report)
