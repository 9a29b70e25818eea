"""Rooms whose KV cache crosses a modelled link: they wait for it without looking all the time, and fail with it."""

from __future__ import annotations

from collections.abc import Callable

from pdctl.engine.drill.kv_faults import DOWN, ShapedTransport
from pdctl.engine.drill.modelled_link import ModelledLink, Window
from pdctl.engine.kv_link.room_state import KVPoll
from pdctl.engine.transfer.transport import Op, OpState, Transport
from tests.engine.kv_link.rig import bootstrap, decode_side, pages, prefill_side
from tests.engine.kv_link.rooms import announced, run_room

ROOM = 7101


class Watched(ShapedTransport):
    """Counts how often somebody looks whether a write is over."""

    looks = 0

    def poll(self, op: Op) -> OpState:
        self.looks += 1
        return super().poll(op)


def behind(link: ModelledLink, made: list[Watched]) -> Callable[[Transport], Transport]:
    def wrap(inner: Transport) -> Transport:
        made.append(Watched(inner, link))
        return made[-1]

    return wrap


def test_a_room_waits_for_its_link_and_nobody_looks_in_vain() -> None:
    made: list[Watched] = []
    with (
        bootstrap() as server,
        prefill_side(server.port, wrap=behind(ModelledLink(op=0.25), made)) as prefill,
        decode_side() as decode,
    ):
        run_room(prefill, decode, ROOM, server.port)
        assert prefill.manager.stats().succeeded == 1
        # When posted and when due; a few more where a timer was early. Every millisecond would be 250.
        assert 2 <= made[0].looks <= 25


def test_a_link_that_goes_down_fails_what_is_on_it() -> None:
    made: list[Watched] = []
    flapping = ModelledLink(op=3600.0, flap=Window(0.05, 0.1))
    with (
        bootstrap() as server,
        prefill_side(server.port, wrap=behind(flapping, made)) as prefill,
        decode_side() as decode,
    ):
        receiver = announced(prefill, decode, ROOM, server.port)
        prefill.manager.sender(ROOM, "flap").send(pages(5, 6), last=True, metadata=b"m")
        decode.until(receiver, KVPoll.FAILED)
        assert receiver.failure is not None
        assert DOWN in receiver.failure.message
