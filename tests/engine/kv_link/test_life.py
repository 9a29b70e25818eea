"""What a manager does besides rooms: it sleeps, logs every step of a room, and does not take its rank down silently."""

from __future__ import annotations

import logging
import re
import time

import pytest

from pdctl.engine.kv_link.room_state import FailureCode, KVPoll
from pdctl.engine.prefill.prefill_manager import PrefillManager
from pdctl.engine.transfer import select
from tests.engine.kv_link.rig import HOST, PREFILL, bootstrap, decode_side, geometry, pages, prefill_side
from tests.engine.kv_link.rooms import failed, open_room, run_room
from tests.engine.transfer.backends import BACKENDS


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_idle_pair_sleeps(backend: str) -> None:
    """At most 0.02 core for both ends together, with heartbeats at SGLang's pace."""
    with (
        bootstrap() as server,
        prefill_side(server.port, backend=backend) as prefill,
        decode_side(backend=backend) as decode,
    ):
        run_room(prefill, decode, 1, server.port)
        began, used = time.monotonic(), time.process_time()
        prefill.woken.event.clear()
        prefill.woken.event.wait(1.5)
        assert (time.process_time() - used) / (time.monotonic() - began) < 0.02


def test_every_step_of_a_rooms_life_is_a_line_at_info_that_carries_the_room(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pdctl.engine")
    room = 4503599627370496
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side() as decode:
        run_room(prefill, decode, room, server.port)
    lines = [record.getMessage() for record in caplog.records if f"room={room}" in record.getMessage()]
    steps = [
        rf"room={room} rid='rid-{room}' waits for the decode's page list on tcp://",
        rf"room={room} rid='rid-{room}' resolves prefill bootstrap_addr={HOST}:{server.port}",
        rf"room={room} handshake with {HOST}:{server.port} done",
        rf"room={room} rid='rid-{room}' announced pages=2 to=tcp://",
        rf"got info room={room} agent_name='[0-9a-f]+' required_dst_info_num=1$",
        rf"room={room} is bootstrapped$",
        rf"room={room} sent chunk pages=2 last=True bytes=",
        rf"room={room} KV transfer done rid='rid-{room}' pages=2",
        rf"room={room} KV cache arrived rid='rid-{room}' pages=2",
    ]
    assert f"Sending to prefill server with bootstrap room {room} is_dummy=False" in caplog.messages
    for step in steps:
        assert any(re.match(step, line) for line in lines), step


def test_an_aborted_room_leaves_sglangs_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pdctl.engine")
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side() as decode:
        sender, receiver = open_room(prefill, decode, 77, server.port)
        decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
        receiver.send_metadata(pages(1))
        prefill.until(sender, KVPoll.WAITING_FOR_INPUT)
        receiver.abort("Aborted by AbortReq.")
        prefill.until(sender, KVPoll.FAILED)
        decode.until_drained(receiver)
    address = prefill.manager.endpoint.removeprefix("tcp://")
    assert f"Sent abort notification for room 77 to {address}" in caplog.messages
    assert "Received abort notification for room 77, marked as Failed" in caplog.messages
    assert "room=77 sender failed rid='rid-77' code=aborted: Aborted by decode-side abort notification." in caplog.text
    assert "room=77 receiver failed rid='rid-77' code=aborted: Aborted by AbortReq." in caplog.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_manager_that_dies_fails_its_rooms_and_every_later_one(role: str, caplog: pytest.LogCaptureFixture) -> None:
    def bug() -> None:
        raise ZeroDivisionError("a bug in the manager")

    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side() as decode:
        sender, receiver = open_room(prefill, decode, 1, server.port)
        decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
        side, room = (prefill, sender) if role == "prefill" else (decode, receiver)
        side.manager.loop.call(bug)
        failed(side, room, FailureCode.MANAGER_DIED, f"the KV manager of {role} rank {side.manager.endpoint} has ended")
        side.woken.wait("end of the thread", lambda: side.manager.ended)
        late = prefill.manager.sender(2, "r") if role == "prefill" else decode.manager.receiver(2, "r", HOST, 1)
        assert late.poll() == KVPoll.FAILED
        assert late.drained
    assert "KV manager thread died; every room of this rank fails" in caplog.text
    assert "a bug in the manager" in caplog.text


def test_statistics_count_what_happened() -> None:
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side() as decode:
        for room in (1, 2):
            run_room(prefill, decode, room, server.port)
        sender = prefill.manager.sender(3, "r")
        sender.abort("enough")
        prefill.until(sender, KVPoll.FAILED)
        stats = prefill.manager.stats()
        assert (stats.succeeded, stats.failed, stats.rooms, stats.draining, stats.peers) == (2, 1, 0, 0, 1)
        assert stats.nbytes == 4 * prefill.shape.page_bytes
        assert decode.manager.stats().nbytes == stats.nbytes


def test_a_manager_that_was_never_started_closes_and_refuses_rooms() -> None:
    transport = select.create("shm", HOST)
    transport.register(transport.allocate(geometry().nbytes))
    manager = PrefillManager(PREFILL, transport, geometry(), lambda: None)
    early = manager.sender(1, "before the start")
    manager.close()
    assert manager.ended
    assert early.poll() == manager.sender(2, "after the end").poll() == KVPoll.FAILED
