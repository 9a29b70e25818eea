"""A page list at the wrong prefill: SGLang's lines at once, then a word to the decode, or none in a rehearsal."""

from __future__ import annotations

import logging

import pytest

from pdctl.engine.kv_link.room_state import FailureCode
from tests.engine.kv_link.rig import HOST, bootstrap, decode_side, geometry, pages, prefill_side
from tests.engine.kv_link.rooms import announced, failed, finish

ROOM = 7001


def said(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [message for message in caplog.messages if text in message]


def test_a_prefill_that_rehearses_keeps_the_room_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    """The decode waits out its own time; then the room is let go of on both sides."""
    caplog.set_level(logging.INFO, "pdctl.engine")
    quiet = {"tell_unclaimed": False, "unclaimed_ttl": 60.0, "bootstrap_timeout": 0.05}
    with (
        bootstrap() as server,
        prefill_side(server.port, **quiet) as prefill,
        decode_side(waiting_timeout=0.3) as decode,
    ):
        receiver = announced(prefill, decode, ROOM, server.port)
        failed(decode, receiver, FailureCode.WAITING_TIMEOUT, f"Request {ROOM} timed out after ", "(limit 0.3s)")
        decode.until_drained(receiver)
        assert said(caplog, f"got info room={ROOM} agent_name='")
        assert said(caplog, f"room={ROOM} is bootstrapped")
        assert said(caplog, f"Received abort notification for room {ROOM}, marked as Failed")
        assert not said(caplog, "has no request with room")
        for side in (prefill, decode):
            side.woken.wait("end of the room", lambda side=side: not side.manager.stats().rooms)


def test_a_room_nobody_asks_for_is_let_go_of_in_the_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pdctl.engine")
    with (
        bootstrap() as server,
        prefill_side(server.port, tell_unclaimed=False, unclaimed_ttl=0.05) as prefill,
        decode_side(waiting_timeout=0.5) as decode,
    ):
        receiver = announced(prefill, decode, ROOM, server.port)
        failed(decode, receiver, FailureCode.WAITING_TIMEOUT, "KVPoll.WaitingForInput")
        decode.until_drained(receiver)
        assert said(caplog, f"room={ROOM} no request for it came here: prefill rank {prefill.manager.endpoint}")
        assert said(caplog, f"Received abort notification for room {ROOM}, ignoring (already completed or unknown)")


def test_a_page_list_before_its_request_is_noted_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pdctl.engine")
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side() as decode:
        receiver = announced(prefill, decode, ROOM, server.port)
        prefill.woken.wait("page list", lambda: said(caplog, f"room={ROOM} is bootstrapped"))
        sender = prefill.manager.sender(ROOM, "late")
        sender.send(pages(5, 6), last=True, metadata=b"m")
        finish(prefill, decode, sender, receiver, b"m")
    assert len(said(caplog, f"got info room={ROOM}")) == len(said(caplog, f"room={ROOM} is bootstrapped")) == 1


def test_a_decode_that_rehearses_tells_no_prefill_what_does_not_fit(caplog: pytest.LogCaptureFixture) -> None:
    """The prefill waits out its own time, also when the decode's process lives on long enough to tell it."""
    caplog.set_level(logging.INFO, "pdctl.engine")
    with (
        bootstrap() as server,
        prefill_side(server.port, bootstrap_timeout=1.0) as prefill,
        decode_side(geometry(layers=5), tell_given_up=False) as decode,
    ):
        sender = prefill.manager.sender(ROOM, "r")
        receiver = decode.manager.receiver(ROOM, "r", HOST, server.port)
        failed(decode, receiver, FailureCode.MISMATCH)
        failed(prefill, sender, FailureCode.BOOTSTRAP_TIMEOUT, "KVPoll.Bootstrapping")
        assert not said(caplog, f"Received abort notification for room {ROOM}")
