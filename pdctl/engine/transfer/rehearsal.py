"""A transport that is slow, or that its process does not survive: for rehearsals only (docs/rehearsals.md)."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.engine.transfer.base import Op, OpState, TransferError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.engine.cache.geometry import PoolGeometry
    from pdctl.engine.transfer.base import Buffer, Cut, Pages, TransferPlan, Transport


@dataclass(frozen=True, slots=True)
class Held:
    """A write whose bytes would still be on a slow wire: it is done at `due` (monotonic)."""

    plan: TransferPlan
    src: Pages
    dst: Pages
    due: float


class RehearsedTransport:
    """`inner` at no more than `rate` bytes a second (0: as it is). Once `doomed`, the next write ends with `end`."""

    def __init__(self, inner: Transport, rate: float, end: Callable[[], None]) -> None:
        self.name = inner.name
        self.caps = dataclasses.replace(inner.caps, sync_post=inner.caps.sync_post and not rate)
        self.doomed = False
        self._inner = inner
        self._rate = rate
        self._process_end = end
        self._free_at = 0.0  # when the wire is through with what it has; monotonic
        self._held: list[Op] = []

    def allocate(self, nbytes: int) -> memoryview:
        return self._inner.allocate(nbytes)

    def register(self, buffer: Buffer) -> None:
        self._inner.register(buffer)

    def descriptor(self) -> bytes:
        return self._inner.descriptor()

    def add_peer(self, peer: str, descriptor: bytes) -> None:
        self._inner.add_peer(peer, descriptor)

    def drop_peer(self, peer: str) -> None:
        for op in [op for op in self._held if op.peer == peer]:
            self._end(op, OpState.FAILED, "the peer is gone")
        self._inner.drop_peer(peer)

    def plan(self, peer: str, local: PoolGeometry, remote: PoolGeometry, cut: Cut | None = None) -> TransferPlan:
        return self._inner.plan(peer, local, remote, cut)

    def post(self, plan: TransferPlan, src_pages: Pages, dst_pages: Pages) -> Op:
        if self.doomed:
            half = len(src_pages) // 2
            self._inner.post(plan, src_pages[:half], dst_pages[:half])
            self._process_end()
        if not self._rate:
            return self._inner.post(plan, src_pages, dst_pages)
        nbytes = plan.nbytes(len(src_pages))
        self._free_at = max(self._free_at, time.monotonic()) + nbytes / self._rate
        op = Op(plan.peer, nbytes, OpState.RUNNING, handle=Held(plan, src_pages, dst_pages, self._free_at))
        self._held.append(op)
        return op

    def poll(self, op: Op) -> OpState:
        if isinstance(op.handle, Held):
            if time.monotonic() < op.handle.due:
                return op.state
            self._write(op, op.handle)
        if isinstance(op.handle, Op):
            self._follow(op, op.handle)
            return op.state
        return op.state if self._rate else self._inner.poll(op)

    def _write(self, op: Op, held: Held) -> None:
        try:
            made = self._inner.post(held.plan, held.src, held.dst)
        except TransferError as error:
            self._end(op, OpState.FAILED, str(error))
            return
        self._held.remove(op)
        op.handle = made

    def _follow(self, op: Op, made: Op) -> None:
        op.state = self._inner.poll(made)
        if op.state != OpState.RUNNING:
            op.handle, op.error = None, made.error
            op.nbytes = made.nbytes

    def release(self, op: Op) -> bool:
        if isinstance(op.handle, Held):
            self._end(op, OpState.FAILED, "given up before it was written")
            return True
        if isinstance(op.handle, Op):
            return self._inner.release(op.handle)
        return op.state != OpState.RUNNING if self._rate else self._inner.release(op)

    def _end(self, op: Op, state: OpState, error: str) -> None:
        self._held.remove(op)
        op.state, op.error, op.nbytes, op.handle = state, error, 0, None

    def progress(self) -> None:
        self._inner.progress()

    def close(self) -> None:
        for op in list(self._held):
            self._end(op, OpState.FAILED, "the transport was closed")
        self._inner.close()
