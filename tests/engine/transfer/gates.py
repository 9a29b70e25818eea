"""Transports whose calls the test holds back, below worker threads whose loop's turns are the test's own."""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np

from pdctl.engine.kvcache.pool_geometry import Layout
from pdctl.engine.transfer.transport import Op, OpState, TransferPlan, Transport, TransportWrapper
from pdctl.engine.transfer.workers import Workers
from tests.engine.transfer.backends import expected_after
from tests.engine.transfer.far import PATIENCE, FarPool, geometry, open_pool

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


class Gate(TransportWrapper):
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

    def after(self, before: np.ndarray, dst: np.ndarray) -> np.ndarray:
        """A peer's memory once SRC has been written into its pages `dst`."""
        pairs = list(zip(SRC.tolist(), dst.tolist(), strict=True))
        return expected_after(self.pool, before, (SHAPE, SHAPE), pairs, range(SHAPE.num_slabs))

    def arrived(self, peer: str, before: np.ndarray, dst: np.ndarray) -> bool:
        return np.array_equal(self.fars[peer].content(), self.after(before, dst))


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
