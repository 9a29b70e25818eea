"""Rooms that end in every way at random moments, over pages that are reused the moment they are said to be drained."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

from pdctl.engine.decode.receiver import Receiver
from pdctl.engine.kv_link.room_state import KVPoll
from pdctl.engine.kvcache.pool_geometry import Layout
from pdctl.engine.prefill.sender import Sender
from tests.engine.kv_link.rig import HOST, Side, bootstrap, decode_side, geometry, prefill_side
from tests.engine.transfer.backends import BACKENDS

ROOMS, AT_ONCE, PAGES = 400, 24, 120


@dataclass
class Run:
    sender: Sender
    receiver: Receiver
    src: np.ndarray
    dst: np.ndarray
    announced: bool = False
    sent: int = 0


class Scheduler:
    """Both sides' schedulers in one loop.

    A decode page is given back, and painted, only when its room's receiver has drained: a write that lands later shows.
    """

    def __init__(self, prefill: Side, decode: Side, port: int) -> None:
        self.prefill, self.decode, self.port = prefill, decode, port
        self.dice = random.Random(11)
        self.free = list(range(1, PAGES))
        self.runs: list[Run] = []
        self.outcomes: Counter[str] = Counter()

    def open(self, room: int) -> None:
        count = self.dice.randint(1, 4)
        dst = np.array([self.free.pop(self.dice.randrange(len(self.free))) for _ in range(count)], dtype=np.int32)
        for page in dst.tolist():
            self.check_paint(page)
        src = np.array(self.dice.sample(range(1, PAGES), count), dtype=np.int32)
        sender = self.prefill.manager.sender(room, f"rid-{room}")
        receiver = self.decode.manager.receiver(room, f"rid-{room}", HOST, self.port)
        self.runs.append(Run(sender, receiver, src, dst))

    def step(self, run: Run) -> bool:
        """Give the room a push; True when it is over and its pages were returned."""
        if not run.announced and run.receiver.poll() == KVPoll.WAITING_FOR_INPUT:
            run.announced = True
            run.receiver.send_metadata(run.dst)
        elif run.sent < len(run.src) and self.dice.random() < 0.5:
            count = self.dice.randint(1, len(run.src) - run.sent)
            chunk, run.sent = run.src[run.sent : run.sent + count], run.sent + count
            run.sender.send(chunk, last=run.sent == len(run.src), metadata=b"m")
            if self.dice.random() < 0.2:  # the write is on its way: the worst moment
                run.receiver.abort("decode's choice")
        chance = self.dice.random()
        if chance < 0.01:
            run.sender.abort("prefill's choice")
        elif chance < 0.02:
            run.receiver.abort("decode's choice")
        return self.over(run)

    def over(self, run: Run) -> bool:
        state = run.receiver.poll()
        if state == KVPoll.SUCCESS:
            self.verify(run)
        if not (state.final and run.receiver.drained):
            return False
        self.outcomes[state.name] += 1
        for page in run.dst.tolist():
            self.paint(page)
            self.free.append(page)
        return True

    def paint(self, page: int) -> None:
        for slab in range(self.decode.shape.num_slabs):
            self.decode.item(slab, page)[:] = page

    def check_paint(self, page: int) -> None:
        for slab in range(self.decode.shape.num_slabs):
            assert (self.decode.item(slab, page) == page).all(), f"a write came after page {page} was drained"

    def verify(self, run: Run) -> None:
        for slab in range(self.prefill.shape.num_slabs):
            for one, two in zip(run.src.tolist(), run.dst.tolist(), strict=True):
                assert np.array_equal(self.prefill.item(slab, one), self.decode.item(slab, two)), run.sender.room


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_write_lands_in_pages_that_were_drained(backend: str) -> None:
    with (
        bootstrap() as server,
        prefill_side(server.port, geometry(num_pages=PAGES), backend=backend, bootstrap_timeout=1.0) as prefill,
        decode_side(geometry(Layout.PAGE_MAJOR, PAGES), backend=backend, waiting_timeout=1.0) as decode,
    ):  # fmt: skip
        schedule, room = Scheduler(prefill, decode, server.port), 0
        for page in schedule.free:
            schedule.paint(page)

        def turn() -> bool:
            nonlocal room
            while room < ROOMS and len(schedule.runs) < AT_ONCE:
                room += 1
                schedule.open(room)
            schedule.runs = [run for run in schedule.runs if not schedule.step(run)]
            return room == ROOMS and not schedule.runs

        decode.woken.wait("end of every room", turn, seconds=60)
        assert sorted(schedule.free) == list(range(1, PAGES))
        for page in schedule.free:
            schedule.check_paint(page)
        assert min(schedule.outcomes["SUCCESS"], schedule.outcomes["FAILED"]) > ROOMS // 10, schedule.outcomes
        prefill.woken.wait("end of every sender", lambda: prefill.manager.stats().rooms == 0)
        assert decode.manager.stats().rooms == 0
        assert prefill.manager.stats().draining == decode.manager.stats().draining == 0
