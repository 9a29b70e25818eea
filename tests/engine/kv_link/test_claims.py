"""Frames that can be read and make no sense: of another prefill's room, too early, of amounts that cannot be."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import msgspec
import pytest

from pdctl.engine.decode.rank_connection import RankConnection
from pdctl.engine.decode.receiver import KvReceiver
from pdctl.engine.ipc.messages import FrameError
from pdctl.engine.kv_link.kv_frames import AbortAck, Frame, Status, TransferInfo, codec, pack_pages
from pdctl.engine.kv_link.room_state import FailureCode, KVPoll
from pdctl.engine.prefill.sender import KvSender
from tests.engine.kv_link.rig import HOST, Side, bootstrap, decode_side, pages, prefill_side

ROOM, OTHER = 11, 12


def deliver(side: Side, *frames: Frame) -> None:
    """As they come over the socket: on the manager's own thread, each through the codec; returns when all are read."""
    done: list[bool] = []
    for frame in frames:
        side.manager.loop.call(lambda frame=frame: side.manager.on_frame(codec.encode(frame)))
    side.manager.loop.call(lambda: done.append(True))
    side.woken.wait("the frames to be read", lambda: done)


@contextlib.contextmanager
def waiting() -> Iterator[tuple[Side, Side, KvSender, KvReceiver, RankConnection]]:
    """A room between a prefill and a decode that waits for its page list, and the decode's connection to another."""
    with (
        bootstrap() as one,
        bootstrap() as two,
        prefill_side(one.port) as prefill,
        prefill_side(two.port) as another,
        decode_side() as decode,
    ):
        sender = prefill.manager.sender(ROOM, "r")
        receiver = decode.manager.receiver(ROOM, "r", HOST, one.port)
        far_sender = another.manager.sender(OTHER, "o")
        far = decode.manager.receiver(OTHER, "o", HOST, two.port)
        decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
        decode.until(far, KVPoll.WAITING_FOR_INPUT)
        assert far_sender.poll() == KVPoll.BOOTSTRAPPING
        yield prefill, decode, sender, receiver, far.connections[0]


def finish(prefill: Side, decode: Side, sender: KvSender, receiver: KvReceiver) -> None:
    """The room goes its way."""
    sender.send(pages(1, 2), last=True, metadata=b"first token")
    prefill.until(sender, KVPoll.SUCCESS)
    decode.until(receiver, KVPoll.SUCCESS)
    assert receiver.metadata == b"first token"


@pytest.mark.parametrize("status", [KVPoll.SUCCESS, KVPoll.FAILED, KVPoll.TRANSFERRING])
@pytest.mark.parametrize("announced", [False, True])
def test_another_prefill_has_no_say_in_a_room(
    status: KVPoll, announced: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with waiting() as (prefill, decode, sender, receiver, stranger), caplog.at_level(logging.WARNING, "pdctl.engine"):
        if announced:
            receiver.send_metadata(pages(3, 4))
        word = Status(ROOM, stranger.session, receiver.generation, status, 0, "transfer", "because", b"forged")
        deliver(decode, word, AbortAck(ROOM, stranger.session, receiver.generation, 0))
        assert not receiver.poll().final
        assert f"Ignoring Status of room {ROOM} from {stranger.endpoint}: it is {receiver.address}'s" in caplog.text
        if not announced:
            receiver.send_metadata(pages(3, 4))
        finish(prefill, decode, sender, receiver)


def test_a_success_before_the_page_list_is_none() -> None:
    with waiting() as (_, decode, _, receiver, _):
        own = receiver.connections[0]
        deliver(decode, Status(ROOM, own.session, receiver.generation, KVPoll.SUCCESS, 0, metadata=b"forged"))
        assert receiver.failure is not None
        assert receiver.failure.code == FailureCode.TRANSFER.value
        assert receiver.failure.message.endswith(f"says that it has written room {ROOM}: it was sent no page list")
        decode.until_drained(receiver)


def test_more_bytes_than_the_pages_hold_were_not_written() -> None:
    with waiting() as (_, decode, _, receiver, _):
        own, most = receiver.connections[0], 2 * decode.shape.page_bytes
        receiver.send_metadata(pages(3, 4))
        deliver(decode, Status(ROOM, own.session, receiver.generation, KVPoll.SUCCESS, 0, nbytes=most + 1))
        assert receiver.failure is not None
        assert f"{most + 1} bytes into pages of {most}" in receiver.failure.message


@pytest.mark.parametrize("field", [{"seconds": float("inf")}, {"seconds": float("nan")}, {"descriptors": 2**63 - 1}])
def test_amounts_that_no_sum_holds_are_refused(field: dict[str, float]) -> None:
    frame = codec.encode(msgspec.structs.replace(Status(ROOM, "s", 1, KVPoll.SUCCESS, 0), **field))
    with pytest.raises(FrameError, match=r"at `\$\."):
        codec.decode(frame)


def test_frames_of_an_unknown_room_and_those_that_come_twice_change_nothing() -> None:
    with waiting() as (prefill, decode, sender, receiver, _):
        own = receiver.connections[0]
        unknown = Status(99, own.session, receiver.generation, KVPoll.SUCCESS, 0)
        stale = Status(ROOM, own.session, receiver.generation + 5, KVPoll.FAILED, 0, "transfer", "because")
        deliver(decode, unknown, stale, AbortAck(ROOM, own.session, receiver.generation, 0))
        receiver.send_metadata(pages(3, 4))
        prefill.until(sender, KVPoll.WAITING_FOR_INPUT)
        again = TransferInfo(ROOM, own.session, decode.manager.endpoint, receiver.generation, pack_pages(pages(5, 6)))
        deliver(prefill, again, again)
        finish(prefill, decode, sender, receiver)
        word = Status(ROOM, own.session, receiver.generation, KVPoll.FAILED, 0, "transfer", "because")
        deliver(decode, word, word)
        deliver(prefill, again)
        assert (receiver.poll(), sender.poll(), receiver.failure) == (KVPoll.SUCCESS, KVPoll.SUCCESS, None)
