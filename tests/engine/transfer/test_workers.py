"""Writes on threads of their own: what is moved, what waits for whom, and what a call that never returns costs."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pytest

from pdctl.engine.transfer import workers
from pdctl.engine.transfer.transport import Op, OpState, TransferPlan
from pdctl.thread_death import ThreadEndedError
from tests.engine.transfer.backends import BACKENDS
from tests.engine.transfer.far import PATIENCE
from tests.engine.transfer.gates import DST, OTHER, SHAPE, SRC, Gate, rig


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_posted_arrives_and_its_end_is_told_on_the_loops_thread(backend: str) -> None:
    with rig(backend, "a") as one:
        before = one.fars["a"].content()
        op = one.transport.post(one.plan("a"), SRC, DST)
        assert (op.state, op.begun) == (OpState.RUNNING, False)
        assert one.transport.poll(op) == OpState.RUNNING, "nothing changes before the loop's next turn"
        assert one.turns.settled(op) == [OpState.DONE]
        assert op.peer == "a"
        assert op.nbytes == 3 * SHAPE.page_bytes
        assert one.arrived("a", before, DST)
        assert one.transport.release(op)


def test_a_small_copy_is_done_at_once_where_nothing_else_is_under_way() -> None:
    with rig() as one:
        plans, before = {name: one.plan(name) for name in "ab"}, one.fars["a"].content()
        one.transport.caps = dataclasses.replace(one.transport.caps, prompt=True)
        op = one.transport.post(plans["a"], SRC, DST)
        assert op.state == OpState.DONE
        assert (op.peer, op.nbytes, op.descriptors) == ("a", 3 * SHAPE.page_bytes, 3)
        assert one.arrived("a", before, DST)
        one.gate.shut["a"] = threading.Event()
        one.transport.caps = dataclasses.replace(one.transport.caps, prompt=False)
        slow = one.transport.post(plans["a"], SRC, DST)
        one.transport.caps = dataclasses.replace(one.transport.caps, prompt=True)
        behind = one.transport.post(plans["b"], SRC, DST)
        assert (behind.state, behind.begun) == (OpState.RUNNING, False)
        one.gate.shut["a"].set()
        assert one.turns.settled(slow, behind) == [OpState.DONE] * 2


def test_peers_of_different_threads_do_not_wait_for_each_other() -> None:
    with rig(count=2, patience=3600.0) as one:
        plans = {name: one.plan(name) for name in "ab"}
        one.gate.shut["a"] = threading.Event()
        slow = one.transport.post(plans["a"], SRC, DST)
        quick = [one.transport.post(plans["b"], SRC, pages) for pages in (DST, OTHER)]
        assert one.turns.settled(*quick) == [OpState.DONE] * 2
        assert slow.state == OpState.RUNNING
        one.gate.shut["a"].set()
        assert one.turns.settled(slow) == [OpState.DONE]


def test_a_call_that_does_not_return_holds_up_only_its_own_peer(caplog: pytest.LogCaptureFixture) -> None:
    with rig() as one:
        plans = {name: one.plan(name) for name in "ab"}
        before = one.fars["a"].content()
        one.gate.shut["a"] = threading.Event()
        stuck = one.transport.post(plans["a"], SRC, DST)
        again = one.transport.post(plans["a"], SRC, OTHER)
        behind = one.transport.post(plans["b"], SRC, DST)
        assert one.turns.settled(behind) == [OpState.DONE]
        assert stuck.state == again.state == OpState.RUNNING
        assert "A write into session a has not returned for" in caplog.text
        later = one.transport.post(plans["b"], SRC, OTHER)
        assert one.turns.settled(later) == [OpState.DONE]
        one.gate.shut["a"].set()
        assert one.turns.settled(stuck, again) == [OpState.DONE] * 2
        assert one.arrived("a", one.after(before, DST), OTHER)


def test_closing_waits_for_calls_and_leaves_alone_what_one_that_does_not_return_may_use() -> None:
    with rig() as one:
        op = one.transport.post(one.plan("a"), SRC, DST)
        one.transport.close()
        assert one.gate.closed
        assert one.turns.settled(op)[0] in (OpState.DONE, OpState.FAILED)
    with rig() as one:
        one.gate.shut["a"] = threading.Event()
        one.transport.post(one.plan("a"), SRC, DST)
        assert one.gate.entered.wait(PATIENCE)
        monkey = workers.CLOSE
        workers.CLOSE = 0.0
        try:
            one.transport.close()
        finally:
            workers.CLOSE = monkey
        assert not one.gate.closed


@pytest.mark.parametrize("step", ["post", "poll", "drop_peer"])
def test_an_unknown_error_costs_one_peer_its_write_and_no_thread(step: str) -> None:
    class Broken(Gate):
        def post(self, plan: TransferPlan, src_pages: np.ndarray, dst_pages: np.ndarray) -> Op:
            if plan.peer == "a" and step == "post":
                raise ZeroDivisionError
            state = OpState.RUNNING if plan.peer == "a" else OpState.DONE
            return Op(plan.peer, 0, state)

        def poll(self, op: Op) -> OpState:
            if step == "poll":
                raise ZeroDivisionError
            return op.state

        def drop_peer(self, peer: str) -> None:
            if step == "drop_peer" and peer == "a" and self.armed:
                self.armed = False
                raise ZeroDivisionError
            super().drop_peer(peer)

        armed = True

    with rig(gate=Broken, count=1) as one:
        bad = one.transport.post(one.plan("a"), SRC, DST)
        if step == "drop_peer":
            one.transport.drop_peer("a")
        assert one.turns.settled(bad) == [OpState.FAILED]
        good = one.transport.post(one.plan("b"), SRC, DST)
        assert one.turns.settled(good) == [OpState.DONE]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ends_on_an_unknown_error_takes_the_loop_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers.TransferWorker, "_due", lambda worker: [][0])
    with rig() as one:
        one.transport.post(one.plan("a"), SRC, DST)
        with pytest.raises(ThreadEndedError, match="thread kv-transfer-0 ended on IndexError"):
            one.turns.until("nothing", lambda: False)


def test_there_is_never_one_thread_alone() -> None:
    assert workers.threads() >= 2
    assert workers.threads(1) == 1, "unless it was asked for"
    assert workers.threads(7) == 7
