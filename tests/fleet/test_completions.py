"""A streamed completion, as `pdctl ask` shows it."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pdctl.errors import NotProbedError, PdctlError
from pdctl.fleet import completion_stream, http_client
from pdctl.fleet.completion_stream import Piece, Summary
from tests.cli.verb import Verb
from tests.fleet.conftest import Serve, closed_port


def ask(url: str, chat: bool = True) -> list[completion_stream.Part]:
    return list(completion_stream.stream(url, "hi", model="m", chat=chat, max_tokens=4, timeout=5))


def events(*values: object) -> str:
    return ": comment\n\n" + "".join(f"data: {json.dumps(value)}\n\n" for value in values) + "data: [DONE]\n\n"


def test_a_stream_of_pieces_ends_with_its_summary(serve: Serve) -> None:
    body = events(
        {"choices": [{"delta": {"role": "assistant"}}]},
        {"choices": [{"delta": {"content": "the "}}]},
        {"choices": [{"delta": {"content": "fox"}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
    )
    *pieces, summary = ask(serve({completion_stream.CHAT: (200, body)}))
    assert pieces == [Piece("the "), Piece("fox")]
    assert isinstance(summary, Summary)
    assert (summary.finish_reason, summary.prompt_tokens, summary.completion_tokens) == ("stop", 3, 2)
    assert (summary.room, summary.prefill) == ("77", "")


def test_a_line_separator_in_the_text_does_not_end_the_event(serve: Serve) -> None:
    event = json.dumps({"choices": [{"delta": {"content": "a\u2028b"}}]}, ensure_ascii=False)
    assert ask(serve({completion_stream.CHAT: (200, f"data: {event}\r\n\r\ndata: [DONE]\n\n")}))[0] == Piece("a\u2028b")


def test_plain_completions(serve: Serve) -> None:
    url = serve({completion_stream.RAW: (200, events({"choices": [{"text": "x"}]}))})
    assert ask(url, chat=False)[0] == Piece("x")


def test_refusals_carry_the_servers_own_words(serve: Serve) -> None:
    told = json.dumps({"error": {"message": "no prefill is ready", "type": "unavailable"}})
    url = serve({completion_stream.CHAT: (503, told)})
    with pytest.raises(PdctlError, match='answered 503: "no prefill is ready"'):
        ask(url)
    broken = serve({completion_stream.CHAT: (200, events({"choices": []}, {"error": {"message": "the decode died"}}))})
    with pytest.raises(PdctlError, match='the stream broke off: "the decode died"'):
        ask(broken)
    with pytest.raises(PdctlError, match="an event is no JSON object"):
        ask(serve({completion_stream.CHAT: (200, 'data: {"choices": [\n\n')}))
    with pytest.raises(NotProbedError, match="connection refused"):
        ask(f"http://127.0.0.1:{closed_port()}")


def test_the_models_name(serve: Serve) -> None:
    assert completion_stream.first_model(serve({"/v1/models": (200, '{"data": [{"id": "tiny"}]}')})) == "tiny"
    with pytest.raises(NotProbedError):
        completion_stream.first_model(f"http://127.0.0.1:{closed_port()}")


@pytest.mark.parametrize(("status", "fix"), [(400, "--max-tokens"), (413, "--max-tokens"), (503, "pdctl status")])
def test_what_the_client_asked_for_is_mended_by_the_client(status: int, fix: str, serve: Serve) -> None:
    url = serve({completion_stream.CHAT: (status, json.dumps({"error": {"message": "too long"}}))})
    with pytest.raises(PdctlError) as told:
        ask(url)
    assert fix in told.value.fix


@pytest.mark.parametrize(
    ("status", "headers", "said", "fix"),
    [
        (302, {"location": "http://login/?a"}, 'redirects to "http://login/?a", which is not followed', "--url URL"),
        (403, {}, "without a word", "curl -i {url}/v1/models"),
        (403, {"www-authenticate": "Bearer"}, "without a word", "--key-env"),
        (401, {}, "without a word", "--key-env"),
    ],
)
def test_a_foreign_server_that_refuses_is_named_with_what_it_says(
    capsys: pytest.CaptureFixture[str], status: int, headers: dict[str, str], said: str, fix: str
) -> None:
    class Face(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            for name, value in {**headers, "content-length": "0", "connection": "close"}.items():
                self.send_header(name, value)
            self.end_headers()

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Face) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        verb = Verb(capsys)
        assert verb("ask", "--url", url, "hi") == 1
        server.shutdown()
    first, _, last = verb.err.partition("\n")
    assert first == f"error: {url}{completion_stream.CHAT} answered {status}: {said}"
    assert fix.format(url=url) in last
    assert "pdctl status" not in last


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("null", r"answered 200 \(no content-type\) without one event of a stream"),
        ("", "without one event of a stream"),
        ('{"choices": [{"message": {"content": "not a stream"}}]}', "without one event of a stream"),
        (
            'data: {"choices": [{"delta": {"content": "the "}}]}\n\n',
            r"ended without a finish_reason and without \[DONE\]",
        ),
        ("data: " + "x" * (http_client.MAX_LINE + 1), "without one event of a stream"),
    ],
)
def test_an_answer_that_is_no_whole_stream_is_an_error(serve: Serve, body: str, told: str) -> None:
    with pytest.raises(PdctlError, match=told):
        ask(serve({completion_stream.CHAT: (200, body)}))


def test_a_list_of_models_is_read_up_to_a_limit(serve: Serve) -> None:
    with pytest.raises(NotProbedError, match="longer than 1024 KiB"):
        completion_stream.first_model(serve({"/v1/models": (200, "[" + "[]," * completion_stream.MAX_MODELS)}))
