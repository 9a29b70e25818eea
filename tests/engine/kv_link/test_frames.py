"""What travels between ranks, and what happens when something else does: dropped, logged, and the thread goes on."""

from __future__ import annotations

import logging

import msgspec
import numpy as np
import pytest

from pdctl.engine.ipc.messages import FrameError
from pdctl.engine.kv_link.kv_frames import (
    KIND,
    MAX_FRAME,
    Abort,
    AbortAck,
    Frame,
    Status,
    clipped,
    codec,
    pack_pages,
    unpack_pages,
)
from pdctl.engine.kv_link.room_state import KVPoll
from pdctl.engine.prefill.unclaimed_rooms import CAPACITY, SHARE
from tests.cases import for_each
from tests.engine.kv_link.impostor import ENDPOINT, FRAMES, REGISTER, Impostor, dialled
from tests.engine.kv_link.rig import bootstrap, decode_side, pages, prefill_side
from tests.engine.kv_link.rooms import run_room


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_every_frame_survives_the_wire(frame: Frame) -> None:
    assert codec.decode(codec.encode(frame)) == frame


def test_page_lists_are_little_endian_int32() -> None:
    assert pack_pages(pages(1, 258)) == b"\x01\x00\x00\x00\x02\x01\x00\x00"
    assert np.array_equal(unpack_pages(pack_pages(pages(4, 0, 99))), pages(4, 0, 99))


def test_a_long_reason_is_clipped_so_that_the_frame_can_be_read() -> None:
    status = Status(1, "s", 1, KVPoll.FAILED, 0, "code", clipped("x" * 10_000))
    assert codec.decode(codec.encode(status)) == status


def body(**fields: object) -> bytes:
    return codec.encode(REGISTER)[:4] + msgspec.msgpack.encode(fields)


MALFORMED = {
    "empty": (b"", "not a frame of this socket"),
    "foreign": (b"NixlMsgGuard", "not a frame of this socket"),
    "version": (b"PD\x63" + bytes([KIND]) + b"\x80", "frame format 99"),
    "other socket": (b"PD\x01\x01\x80", "not a frame of this socket"),
    "truncated": (codec.encode(REGISTER)[:60], "truncated"),
    "unknown tag": (body(type="pickle", data=b"x"), "Invalid value 'pickle'"),
    "field missing": (body(type="abort", room=1), "missing required field"),
    "wrong type": (body(type="unregister", session=7), r"at `\$\.session`"),
    "negative room": (
        body(type="abort", room=-1, session="s", endpoint=ENDPOINT, generation=1, reason=""), r"at `\$\.room`"
    ),
    "no endpoint": (
        body(type="abort", room=1, session="s", endpoint="ipc:///tmp/x", generation=1, reason=""), r"at `\$\.endpoint`"
    ),
    "impossible geometry": (
        codec.encode(REGISTER).replace(b"\xa6layers\x03", b"\xa6layers\x00"), "layers=0 must be at least 1"
    ),
    "too large": (b"PD\x01" + bytes([KIND]) + b"\x00" * MAX_FRAME, "over the limit"),
}  # fmt: skip


@for_each("name", MALFORMED)
def test_a_malformed_frame_says_which_rule_it_broke(name: str) -> None:
    frame, text = MALFORMED[name]
    with pytest.raises(FrameError, match=text):
        codec.decode(frame)


DEEP = codec.encode(REGISTER)[:4] + b"\x82\xa4type\xa5abort\xa1x" + b"\x91" * 200_000


def test_garbage_on_either_socket_is_counted_and_the_rooms_go_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "pdctl.engine")
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side() as decode:
        for side in (prefill, decode):
            with dialled(side.manager.endpoint) as push:
                for frame, _ in MALFORMED.values():
                    push.send(frame)
                push.send(DEEP)
                push.send_multipart([b"None", b"127.0.0.1", b"1234"])
            wanted = len(MALFORMED) + 2
            side.woken.wait("rejected frames", lambda s=side, n=wanted: s.manager.stats().rejected_frames == n)  # type: ignore[misc]
        run_room(prefill, decode, 1, server.port)
    assert "Rejected a frame of" in caplog.text


def test_frames_that_belong_to_the_other_role_are_ignored() -> None:
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side() as decode:
        for side in (prefill, decode):
            with dialled(side.manager.endpoint) as push:
                for frame in FRAMES:
                    push.send(codec.encode(frame))
        run_room(prefill, decode, 1, server.port)
        assert decode.manager.stats().peers == 1


