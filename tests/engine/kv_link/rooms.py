"""Whole rooms between two sides, and how they end."""

from __future__ import annotations

import socket

import numpy as np

from pdctl.engine.decode.receiver import Receiver
from pdctl.engine.kv_link.room_state import FailureCode, KVPoll
from pdctl.engine.prefill.sender import Sender
from tests.engine.kv_link.rig import HOST, Side, pages


def assert_moved(prefill: Side, decode: Side, src: np.ndarray, dst: np.ndarray) -> None:
    for slab in range(prefill.shape.num_slabs):
        for one, two in zip(src.tolist(), dst.tolist(), strict=True):
            assert np.array_equal(prefill.item(slab, one), decode.item(slab, two)), (slab, one, two)


def open_room(prefill: Side, decode: Side, room: int, port: int) -> tuple[Sender, Receiver]:
    sender = prefill.manager.sender(room, f"rid-{room}")
    receiver = decode.manager.receiver(room, f"rid-{room}", HOST, port)
    return sender, receiver


def finish(prefill: Side, decode: Side, sender: Sender, receiver: Receiver, metadata: bytes) -> None:
    decode.until(receiver, KVPoll.SUCCESS)
    prefill.until(sender, KVPoll.SUCCESS)
    assert receiver.metadata == metadata
    assert receiver.drained
    assert sender.drained
    assert receiver.failure is None
    assert sender.failure is None


def run_room(prefill: Side, decode: Side, room: int, port: int) -> None:
    sender, receiver = open_room(prefill, decode, room, port)
    decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
    receiver.send_metadata(pages(2, 3))
    sender.send(pages(5, 6), last=True, metadata=b"m")
    finish(prefill, decode, sender, receiver, b"m")
    assert_moved(prefill, decode, pages(5, 6), pages(2, 3))
    sender.clear()
    receiver.clear()


def routed_ip() -> str:
    """This machine's address on its default route; a loopback one when it has none. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return HOST
        return str(probe.getsockname()[0])


def failed(side: Side, room: object, code: FailureCode, *texts: str) -> None:
    side.until(room, KVPoll.FAILED)  # type: ignore[arg-type]
    failure = room.failure  # type: ignore[attr-defined]
    assert failure.code == code.value
    for text in texts:
        assert text in failure.message


def announced(prefill: Side, decode: Side, room: int, port: int) -> Receiver:
    """A receiver whose page list is on its way."""
    receiver = decode.manager.receiver(room, f"rid-{room}", HOST, port)
    decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
    receiver.send_metadata(pages(1, 2))
    return receiver


def lives(prefill: Side, decode: Side, port: int) -> None:
    """A room goes through as if nothing had been."""
    assert not prefill.manager.ended
    assert not decode.manager.ended
    run_room(prefill, decode, 1, port)
