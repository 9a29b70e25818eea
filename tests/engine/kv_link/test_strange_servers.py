"""What a bootstrap server that a request names can answer: the room fails, the rank and its other rooms go on."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from pdctl.engine.kv_link.bootstrap_client import BootstrapClient, BootstrapError
from pdctl.engine.kv_link.room_state import FailureCode, KVPoll
from tests.cases import for_each
from tests.engine.kv_link.rig import HOST, PATIENCE, bootstrap, decode_side, prefill_side
from tests.engine.kv_link.rooms import lives, run_room

INFO: dict[str, object] = {
    "attn_tp_size": 1, "attn_cp_size": 1, "dp_size": 1, "pp_size": 1, "page_size": 4, "kv_cache_dtype": "float32",
}  # fmt: skip
RANK: dict[str, object] = {"rank_ip": HOST, "rank_port": 9}


@contextlib.contextmanager
def server(serve: Callable[[socket.socket, bytes], None]) -> Iterator[int]:
    """One thread for each connection; `serve` gets it and the head of the request."""
    with socket.create_server((HOST, 0)) as door:

        def one(taken: socket.socket) -> None:
            with taken, contextlib.suppress(OSError):
                serve(taken, taken.recv(65536))

        def run() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=one, args=(door.accept()[0],), daemon=True).start()

        threading.Thread(target=run, daemon=True).start()
        yield int(door.getsockname()[1])
        door.shutdown(socket.SHUT_RDWR)


def answering(info: object, rank: object) -> Callable[[socket.socket, bytes], None]:
    def serve(taken: socket.socket, head: bytes) -> None:
        body = json.dumps(info if b"prefill_dp_rank=-1" in head else rank).encode()
        taken.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))

    return serve


ANSWERS: list[tuple[dict[str, object], dict[str, object], str]] = [
    ({"attn_tp_size": 0}, {}, "`int` >= 1 - at `$.attn_tp_size`"),
    ({"attn_tp_size": -1}, {}, "`$.attn_tp_size`"),
    ({"attn_tp_size": 1 << 40}, {}, "`$.attn_tp_size`"),
    ({"attn_tp_size": 1 << 12}, {}, "more than 1024 ranks"),
    ({"pp_size": 0}, {}, "`$.pp_size`"),
    ({"pp_size": 1 << 20}, {}, "more than 1024 ranks"),
    ({"dp_size": 0, "follow_bootstrap_room": True}, {}, "`$.dp_size`"),
    ({"dp_size": -3}, {}, "`$.dp_size`"),
    ({"attn_cp_size": 0}, {}, "`$.attn_cp_size`"),
    ({"page_size": 0}, {}, "`$.page_size`"),
    ({"kv_cache_dtype": "x" * 5000}, {}, "`$.kv_cache_dtype`"),
    ({}, {"rank_port": 0}, "`$.rank_port`"),
    ({}, {"rank_port": 1 << 70}, "rank_port"),
    ({}, {"rank_ip": "x" * 5000}, "`$.rank_ip`"),
    ({}, {"rank_ip": "ipc:///tmp/x"}, "an address and a port are needed"),
]


@for_each(("info", "rank", "words"), ANSWERS)
def test_an_answer_that_cannot_be_costs_the_room_that_asked(
    info: dict[str, object], rank: dict[str, object], words: str
) -> None:
    with (
        bootstrap() as real,
        prefill_side(real.port) as prefill,
        decode_side() as decode,
        server(answering(INFO | info, RANK | rank)) as port,
    ):
        receiver = decode.manager.receiver(5, "r", HOST, port)  # type: ignore[union-attr]
        decode.until(receiver, KVPoll.FAILED)
        assert receiver.failure is not None
        assert words in receiver.failure.message
        lives(prefill, decode, real.port)


def test_an_answer_that_hits_a_bug_costs_the_room_that_asked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def bug(*given: object) -> None:
        raise ZeroDivisionError("a bug in the pairing")

    with bootstrap() as real, prefill_side(real.port) as prefill, decode_side() as decode:
        with monkeypatch.context() as patched, server(answering(INFO, RANK)) as port:
            patched.setattr("pdctl.engine.decode.prefill_directory.find_writers", bug)
            receiver = decode.manager.receiver(5, "r", HOST, port)  # type: ignore[union-attr]
            decode.until(receiver, KVPoll.FAILED)
        assert receiver.failure is not None
        assert receiver.failure.code == FailureCode.BOOTSTRAP_UNREACHABLE.value
        assert "ZeroDivisionError: a bug in the pairing" in receiver.failure.message
        lives(prefill, decode, real.port)
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("start", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n"])
def test_a_drip_of_an_answer_holds_a_thread_no_longer_than_silence(
    start: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pdctl.engine.kv_link.bootstrap_client.HEALTH_TIMEOUT", 1.0)
    over = threading.Event()

    def drip(taken: socket.socket, head: bytes) -> None:
        del head
        taken.sendall(start)
        while not over.wait(0.05):
            taken.sendall(b"x: y\r\n")

    with server(drip) as port:
        with pytest.raises(BootstrapError, match="no answer within 1 s"):
            asyncio.run(asyncio.wait_for(BootstrapClient().health(f"{HOST}:{port}"), PATIENCE))
        over.set()


def test_servers_that_let_us_wait_keep_nobody_from_being_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty of them, each waited for longer than the test has patience for the room that another server serves."""
    monkeypatch.setattr(BootstrapClient, "call", functools.partialmethod(BootstrapClient.call, timeout=2 * PATIENCE))
    with (
        socket.create_server(("0.0.0.0", 0), backlog=256) as silent,
        bootstrap() as real,
        prefill_side(real.port) as prefill,
        decode_side() as decode,
    ):
        port = int(silent.getsockname()[1])
        waiting = [
            decode.manager.receiver(100 + number, "r", f"127.0.0.{number + 2}", port)  # type: ignore[union-attr]
            for number in range(40)
        ]
        run_room(prefill, decode, 1, real.port)
        for receiver in waiting:
            receiver.abort("enough")
