"""Writes that are still under way when their post returns."""

from __future__ import annotations

import threading

import pytest

from pdctl.engine.transfer import workers
from pdctl.engine.transfer.transport import OpState
from tests.engine.transfer.far import PATIENCE
from tests.engine.transfer.gates import DST, OTHER, SRC, Unfinished, rig


def test_a_write_that_is_not_done_when_posted_is_looked_at_until_it_is() -> None:
    with rig(gate=Unfinished) as one:
        assert isinstance(one.gate, Unfinished)
        op = one.transport.post(one.plan("a"), SRC, DST)
        one.turns.until("begun write", lambda: op.begun)
        assert op.state == OpState.RUNNING
        quick = one.transport.post(one.plan("b"), SRC, DST)
        one.turns.until("begun write", lambda: quick.begun)
        one.gate.finished.set()
        assert one.turns.settled(op, quick) == [OpState.DONE] * 2


@pytest.mark.parametrize("how", ["release", "drop_peer"])
def test_a_write_under_way_can_be_cancelled(how: str) -> None:
    with rig(gate=Unfinished) as one:
        op = one.transport.post(one.plan("a"), SRC, DST)
        one.turns.until("begun write", lambda: op.begun)
        if how == "release":
            assert not one.transport.release(op), "its thread has to do it"
        else:
            one.transport.drop_peer("a")
        assert one.turns.settled(op) == [OpState.FAILED]
        assert op.error == (workers.GIVEN_UP if how == "release" else workers.GONE)


def test_a_write_that_cannot_be_cancelled_is_looked_at_to_its_end() -> None:
    with rig(gate=Unfinished) as one:
        assert isinstance(one.gate, Unfinished)
        one.gate.releasable = False
        op = one.transport.post(one.plan("a"), SRC, DST)
        one.turns.until("begun write", lambda: op.begun)
        one.transport.drop_peer("a")
        one.gate.finished.set()
        assert one.turns.settled(op) == [OpState.DONE]


def test_writes_under_way_move_to_the_next_thread() -> None:
    with rig(gate=Unfinished) as one:
        assert isinstance(one.gate, Unfinished)
        plans = {name: one.plan(name) for name in "ab"}
        running = one.transport.post(plans["b"], SRC, DST)
        one.turns.until("begun write", lambda: running.begun)
        one.gate.shut["a"] = threading.Event()
        stuck = one.transport.post(plans["a"], SRC, DST)
        assert one.gate.entered.wait(PATIENCE)
        behind = one.transport.post(plans["b"], SRC, OTHER)
        one.turns.until("begun write", lambda: behind.begun)
        one.gate.finished.set()
        assert one.turns.settled(running, behind) == [OpState.DONE] * 2
        one.gate.shut["a"].set()
        assert one.turns.settled(stuck) == [OpState.DONE]
