"""Peers that leave, come back or die while writes to them wait, and writes that are given up."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from pdctl.engine.transfer import workers
from pdctl.engine.transfer.transport import Op, OpState, TransferPlan, Transport
from tests.engine.transfer.backends import BACKENDS
from tests.engine.transfer.far import PATIENCE
from tests.engine.transfer.gates import DST, OTHER, SHAPE, SRC, Gate, rig


def test_what_no_thread_has_taken_yet_can_be_given_up() -> None:
    with rig(patience=3600.0) as one:
        plan, before = one.plan("a"), one.fars["a"].content()
        one.gate.shut["a"] = threading.Event()
        first, second = (one.transport.post(plan, SRC, pages) for pages in (DST, OTHER))
        assert one.gate.entered.wait(PATIENCE)
        assert not one.transport.release(first)
        assert one.transport.release(second)
        assert (second.state, second.nbytes, second.error) == (OpState.FAILED, 0, workers.GIVEN_UP)
        one.gate.shut["a"].set()
        assert one.turns.settled(first) == [OpState.DONE]
        assert one.arrived("a", before, DST), "the second one never moves"


def test_a_peer_that_leaves_takes_what_waits_with_it_and_may_come_back_under_its_name() -> None:
    with rig(patience=3600.0) as one:
        plan = one.plan("a")
        one.gate.shut["a"] = threading.Event()
        first, second = (one.transport.post(plan, SRC, pages) for pages in (DST, OTHER))
        assert one.gate.entered.wait(PATIENCE)
        one.transport.drop_peer("a")
        assert (second.state, second.error) == (OpState.FAILED, workers.GONE)
        late = one.transport.post(plan, SRC, DST)
        assert (late.state, late.error, late.peer) == (OpState.FAILED, workers.GONE, "a")
        new = one.plan("a")
        third = one.transport.post(new, SRC, OTHER)
        one.gate.shut["a"].set()
        assert one.turns.settled(first, third) == [OpState.DONE] * 2
        assert third.peer == "a"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_killed_peer_fails_its_own_writes_only(backend: str) -> None:
    with rig(backend) as one:
        plans = {name: one.plan(name) for name in "ab"}
        assert one.turns.settled(one.transport.post(plans["a"], SRC, DST)) == [OpState.DONE]
        one.fars["a"].kill()
        ops = [one.transport.post(plans[name], SRC, OTHER) for name in "ab"]
        assert one.turns.settled(*ops) == [OpState.FAILED, OpState.DONE]
        assert ops[0].error


class Erratic(Gate):
    """Some posts take a while, some are not done when they return, some polls say so and some do not."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self._random = np.random.default_rng(11)

    def post(self, plan: TransferPlan, src_pages: np.ndarray, dst_pages: np.ndarray) -> Op:
        made = super().post(plan, src_pages, dst_pages)
        if self._random.random() < 0.3:
            time.sleep(0.002)
        return Op(plan.peer, made.nbytes, OpState.RUNNING, handle=made) if self._random.random() < 0.5 else made

    def poll(self, op: Op) -> OpState:
        if isinstance(op.handle, Op) and self._random.random() < 0.5:
            op.state, op.handle = op.handle.state, None
        return op.state


def test_whatever_comes_and_goes_every_write_ends_and_none_is_lost() -> None:
    """Posts, departures, returns and withdrawals in random order; the patience is short enough to lose threads too."""
    random = np.random.default_rng(5)
    with rig(names="abcdef", count=2, gate=Erratic, patience=0.001) as one:
        plans = {name: one.plan(name) for name in one.fars}
        ops: list[tuple[str, Op, int]] = []
        for number in range(300):
            name, kind = str(random.choice(list(one.fars))), random.random()
            if kind < 0.9:
                dst = np.array([1 + number % 20], dtype=np.int32)
                ops.append((name, one.transport.post(plans[name], SRC[:1], dst), int(dst[0])))
            elif kind < 0.95:
                one.transport.drop_peer(name)
                plans[name] = one.plan(name)
            elif ops:
                one.transport.release(ops[int(random.integers(len(ops)))][1])
            while one.turns.calls and random.random() < 0.5:
                one.turns.calls.popleft()()
        one.turns.settled(*(op for _, op, _ in ops))
        last = [(name, one.transport.post(plan, SRC[:1], OTHER[:1]), int(OTHER[0])) for name, plan in plans.items()]
        assert one.turns.settled(*(op for _, op, _ in last)) == [OpState.DONE] * len(plans)
        ops += last
        assert all(op.peer == name for name, op, _ in ops)
        ours = one.pool[SHAPE.address(0, int(SRC[0])) :][: SHAPE.page_bytes]
        for name, op, page in ops:
            if op.state == OpState.DONE:
                assert np.array_equal(one.fars[name].content()[SHAPE.address(0, page) :][: SHAPE.page_bytes], ours)
            else:
                assert op.error in (workers.GONE, workers.GIVEN_UP)
