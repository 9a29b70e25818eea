"""Rooms that go wrong while both sides live: a failure names what was missing, where, and reaches the other side."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from pdctl.engine.kv_link.room_state import FailureCode, KVPoll
from pdctl.engine.kvcache.pool_geometry import Layout
from tests.engine.kv_link.rig import HOST, Woken, bootstrap, decode_side, geometry, pages, prefill_side
from tests.engine.kv_link.rooms import announced, failed, finish, open_room, run_room
from tests.ports import free_port

# --- deadlines


def test_a_prefill_that_hears_from_no_decode_says_so_at_its_deadline() -> None:
    with bootstrap() as server, prefill_side(server.port, bootstrap_timeout=0.2) as prefill:
        sender = prefill.manager.sender(41, "lonely")
        failed(
            prefill, sender, FailureCode.BOOTSTRAP_TIMEOUT,
            "Request 41 timed out after ",
            "s in KVPoll.Bootstrapping (limit 0.2s): 0 of 1 decode ranks sent their page "
            "list", prefill.manager.endpoint,
        )  # fmt: skip
        assert sender.drained


def test_a_decode_that_waits_in_vain_tells_the_prefill_to_stop() -> None:
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side(waiting_timeout=0.3) as decode:
        sender = prefill.manager.sender(42, "slow")
        receiver = announced(prefill, decode, 42, server.port)
        failed(
            decode, receiver, FailureCode.WAITING_TIMEOUT,
            "Request 42 timed out after ", "s in KVPoll.WaitingForInput (limit 0.3s): no transfer-done signal from",
            prefill.manager.endpoint, f"(bootstrap_addr: {HOST}:{server.port})",
        )  # fmt: skip
        failed(prefill, sender, FailureCode.ABORTED, "Aborted by decode-side abort notification.")
        decode.until_drained(receiver)
        run_room(prefill, decode, 43, server.port)


def test_a_misrouted_request_is_reported_by_the_prefill_that_never_got_it() -> None:
    """The page list goes to one prefill, the request to another: the usual 300 s hang becomes one sentence."""
    with bootstrap() as server, prefill_side(server.port, unclaimed_ttl=0.2) as prefill, decode_side() as decode:
        receiver = announced(prefill, decode, 44, server.port)
        failed(
            decode, receiver, FailureCode.UNKNOWN_ROOM,
            f"prefill rank {prefill.manager.endpoint} (bootstrap server {HOST}:{server.port})",
            "has no request with room 44",
            "routed to another prefill",
        )  # fmt: skip
        assert receiver.drained


# --- the bootstrap server


def test_a_refused_bootstrap_port_is_named_with_its_likely_cause() -> None:
    port = free_port()
    with decode_side(topology_timeout=0.0) as decode:
        receiver = decode.manager.receiver(1, "r", HOST, port)
        failed(
            decode, receiver, FailureCode.BOOTSTRAP_UNREACHABLE,
            f"Could not fetch prefill parallel info from bootstrap_addr: {HOST}:{port}: http://{HOST}:{port}/route",
            "connection refused", "--disaggregation-bootstrap-port",
        )  # fmt: skip
        assert receiver.drained


@contextlib.contextmanager
def http_answering(status: int, body: bytes) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    server = HTTPServer((HOST, 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "text"),
    [
        (404, b'{"detail":"Not Found"}', "404; no bootstrap server there: is this a prefill's HTTP port?"),
        (400, b"Missing inputs for bootstrap server.", "a server of sglang 0.5.8 or older"),
        (200, b"<html>", "answered something else than SGLang's"),
        (200, b'{"attn_tp_size": "one"}', "answered something else than SGLang's"),
    ],
)
def test_a_wrong_server_fails_the_room_at_once(status: int, body: bytes, text: str) -> None:
    with http_answering(status, body) as port, decode_side() as decode:
        receiver = decode.manager.receiver(1, "r", HOST, port)
        failed(decode, receiver, FailureCode.BOOTSTRAP_UNREACHABLE, f"http://{HOST}:{port}/route", text)


SECRET = b"ssh-secret-of-another-server-0123456789"


@pytest.mark.parametrize("status", [200, 400, 403, 404])
@pytest.mark.parametrize("body", [SECRET, b'{"attn_tp_size": "%b"}' % SECRET, SECRET + b"\xff"])
def test_what_another_server_answers_is_in_the_log_and_not_told_to_the_client(
    status: int, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with http_answering(status, body) as port, decode_side() as decode:
        receiver = decode.manager.receiver(1, "r", HOST, port)
        failed(decode, receiver, FailureCode.BOOTSTRAP_UNREACHABLE, f"http://{HOST}:{port}/route")
    assert receiver.failure is not None
    assert "secret" not in receiver.failure.message
    assert str(status) in receiver.failure.message or "something else than SGLang's" in receiver.failure.message
    assert SECRET.decode() in "\n".join(one.getMessage() for one in caplog.records if "Prefill" not in one.getMessage())


def test_a_port_that_does_not_speak_http_is_told_apart() -> None:
    with socket.create_server((HOST, 0)) as listener, decode_side(topology_timeout=0.0) as decode:
        port = listener.getsockname()[1]
        receiver = decode.manager.receiver(1, "r", HOST, port)
        peer, _ = listener.accept()
        with peer:
            peer.sendall(b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f not http\r\n\r\n")
        failed(decode, receiver, FailureCode.BOOTSTRAP_UNREACHABLE, "no HTTP answer", "is this the bootstrap port")
        assert receiver.failure is not None
        assert "not http" not in receiver.failure.message


@pytest.mark.parametrize("host", ["no host", "exa mple", "[::1", "a:b:c", "a/b", "user@a", "a?b", ""])
def test_an_address_that_is_none_fails_the_room(host: str) -> None:
    with decode_side(topology_timeout=0.0) as decode:
        receiver = decode.manager.receiver(1, "r", host, 1)
        failed(decode, receiver, FailureCode.BOOTSTRAP_UNREACHABLE, "Could not fetch prefill parallel info")


def test_a_prefill_that_is_still_starting_is_waited_for() -> None:
    with bootstrap() as server, decode_side() as decode:
        receiver = decode.manager.receiver(50, "early", HOST, server.port)
        decode.woken.wait("first question", lambda: decode.manager.stats().rooms == 1)
        with prefill_side(server.port) as prefill:
            sender = prefill.manager.sender(50, "early")
            decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
            receiver.send_metadata(pages(1))
            sender.send(pages(1), last=True)
            decode.until(receiver, KVPoll.SUCCESS)


def test_an_incomplete_prefill_is_reported_with_the_count() -> None:
    with (
        bootstrap() as server,
        prefill_side(server.port, dp_size=2),
        decode_side(topology_timeout=0.0) as decode,
    ):
        receiver = decode.manager.receiver(1, "r", HOST, server.port)
        text = "503 Prefill server not fully registered yet (1 workers registered)."
        failed(decode, receiver, FailureCode.BOOTSTRAP_UNREACHABLE, text)


def test_a_dp_rank_that_does_not_exist_is_named() -> None:
    with bootstrap() as server, prefill_side(server.port), decode_side() as decode:
        receiver = decode.manager.receiver(1, "r", HOST, server.port, dp_rank=3)
        text = f"disagg_prefill_dp_rank=3 out of range [0, 1) of prefill {HOST}:{server.port}"
        failed(decode, receiver, FailureCode.NO_DP_RANK, text)


def test_a_rank_endpoint_nobody_listens_on_is_named() -> None:
    with bootstrap() as server, decode_side() as decode:
        with prefill_side(server.port) as gone:
            endpoint = gone.manager.endpoint
        receiver = decode.manager.receiver(1, "r", HOST, server.port)
        failed(
            decode, receiver, FailureCode.PREFILL_LOST, f"(bootstrap_addr: {HOST}:{server.port})", endpoint, "refused"
        )
        assert receiver.drained


# --- sides that do not fit


@pytest.mark.parametrize(
    ("settings", "shape", "text"),
    [
        ({"page_size": 8}, geometry(page_size=8), "prefill server has page_size=4, but decode server has page_size=8"),
        ({"kv_dtype": "bfloat16"}, geometry(), "kv_cache_dtype=float32, but decode server has kv_cache_dtype=bfloat16"),
        ({"pp_size": 2, "layers": 6}, geometry(), "prefill has pp_size=1, decode has pp_size=2"),
        ({}, geometry(layers=5), "prefill has num_layers=3, decode has num_layers=5"),
        ({"backend": "nixl"}, geometry(), "Transfer backend mismatch: prefill=shm, decode=nixl"),
    ],
)  # fmt: skip
def test_a_decode_that_does_not_fit_is_refused_at_once_with_both_values(
    settings: dict[str, object], shape: object, text: str
) -> None:
    if settings.get("backend") == "nixl":
        pytest.importorskip("nixl_cu12", reason="no NIXL wheel for this platform")
    with (
        bootstrap() as server,
        prefill_side(server.port) as prefill,
        decode_side(shape, **settings) as decode,  # type: ignore[arg-type]
    ):
        receiver = decode.manager.receiver(1, "r", HOST, server.port)
        failed(decode, receiver, FailureCode.MISMATCH, text)
        assert receiver.drained
        with decode_side(geometry(Layout.PAGE_MAJOR, 99)) as fitting:
            run_room(prefill, fitting, 2, server.port)


def test_page_lists_of_different_length_fail_both_sides_with_both_numbers() -> None:
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side() as decode:
        for room, sent in ((1, pages(1)), (2, pages(1, 2, 3))):
            sender, receiver = open_room(prefill, decode, room, server.port)
            decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
            receiver.send_metadata(pages(4, 5))
            sender.send(sent, last=True)
            text = f"prefill has {len(sent)} pages of room {room}, decode {decode.manager.endpoint} reserved 2"
            failed(prefill, sender, FailureCode.BAD_PAGES, text)
            failed(decode, receiver, FailureCode.BAD_PAGES, text)
            decode.until_drained(receiver)


def test_pages_outside_the_pool_never_reach_the_transport() -> None:
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side() as decode:
        before = decode.pool.copy()
        sender, receiver = open_room(prefill, decode, 1, server.port)
        decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
        receiver.send_metadata(pages(4, 32))
        sender.send(pages(1, 2), last=True)
        failed(
            prefill, sender, FailureCode.BAD_PAGES, "page 32 is outside the pool of 32 pages", decode.manager.endpoint
        )
        failed(decode, receiver, FailureCode.BAD_PAGES, "page 32 is outside the pool of 32 pages")
        sender, receiver = open_room(prefill, decode, 2, server.port)
        decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
        receiver.send_metadata(pages(4, 5))
        sender.send(pages(1, 77), last=True)
        failed(prefill, sender, FailureCode.TRANSFER, "source: page 77 is outside the pool")
        failed(decode, receiver, FailureCode.TRANSFER, "source: page 77 is outside the pool")
        assert (decode.pool == before).all()


# --- aborts


def test_a_prefill_that_gives_up_tells_the_decode_why() -> None:
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side() as decode:
        sender, receiver = open_room(prefill, decode, 1, server.port)
        decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
        receiver.send_metadata(pages(1, 2))
        prefill.until(sender, KVPoll.WAITING_FOR_INPUT)
        sender.send(pages(1), last=False)
        sender.abort("Aborted by AbortReq.")
        sender.send(pages(2), last=True)
        failed(prefill, sender, FailureCode.ABORTED, "Aborted by AbortReq.")
        failed(decode, receiver, FailureCode.ABORTED, "Aborted by AbortReq.")
        decode.until_drained(receiver)


def test_a_page_list_for_a_room_that_has_failed_is_answered_at_once() -> None:
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side() as decode:
        sender, receiver = open_room(prefill, decode, 1, server.port)
        decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
        sender.abort("client went away")
        failed(prefill, sender, FailureCode.ABORTED, "client went away")
        receiver.send_metadata(pages(1))
        failed(decode, receiver, FailureCode.ABORTED, "room 1 already failed on prefill rank", "client went away")
        decode.until_drained(receiver)


@pytest.mark.parametrize("when", ["before the handshake", "before the page list", "after the page list"])
def test_a_decode_that_gives_up_settles_and_the_prefill_fails(when: str) -> None:
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side() as decode:
        sender, receiver = open_room(prefill, decode, 1, server.port)
        if when != "before the handshake":
            decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
        if when == "after the page list":
            receiver.send_metadata(pages(1, 2))
            prefill.until(sender, KVPoll.WAITING_FOR_INPUT)
        receiver.abort("Aborted by AbortReq.")
        failed(decode, receiver, FailureCode.ABORTED, "Aborted by AbortReq.")
        decode.until_drained(receiver)
        failed(prefill, sender, FailureCode.ABORTED, "Aborted by decode-side abort notification.")
        assert decode.manager.stats().rooms == prefill.manager.stats().rooms == 0


def test_an_abort_before_the_request_arrives_takes_the_page_list_back_and_is_told_once() -> None:
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side() as decode:
        receiver = announced(prefill, decode, 1, server.port)
        receiver.abort()
        decode.until_drained(receiver)
        sender = prefill.manager.sender(1, "too late")
        failed(prefill, sender, FailureCode.ABORTED, "Aborted by decode-side abort notification.")
        # A page list that overtakes the request of its own room is told how the room ended the last time.
        again = prefill.manager.sender(1, "again")
        prefill.woken.wait("the request", lambda: prefill.manager.stats().rooms == 1)
        receiver = decode.manager.receiver(1, "again", HOST, server.port)
        decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
        receiver.send_metadata(pages(2, 3))
        again.send(pages(5, 6), last=True, metadata=b"m")
        finish(prefill, decode, again, receiver, b"m")


def test_clearing_an_unfinished_room_aborts_it() -> None:
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side() as decode:
        sender, receiver = open_room(prefill, decode, 1, server.port)
        decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
        receiver.send_metadata(pages(1, 2))
        prefill.until(sender, KVPoll.WAITING_FOR_INPUT)
        sender.clear()
        failed(prefill, sender, FailureCode.ABORTED)
        failed(decode, receiver, FailureCode.ABORTED)


def test_a_room_number_in_use_is_refused_on_either_side_and_the_first_room_goes_on() -> None:
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side() as decode:
        sender, receiver = open_room(prefill, decode, 9, server.port)
        second_sender, second_receiver = open_room(prefill, decode, 9, server.port)
        failed(prefill, second_sender, FailureCode.DUPLICATE_ROOM, "room 9 is already in use on this prefill rank")
        failed(decode, second_receiver, FailureCode.DUPLICATE_ROOM, "room 9 is already in use on this decode rank")
        assert second_receiver.drained
        decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
        receiver.send_metadata(pages(1))
        sender.send(pages(1), last=True)
        decode.until(receiver, KVPoll.SUCCESS)


# --- ends


@pytest.mark.parametrize("who", ["prefill", "decode"])
def test_closing_one_side_fails_its_rooms_and_tells_the_other(who: str) -> None:
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side() as decode:
        sender, receiver = open_room(prefill, decode, 1, server.port)
        decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
        receiver.send_metadata(pages(1, 2))
        prefill.until(sender, KVPoll.WAITING_FOR_INPUT)
        closing = prefill if who == "prefill" else decode
        closing.manager.close()
        prefill.until(sender, KVPoll.FAILED)
        decode.until(receiver, KVPoll.FAILED)
        decode.until_drained(receiver)
        late = prefill.manager.sender(2, "late") if who == "prefill" else decode.manager.receiver(2, "late", HOST, 1)
        assert late.poll() == KVPoll.FAILED
        assert late.failure is not None
        assert "has ended" in late.failure.message


def test_closing_is_idempotent_and_leaves_no_thread() -> None:
    before = threading.active_count()
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side() as decode:
        run_room(prefill, decode, 1, server.port)
        prefill.manager.close()
        prefill.manager.close()
        decode.manager.close()
    Woken().wait("end of every thread", lambda: threading.active_count() <= before)
