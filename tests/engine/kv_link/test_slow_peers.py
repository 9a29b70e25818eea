"""One decode rank that takes no bytes: the rooms of all others go on."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pytest

from pdctl.engine.kv_link.room_state import FailureCode, KVPoll
from pdctl.engine.transfer.transport import Op, TransferPlan, Transport, TransportWrapper
from tests.engine.kv_link.rig import PATIENCE, bootstrap, decode_side, pages, prefill_side
from tests.engine.kv_link.rooms import failed, open_room, run_room


class Mired(TransportWrapper):
    """The first peer that is written to takes nothing until `free`."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self.caps = dataclasses.replace(inner.caps, prompt=False)
        self.free = threading.Event()
        self._slow = ""

    def post(self, plan: TransferPlan, src_pages: np.ndarray, dst_pages: np.ndarray) -> Op:
        self._slow = self._slow or plan.peer
        if plan.peer == self._slow:
            assert self.free.wait(PATIENCE)
        return super().post(plan, src_pages, dst_pages)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_write_that_does_not_return_holds_up_no_other_decode(threads: int) -> None:
    """With one thread the others wait a second for it, with two not at all."""
    made: list[Mired] = []

    def mired(inner: Transport) -> Transport:
        made.append(Mired(inner))
        return made[0]

    with (
        bootstrap() as server,
        prefill_side(
            server.port, wrap=mired, transfer_threads=threads, waiting_timeout=3.0, drain_grace=0.1
        ) as prefill,
        decode_side() as slow,
        decode_side() as quick,
    ):
        stuck, receiver = open_room(prefill, slow, 5, server.port)
        slow.until(receiver, KVPoll.WAITING_FOR_INPUT)
        receiver.send_metadata(pages(4, 5))
        stuck.send(pages(1, 2), last=True, metadata=b"token")
        prefill.until(stuck, KVPoll.TRANSFERRING)
        for room in (6, 7, 8):
            run_room(prefill, quick, room, server.port)
        assert stuck.poll() == KVPoll.TRANSFERRING
        failed(prefill, stuck, FailureCode.TRANSFER, "did not end within 3.0s")
        made[0].free.set()


def test_a_write_that_does_return_late_is_no_failure() -> None:
    made: list[Mired] = []

    def mired(inner: Transport) -> Transport:
        made.append(Mired(inner))
        return made[0]

    with (
        bootstrap() as server,
        prefill_side(server.port, wrap=mired, transfer_threads=1) as prefill,
        decode_side() as slow,
        decode_side() as quick,
    ):
        late, receiver = open_room(prefill, slow, 5, server.port)
        slow.until(receiver, KVPoll.WAITING_FOR_INPUT)
        receiver.send_metadata(pages(4, 5))
        late.send(pages(1), last=False)
        late.send(pages(2), last=True, metadata=b"token")
        prefill.until(late, KVPoll.TRANSFERRING)
        run_room(prefill, quick, 6, server.port)
        made[0].free.set()
        prefill.until(late, KVPoll.SUCCESS)
        slow.until(receiver, KVPoll.SUCCESS)
        run_room(prefill, slow, 7, server.port)
