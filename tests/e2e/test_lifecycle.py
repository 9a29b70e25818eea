"""What a user does around a run: ask, look, follow, stop; Ctrl-C once and the exit code that tells of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests import plain_http
from tests.e2e.conftest import ROOT, Deployment, wait_for
from tests.ports import free_block


def test_status_logs_ls_and_ask(two_prefills: Deployment) -> None:
    status = json.loads(two_prefills.pdctl("status", "e2e", "-o", "json").stdout)
    assert status["schema"].startswith("pdctl.")
    asked = two_prefills.pdctl("ask", "--run", "e2e", "Repeat: the red fox", "--max-tokens", "12")
    assert asked.stdout.strip()
    answer = plain_http.post(
        f"{two_prefills.router}/generate", json={"text": "hello", "sampling_params": {"max_new_tokens": 3}}, timeout=30
    )
    room = answer.headers["x-pd-room"]
    log = two_prefills.pdctl("logs", "e2e").stdout
    for instance in ("router", "decode-0"):
        assert any(room in line and line.startswith(instance) for line in log.splitlines()), instance
    assert "e2e" in two_prefills.pdctl("ls").stdout


def test_every_step_of_a_room_is_in_the_logs(two_prefills: Deployment) -> None:
    answer = plain_http.post(
        f"{two_prefills.router}/generate",
        json={"text": "tell me about the river", "sampling_params": {"max_new_tokens": 5}},
        timeout=30,
    )
    room = answer.headers["x-pd-room"]
    steps = ("phase=bootstrap", "phase=waiting", "phase=inflight", "phase=prealloc", "phase=transfer", "phase=running")

    def complete() -> bool:
        lines = [line for line in two_prefills.pdctl("logs", "e2e").stdout.splitlines() if room in line]
        return all(any(step in line for line in lines) for step in steps)

    wait_for(f"every step of room {room}", complete)


@pytest.mark.heavy
def test_ctrl_c_once_ends_everything_and_tells_so(tmp_path: Path) -> None:
    """By default: of stand-ins (tests/cli/test_run_verbs.py)."""
    router, http, bootstrap = free_block(1), free_block(2), free_block(1)
    sets = [f"router.port={router}", f"ports.http={http}", f"ports.bootstrap={bootstrap}"]
    launcher = subprocess.Popen(
        [sys.executable, "-m", "pdctl", "launch", "topologies/1p1d.yaml", *(w for s in sets for w in ("--set", s))],
        env={**os.environ, "PDCTL_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
    )
    wait_for(
        "serving", lambda: plain_http.get(f"http://127.0.0.1:{router}/readiness", timeout=2).status_code == 200, 90
    )
    launcher.send_signal(signal.SIGINT)
    output, _ = launcher.communicate(timeout=30)
    assert launcher.returncode == -signal.SIGINT
    assert f"http://127.0.0.1:{router}" in output
    for port in (router, http, http + 1, bootstrap):
        assert _closed(port)


def _closed(port: int) -> bool:
    try:
        plain_http.get(f"http://127.0.0.1:{port}/health", timeout=1)
    except httpx.ConnectError:
        return True
    return False