def test_a_page_list_from_a_stranger_is_answered_with_the_reason() -> None:
    with bootstrap() as server, prefill_side(server.port) as prefill, Impostor(prefill.manager.endpoint) as stranger:
        stranger.send(stranger.info(3, pack_pages(pages(1))))
        answer = stranger.receive()
        assert isinstance(answer, Status)
        assert (answer.room, answer.generation, answer.status, answer.code) == (3, 1, KVPoll.FAILED, "unknown_session")
        assert "is not registered with prefill rank" in answer.reason
        stranger.send(Abort(3, stranger.session, stranger.endpoint, 1))
        assert stranger.receive() == AbortAck(3, stranger.session, 1, 0)


@pytest.mark.parametrize("endpoint", ["tcp://exa mple:1", "tcp://*:5", "tcp://127.0.0.1:99999", "tcp://[::1:5"])
def test_an_endpoint_nobody_can_dial_costs_nothing(endpoint: str) -> None:
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side() as decode:
        with dialled(prefill.manager.endpoint) as push:
            push.send(codec.encode(msgspec.structs.replace(REGISTER, endpoint=endpoint)))
            push.send(codec.encode(Abort(2, "nobody", endpoint, 1)))
        run_room(prefill, decode, 1, server.port)


def test_a_registration_with_a_descriptor_of_nothing_is_refused() -> None:
    with bootstrap() as server, prefill_side(server.port) as prefill, Impostor(prefill.manager.endpoint) as liar:
        answer = liar.register(b"\x00" * 40)
        assert not answer.accepted
        assert "sent no shared-memory handle" in answer.reason
        assert prefill.manager.stats().peers == 0


def test_the_first_page_list_of_a_room_counts_and_half_a_page_id_is_refused() -> None:
    with (
        bootstrap() as server,
        prefill_side(server.port) as prefill,
        decode_side() as memory,
        Impostor(prefill.manager.endpoint) as rank,
    ):
        assert rank.register(memory.manager.transport.descriptor()).accepted
        rank.send(rank.info(8, b"\x01\x00\x00"))
        assert "3 bytes are not whole page ids" in getattr(rank.receive(), "reason", "")
        before = memory.pool.copy()
        sender = prefill.manager.sender(8, "twice")
        rank.send(rank.info(8, pack_pages(pages(5))))
        prefill.until(sender, KVPoll.WAITING_FOR_INPUT)
        rank.send(rank.info(8, pack_pages(pages(6)), generation=2))
        sender.send(pages(2), last=True, metadata=b"m")
        answer = rank.receive()
        assert isinstance(answer, Status)
        assert (answer.status, answer.generation, answer.metadata) == (KVPoll.SUCCESS, 1, b"m")
        assert np.array_equal(memory.item(0, 5), prefill.item(0, 2))
        start = memory.shape.address(0, 6)
        assert np.array_equal(memory.item(0, 6), before[start : start + memory.shape.item_bytes])


def test_page_lists_without_a_request_are_bounded_and_the_oldest_is_told() -> None:
    with (
        bootstrap() as server,
        prefill_side(server.port) as prefill,
        decode_side() as memory,
        Impostor(prefill.manager.endpoint) as rank,
    ):
        assert rank.register(memory.manager.transport.descriptor()).accepted
        for room in range(CAPACITY // SHARE + 1):
            rank.send(rank.info(room, pack_pages(pages(1))))
        answer = rank.receive()
        assert isinstance(answer, Status)
        assert (answer.room, answer.code) == (0, "unknown_room")
        assert f"more than {CAPACITY // SHARE} page lists of it wait" in answer.reason


def test_two_decodes_that_claim_one_room_are_both_answered() -> None:
    """The first one's pages do not exist: the room is over before the second one's list is looked at."""
    with (
        bootstrap() as server,
        prefill_side(server.port) as prefill,
        decode_side() as memory,
        Impostor(prefill.manager.endpoint) as second,
    ):
        with Impostor(prefill.manager.endpoint) as first:
            for rank, page in ((first, 999), (second, 1)):
                assert rank.register(memory.manager.transport.descriptor()).accepted
                rank.send(rank.info(9, pack_pages(pages(page))))
                rank.send(rank.info(5, b"?"))  # refused at once: the list before it has been read by then
                assert getattr(rank.receive(), "room", None) == 5
            sender = prefill.manager.sender(9, "r")
            prefill.until(sender, KVPoll.FAILED)
            for rank in (first, second):
                answer = rank.receive()
                assert isinstance(answer, Status)
                assert (answer.room, answer.code) == (9, "bad_pages")
        prefill.woken.wait("end of the first session", lambda: prefill.manager.stats().peers == 1)
        run_room(prefill, memory, 10, server.port)
