"""A thread or task of the server process that ends on an error ends the instance, by name; one request's does not."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import signal
from pathlib import Path

import httpx
import psutil
import pytest

from tests.engine.frontend.conftest import READY, SHAPE, running, until
from tests.ports import free_block

DEATHS = {
    "tokenizer-manager": ("the tokenizer manager ended on RuntimeError: ", ()),
    "http-server": ("the HTTP server ended on RuntimeError: ", ()),
    "rank-watch": ("its thread wait rank TP0 ended on RuntimeError: ", ()),
    # Its last message and its exit race to the parent: which of the two is told depends on the machine.
    "dp-controller": ("DP controller ", ("--dp-size", "2")),
    "silence-watch": ("the watch of the tokenizer manager over silent schedulers ended on RuntimeError: ", ()),
}


@pytest.mark.parametrize("thread", DEATHS)
def test_the_death_of_a_thread_ends_the_instance_and_is_named(model: Path, tmp_path: Path, thread: str) -> None:
    words, flags = DEATHS[thread]
    trigger = tmp_path / "now"
    with running(model, *flags, env={"PDCTL_FAULTS": f"raise:thread.{thread}@when={trigger}"}) as engine:
        engine.wait_for(READY)
        trigger.touch()
        with contextlib.suppress(httpx.TransportError):
            engine.client.post("/generate", json={"text": "hi", "sampling_params": {"max_new_tokens": 2}})
        line = engine.wait_for("Instance ends: ")
        assert words in line
        assert f"thread.{thread}" in line or thread == "dp-controller"
        assert engine.exit_code() == 1


def test_tokens_that_cannot_be_decoded_end_their_request_alone(model: Path, tmp_path: Path) -> None:
    trigger = tmp_path / "now"
    body = {"text": "hi", "sampling_params": {"max_new_tokens": 2}}
    fault = f"raise:thread.detokenizer@when={trigger},first=1"
    with running(model, env={"PDCTL_FAULTS": fault}) as engine:
        engine.wait_for(READY)
        trigger.touch()
        answer = engine.client.post("/generate", json=body)
        assert answer.status_code == 500
        assert "the detokenizer failed on RuntimeError" in answer.json()["error"]["message"]
        assert engine.client.post("/generate", json=body).status_code == 200
        assert engine.client.get("/health").status_code == 200


@pytest.mark.parametrize("rank", [0, 1])
def test_a_node_link_that_ends_on_an_error_ends_both_nodes(model: Path, rank: int) -> None:
    meeting = f"127.0.0.1:{free_block(14)}"
    flags = (*SHAPE, "--nnodes", "2", "--dist-init-addr", meeting, "--node-rank")
    fault = {"PDCTL_FAULTS": "raise:thread.node-link"}
    with (
        running(model, *flags, "0", env=fault if rank == 0 else {}) as first,
        running(model, *flags, "1", env=fault if rank == 1 else {}) as second,
    ):
        if rank == 0:  # it hears of node 1 again only when that leaves
            first.wait_for(READY)
            second.process.terminate()
        assert "ended on RuntimeError: " in (first, second)[rank].wait_for("Instance ends: ")
        assert [first.exit_code(), second.exit_code()] == [1, 1]


def test_questions_of_a_dying_instance_are_refused_in_words(model: Path) -> None:
    """A rank that says nothing is asked, and dies: what waits is answered with 503 at once, without a traceback."""
    with running(model) as engine, concurrent.futures.ThreadPoolExecutor(2) as pool:
        engine.wait_for(READY)
        (rank,) = engine.children()
        os.kill(rank, signal.SIGSTOP)
        asked = [pool.submit(httpx.get, f"{engine.url}{path}", timeout=30) for path in ("/server_info", "/health")]
        server = psutil.Process(engine.process.pid)
        until(lambda: len(server.net_connections("tcp")) >= 3, "the listener's connections of both questions")
        os.kill(rank, signal.SIGKILL)
        info, health = (future.result() for future in asked)
        assert (info.status_code, health.status_code) == (503, 503)
        assert "was killed by SIGKILL" in info.json()["error"]["message"]
        assert engine.exit_code() == 1
        assert not any("Traceback" in line for line in engine.lines)
