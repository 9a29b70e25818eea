"""What endpoints answer, and what they do not, as facts; against real sockets."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pdctl.errors import NotProbedError, PdctlError
from pdctl.fleet import bootstrap, completions, http, router, server_info
from pdctl.fleet.completions import Piece, Summary

Serve = Callable[[dict[str, tuple[int, str]]], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a server that answers each path (with its query) with a status and a body."""
    servers: list[ThreadingHTTPServer] = []

    def start(answers: dict[str, tuple[int, str]]) -> str:
        class Face(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = answers.get(self.path, (404, ""))
                self.send_response(status)
                self.send_header("x-pd-room", "77")
                self.end_headers()
                self.wfile.write(body.encode())

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Face)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True, kwargs={"poll_interval": 0.01}).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_nobody_there_is_a_fact_not_an_exception() -> None:
    answer = http.get(f"http://127.0.0.1:{closed_port()}/health")
    assert not answer.reached
    assert answer.reason == "connection refused"


def test_silence_has_a_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        answer = http.get(f"http://127.0.0.1:{mute.getsockname()[1]}/", timeout=0.2)
    assert answer.reason == "no answer within 0.2 s"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"", "server disconnected without sending a response"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc", "peer closed connection without sending complete"),
    ],
)
def test_an_answer_that_breaks_off_is_no_answer(said: bytes, reason: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(said)

        thread = threading.Thread(target=answer)
        thread.start()
        found = http.get(f"http://127.0.0.1:{server.getsockname()[1]}/", timeout=5.0)
        thread.join()
    assert not found.reached
    assert found.reason.startswith(reason)


@pytest.mark.parametrize("url", ["http://", "http://[::1", "http://a..b", "127.0.0.1:1", "ftp://127.0.0.1:1"])
def test_what_is_no_address_is_not_reached(url: str) -> None:
    assert http.get(url).reason


def test_no_proxy_stands_between(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{closed_port()}")
    assert http.get(serve({"/health": (200, "")}) + "/health").ok


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, "{}", bootstrap.Registration(True, True, 4)),
        (
            503,
            "Prefill server not fully registered yet (3 workers registered).",
            bootstrap.Registration(True, False, 3, "Prefill server not fully registered yet (3 workers registered)."),
        ),
    ],
)
def test_registration(serve: Serve, status: int, body: str, expected: bootstrap.Registration) -> None:
    port = int(serve({bootstrap.QUERY: (status, body)}).rpartition(":")[2])
    assert bootstrap.registration("127.0.0.1", port, 4) == expected


@pytest.mark.parametrize(("size", "complete"), [(None, False), (2, True)])
def test_registration_of_sglang_before_0_5_13(serve: Serve, size: int | None, complete: bool) -> None:
    sizes = json.dumps({"prefill_attn_tp_size": size, "prefill_dp_size": 1})
    url = serve({bootstrap.QUERY: (400, "Missing inputs for bootstrap server."), bootstrap.OLD_QUERY: (200, sizes)})
    assert bootstrap.registration("127.0.0.1", int(url.rpartition(":")[2]), 2).complete is complete


def test_router_state(serve: Serve) -> None:
    workers = [
        {"url": "http://a:1/", "worker_type": "prefill", "is_healthy": True, "bootstrap_port": 8998, "load": 2},
        {"url": "http://b:2", "worker_type": "decode", "is_healthy": False, "load": 2},
    ]
    url = serve({"/readiness": (503, '{"status": "no decode"}'), "/workers": (200, json.dumps({"workers": workers}))})
    state = router.fetch(url)
    assert (state.reached, state.ready, state.in_flight) == (True, False, 2)
    assert state.reason == '{"status": "no decode"}'
    assert state.lists("http://a:1")
    assert not state.lists("http://b:2")  # listed, but not healthy
    assert state.workers[0].bootstrap_port == 8998


def test_server_info_on_either_path(serve: Serve) -> None:
    body = json.dumps({"disaggregation_mode": "prefill", "disaggregation_bootstrap_port": 9001, "tp_size": 2})
    for path in ("/server_info", "/get_server_info"):
        info = server_info.fetch(serve({path: (200, body)}))
        assert info is not None
        assert (info.mode, info.bootstrap_port, info.tp_size) == ("prefill", 9001, 2)
    assert server_info.fetch(serve({"/server_info": (200, "not json")})) is None


def ask(url: str, chat: bool = True) -> list[completions.Part]:
    return list(completions.stream(url, "hi", model="m", chat=chat, max_tokens=4, timeout=5))


def events(*values: object) -> str:
    return ": comment\n\n" + "".join(f"data: {json.dumps(value)}\n\n" for value in values) + "data: [DONE]\n\n"


def test_a_stream_of_pieces_ends_with_its_summary(serve: Serve) -> None:
    body = events(
        {"choices": [{"delta": {"role": "assistant"}}]},
        {"choices": [{"delta": {"content": "the "}}]},
        {"choices": [{"delta": {"content": "fox"}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
    )
    *pieces, summary = ask(serve({completions.CHAT: (200, body)}))
    assert pieces == [Piece("the "), Piece("fox")]
    assert isinstance(summary, Summary)
    assert (summary.finish_reason, summary.prompt_tokens, summary.completion_tokens) == ("stop", 3, 2)
    assert (summary.room, summary.prefill) == ("77", "")


def test_a_line_separator_in_the_text_does_not_end_the_event(serve: Serve) -> None:
    event = json.dumps({"choices": [{"delta": {"content": "a\u2028b"}}]}, ensure_ascii=False)
    assert ask(serve({completions.CHAT: (200, f"data: {event}\r\n\r\ndata: [DONE]\n\n")}))[0] == Piece("a\u2028b")


def test_plain_completions(serve: Serve) -> None:
    url = serve({completions.RAW: (200, events({"choices": [{"text": "x"}]}))})
    assert ask(url, chat=False)[0] == Piece("x")


def test_refusals_carry_the_servers_own_words(serve: Serve) -> None:
    told = json.dumps({"error": {"message": "no prefill is ready", "type": "unavailable"}})
    url = serve({completions.CHAT: (503, told)})
    with pytest.raises(PdctlError, match="answered 503: no prefill is ready"):
        ask(url)
    broken = serve({completions.CHAT: (200, events({"choices": []}, {"error": {"message": "the decode died"}}))})
    with pytest.raises(PdctlError, match="the stream broke off: the decode died"):
        ask(broken)
    with pytest.raises(NotProbedError, match="connection refused"):
        ask(f"http://127.0.0.1:{closed_port()}")


def test_the_models_name(serve: Serve) -> None:
    assert completions.first_model(serve({"/v1/models": (200, '{"data": [{"id": "tiny"}]}')})) == "tiny"
    with pytest.raises(NotProbedError):
        completions.first_model(f"http://127.0.0.1:{closed_port()}")
