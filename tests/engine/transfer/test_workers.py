"""Writes on threads of their own: what is moved, what waits for whom, and what a call that never returns costs."""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import pdctl
from pdctl.engine import args
from pdctl.engine.cache.geometry import Layout
from pdctl.engine.transfer import workers
from pdctl.engine.transfer.around import Around
from pdctl.engine.transfer.base import Op, OpState, TransferPlan, Transport
from pdctl.engine.transfer.workers import Workers
from tests.engine.transfer.far import PATIENCE, FarPool, geometry, open_pool
from tests.engine.transfer.test_transports import BACKENDS, expected_after

SHAPE = geometry(Layout.PAGE_MAJOR)
SRC, DST = np.array([1, 2, 3], dtype=np.int32), np.array([9, 4, 5], dtype=np.int32)
OTHER = np.array([11, 12, 13], dtype=np.int32)


class Turns:
    """A loop whose thread is the test's: calls and timers run when `until` is waiting for something."""

    def __init__(self) -> None:
        self.calls: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._rung = threading.Event()

    def call(self, action: Callable[[], None]) -> bool:
        self.calls.append(action)
        self._rung.set()
        return True

    def later(self, seconds: float, action: Callable[[], None]) -> object:
        heapq.heappush(self._timers, (time.monotonic() + seconds, id(action), action))
        return action

    def until(self, what: str, check: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not check():
            assert time.monotonic() < deadline, f"no {what} within {PATIENCE} s"
            if self.calls:
                self.calls.popleft()()
            elif self._timers and self._timers[0][0] <= time.monotonic():
                heapq.heappop(self._timers)[2]()
            else:
                self._rung.wait(0.005)
                self._rung.clear()

    def settled(self, *ops: Op) -> list[OpState]:
        self.until("settled ops", lambda: all(op.state != OpState.RUNNING for op in ops))
        return [op.state for op in ops]


class Gate(Around):
    """Posts and polls to some peers do not return before they are let through; nothing is copied in place."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self.caps = dataclasses.replace(inner.caps, prompt=False)
        self.shut: dict[str, threading.Event] = {}
        self.entered = threading.Event()
        self.closed = False

    def post(self, plan: TransferPlan, src_pages: np.ndarray, dst_pages: np.ndarray) -> Op:
        gate = self.shut.get(plan.peer)
        if gate is not None:
            self.entered.set()
            assert gate.wait(PATIENCE)
        return super().post(plan, src_pages, dst_pages)

    def close(self) -> None:
        self.closed = True
        super().close()


class Unfinished(Gate):
    """Every write is still under way when it has been posted, until `finished` is set."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self.finished = threading.Event()
        self.releasable = True

    def post(self, plan: TransferPlan, src_pages: np.ndarray, dst_pages: np.ndarray) -> Op:
        made = super().post(plan, src_pages, dst_pages)
        return Op(plan.peer, made.nbytes, OpState.RUNNING, handle=made)

    def poll(self, op: Op) -> OpState:
        if self.finished.is_set():
            op.state = op.handle.state
        return op.state

    def release(self, op: Op) -> bool:
        return self.releasable


class NearPool:
    """A peer in this process: its memory is mapped as that of any other one would be."""

    def __init__(self) -> None:
        self._transport, self._pool = open_pool("shm", SHAPE, seed=2)
        self.descriptor = self._transport.descriptor()

    def content(self) -> np.ndarray:
        return self._pool.copy()

    def close(self) -> None:
        self._transport.close()


@dataclasses.dataclass
class Rig:
    turns: Turns
    gate: Gate
    transport: Workers
    pool: np.ndarray
    fars: dict[str, FarPool] | dict[str, NearPool]

    def plan(self, peer: str) -> TransferPlan:
        self.transport.add_peer(peer, self.fars[peer].descriptor)
        return self.transport.plan(peer, SHAPE, SHAPE)

    def arrived(self, peer: str, before: np.ndarray, dst: np.ndarray) -> bool:
        pairs = list(zip(SRC.tolist(), dst.tolist(), strict=True))
        wanted = expected_after(self.pool, before, (SHAPE, SHAPE), pairs, range(SHAPE.num_slabs))
        return np.array_equal(self.fars[peer].content(), wanted)


@contextlib.contextmanager
def rig(
    backend: str = "", names: str = "ab", count: int = 1, gate: type[Gate] = Gate, patience: float = 0.05
) -> Iterator[Rig]:
    """With a `backend`, peers are processes of their own."""
    fars = {name: FarPool(backend, SHAPE, seed=2) if backend else NearPool() for name in names}
    backend = backend or "shm"
    inner, pool = open_pool(backend, SHAPE, seed=1)
    turns, made = Turns(), gate(inner)
    transport = Workers(made, turns, count, patience)
    try:
        yield Rig(turns, made, transport, pool, fars)
    finally:
        for event in made.shut.values():
            event.set()
        transport.close()
        for far in fars.values():
            far.close()


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
        assert one.arrived("a", _after(one, before, DST), OTHER)


def _after(one: Rig, before: np.ndarray, dst: np.ndarray) -> np.ndarray:
    pairs = list(zip(SRC.tolist(), dst.tolist(), strict=True))
    return expected_after(one.pool, before, (SHAPE, SHAPE), pairs, range(SHAPE.num_slabs))


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


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_killed_peer_fails_its_own_writes_only(backend: str) -> None:
    with rig(backend) as one:
        plans = {name: one.plan(name) for name in "ab"}
        assert one.turns.settled(one.transport.post(plans["a"], SRC, DST)) == [OpState.DONE]
        one.fars["a"].kill()
        ops = [one.transport.post(plans[name], SRC, OTHER) for name in "ab"]
        assert one.turns.settled(*ops) == [OpState.FAILED, OpState.DONE]
        assert ops[0].error


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


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ends_on_an_unknown_error_takes_the_loop_with_it() -> None:
    class Broken(Gate):
        def post(self, plan: TransferPlan, src_pages: np.ndarray, dst_pages: np.ndarray) -> Op:
            raise ZeroDivisionError

    with rig(gate=Broken) as one:
        one.transport.post(one.plan("a"), SRC, DST)
        with pytest.raises(RuntimeError, match="a thread of the KV transfer has ended"):
            one.turns.until("nothing", lambda: False)


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


def test_there_is_never_one_thread_alone() -> None:
    assert workers.threads() >= 2
    assert workers.threads(1) == 1, "unless it was asked for"
    assert workers.threads(7) == 7


def test_sglangs_variable_says_how_many_threads() -> None:
    argv = ["--model-path", str(Path(pdctl.__file__).parent / "checkpoints" / "tiny")]
    assert args.parse(argv, {}).disaggregation_transfer_threads == 0
    assert args.parse(argv, {"SGLANG_DISAGGREGATION_QUEUE_SIZE": "4"}).disaggregation_transfer_threads == 4
    with pytest.raises(SystemExit):
        args.parse([*argv, "--disaggregation-transfer-threads", "-1"], {})
