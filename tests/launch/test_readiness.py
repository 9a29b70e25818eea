"""A prefill is ready when a decode could begin: every rank named by the bootstrap server, and answering where it is."""

from __future__ import annotations

import json
import queue
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdctl.fleet.bootstrap_probe import NEW, QUERY
from pdctl.launch.deployment import ServerRole, Spec
from pdctl.launch.log_tail import LogTail
from pdctl.launch.readiness import ReadinessWatch
from pdctl.launch.run_record import StartStage
from pdctl.launch.runtime import Reached
from tests.fleet.conftest import LONG, Answers, Serve, closed_port, port_of, serve

__all__ = ["serve"]

TWO_RANKS = json.dumps({"attn_tp_size": 2, "attn_cp_size": 1, "dp_size": 1, "pp_size": 1, "page_size": 1})


@pytest.fixture
def listener() -> Iterator[int]:
    """A rank's ZMQ port, as far as a connection goes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


def bootstrap(*ports: int) -> Answers:
    """A bootstrap server with one rank per port; 0: it does not name that one."""
    ranks = {
        NEW.query(0, 0, rank, 0): (200, json.dumps({"rank_ip": "127.0.0.1", "rank_port": port}))
        for rank, port in enumerate(ports)
        if port
    }
    return {QUERY: (200, TWO_RANKS), "/health": (200, "OK"), **ranks}


def told(serve: Serve, tmp_path: Path, answers: Answers | None) -> Reached:
    """The first thing the watch says of the bootstrap server: the stage, or what it waits for. None: there is none."""
    engine = serve({"/health": (200, "")})
    port = port_of(serve(answers)) if answers is not None else closed_port()
    log = tmp_path / "prefill-0.log"
    log.touch()
    spec = Spec("prefill-0", ServerRole.PREFILL, (), (), "127.0.0.1", port_of(engine), (), bootstrap_port=port, ranks=2)
    mailbox: queue.SimpleQueue[Reached] = queue.SimpleQueue()
    watch = ReadinessWatch(spec, 1, LogTail(log), (), 0.05, mailbox.put)
    watch.start()
    try:
        while (reached := mailbox.get(timeout=LONG)).stage is StartStage.BOUND:
            pass
    finally:
        watch.close()
    return reached


def test_every_rank_named_and_answering_is_registered(serve: Serve, tmp_path: Path, listener: int) -> None:
    reached = told(serve, tmp_path, bootstrap(listener, listener))
    assert (reached.stage, reached.detail) == (StartStage.REGISTERED, "bootstrap registered 2/2")


def test_a_rank_that_does_not_answer_where_it_registered_is_waited_for(
    serve: Serve, tmp_path: Path, listener: int
) -> None:
    silent = closed_port()
    reached = told(serve, tmp_path, bootstrap(listener, silent))
    assert reached.stage is None
    assert reached.detail == f"tp1 registered at 127.0.0.1:{silent}: connection refused"


def test_a_rank_the_server_does_not_name_is_waited_for(serve: Serve, tmp_path: Path, listener: int) -> None:
    reached = told(serve, tmp_path, bootstrap(listener, 0))
    assert reached.stage is None
    assert reached.detail.startswith("dp0 cp0 tp1 pp0: 404")


def test_a_bootstrap_server_that_never_came_is_told_as_soon_as_the_server_is_healthy(
    serve: Serve, tmp_path: Path
) -> None:
    """SGLang whose bootstrap port was taken serves on without a word."""
    reached = told(serve, tmp_path, None)
    assert reached.stage is None
    assert reached.detail.startswith("/health answers, but its bootstrap server on port ")
    assert reached.detail.endswith(" does not: connection refused")


@pytest.mark.parametrize(
    ("key", "words"), [("", "it needs an API key; name it"), ("k", "it does not take the API key")]
)
def test_a_router_that_wants_a_key_is_named_at_once(serve: Serve, tmp_path: Path, key: str, words: str) -> None:
    router = serve({"/readiness": (200, "{}"), "/workers": (401, '{"error": {"message": "no"}}')})
    (tmp_path / "router.log").touch()
    spec = Spec("router", ServerRole.ROUTER, (), (), "127.0.0.1", port_of(router), ())
    mailbox: queue.SimpleQueue[Reached] = queue.SimpleQueue()
    watch = ReadinessWatch(spec, 1, LogTail(tmp_path / "router.log"), ("http://127.0.0.1:1",), 0.05, mailbox.put, key)
    watch.start()
    try:
        while (reached := mailbox.get(timeout=LONG)).stage is StartStage.BOUND:
            pass
    finally:
        watch.close()
    assert reached.hopeless
    assert reached.detail.startswith("/workers answers 401: ")
    assert words in reached.detail


@pytest.mark.parametrize("status", [401, 403])
def test_a_router_whose_workers_want_another_key_is_not_waited_for(serve: Serve, tmp_path: Path, status: int) -> None:
    reason = f"/server_info answered {status} an API key is required"
    worker = {"url": "http://127.0.0.1:1", "worker_type": "prefill", "is_healthy": False, "reason": reason}
    server = serve({"/readiness": (503, "{}"), "/workers": (200, json.dumps({"workers": [worker]}))})
    log = tmp_path / "router.log"
    log.touch()
    spec = Spec("router", ServerRole.ROUTER, (), (), "127.0.0.1", port_of(server), ())
    mailbox: queue.SimpleQueue[Reached] = queue.SimpleQueue()
    watch = ReadinessWatch(spec, 1, LogTail(log), ("http://127.0.0.1:1",), 0.05, mailbox.put)
    watch.start()
    try:
        while (reached := mailbox.get(timeout=LONG)).stage is StartStage.BOUND:
            pass
    finally:
        watch.close()
    assert reached.hopeless
    assert reached.detail == f"http://127.0.0.1:1 does not take the router's API key, or wants one: {reason}"
