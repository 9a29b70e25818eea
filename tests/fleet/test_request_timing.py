"""Requests at given times, against servers that answer as SGLang streams, late, in part, or not at all."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from itertools import pairwise

import pytest

from pdctl.fleet.request_timing import TimedRequest, send_open_loop
from tests.fleet.conftest import LONG, Peer, Server, closed_port

StartStreamer = Callable[..., str]


def events(first: int, last: int) -> bytes:
    told = ({"text": "x" * at, "meta_info": {"completion_tokens": at}} for at in range(first, last + 1))
    return b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in told)


@pytest.fixture
def streamer() -> Iterator[StartStreamer]:
    """Starts a server that streams `bursts` (tokens each) with a pause before every burst, `hold` before the first."""
    servers: list[Server] = []
    released = threading.Event()

    def start(bursts: tuple[int, ...], *, pause: float = 0.0, hold: bool = False, done: bool = True) -> str:
        class Face(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                if hold:
                    released.wait(LONG)
                self.send_response(200)
                self.end_headers()
                told = 0
                for burst in bursts:
                    time.sleep(pause)
                    self.wfile.write(events(told + 1, told + burst))
                    told += burst
                self.wfile.write(b"data: [DONE]\n\n" if done else b"")

            def log_message(self, *_: object) -> None:
                pass

        servers.append(Server(("127.0.0.1", 0), Face))
        threading.Thread(target=servers[-1].serve_forever, daemon=True, kwargs={"poll_interval": 0.01}).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    released.set()
    for server in servers:
        server.shutdown()
        server.server_close()


def test_each_token_has_the_time_at_which_it_came(streamer: StartStreamer) -> None:
    url = streamer((1, 1, 3), pause=0.05)
    (answer,) = send_open_loop(url, [TimedRequest(0.0, (1, 2), 5)], LONG)
    assert answer.problem == ""
    assert len(answer.token_s) == 5
    assert answer.token_s[2] == answer.token_s[4], "three tokens of one piece"
    assert answer.sent_s < answer.token_s[0] < answer.token_s[1] < answer.token_s[2]
    assert answer.token_s[1] - answer.token_s[0] >= 0.04


def test_a_request_is_sent_when_its_time_has_come_though_earlier_ones_are_not_answered(streamer: StartStreamer) -> None:
    url = streamer((1,), hold=True)
    requests = [TimedRequest(at, (1,), 1) for at in (0.0, 0.0, 0.2, 0.4)]
    answers = send_open_loop(url, requests, 0.6)
    assert [answer.problem for answer in answers] == ["no answer within 0.6 s"] * 4
    for answer, request in zip(answers, requests, strict=True):
        assert request.at_s <= answer.sent_s < request.at_s + 0.5
    assert [earlier.sent_s <= later.sent_s for earlier, later in pairwise(answers)] == [True] * 3


def test_what_fails_is_told_of_that_request_alone(streamer: StartStreamer, peer: Callable[..., Peer]) -> None:
    short = streamer((1, 1), done=False)
    (cut,) = send_open_loop(short, [TimedRequest(0.0, (1,), 5)], LONG)
    assert (cut.problem, len(cut.token_s)) == ("2 of 5 tokens came", 2)
    refusal = peer(b'HTTP/1.1 503 Busy\r\ncontent-length: 30\r\n\r\n{"error": {"message": "full"}}')
    (refused,) = send_open_loop(f"http://127.0.0.1:{refusal.port}", [TimedRequest(0.0, (1,), 1)], LONG)
    assert (refused.problem, refused.token_s) == ("answered 503: full", ())
    (nobody,) = send_open_loop(f"http://127.0.0.1:{closed_port()}", [TimedRequest(0.0, (1,), 1)], LONG)
    assert "connection refused" in nobody.problem
    garbage = peer(b"\x00\x01garbage", forever=b"x")
    (strange,) = send_open_loop(f"http://127.0.0.1:{garbage.port}", [TimedRequest(0.0, (1,), 1)], LONG)
    assert "not HTTP" in strange.problem
