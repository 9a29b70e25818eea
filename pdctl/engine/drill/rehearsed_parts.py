"""The parts of a rank that --rehearse puts in place of the ordinary ones (docs/rehearsals.md).

`ShapedTransport` puts any transport behind a modelled link: it reports each operation when the link would have
completed it. The bytes move at once, through the inner transport; only the report is held back, so that the time they
really took is part of the link's time and not added to it. If the link is faster than the real copy, the real copy
decides. `RehearsedDecode` ends as SGLang's does on a page size mismatch.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.engine.decode.decode_role import DecodeRole
from pdctl.engine.drill.modelled_link import LinkOp, OperationStage, Wire
from pdctl.engine.kv_link.room_state import FailureCode
from pdctl.engine.transfer.transport import Op, OpState, TransportWrapper, pieces

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.engine.drill.modelled_link import ModelledLink
    from pdctl.engine.scheduler.resources import Req
    from pdctl.engine.transfer.transport import Pages, TransferPlan, Transport

DOWN = "the link went down"
GONE = "the peer is gone"
CLOSED = "the transport was closed"
GIVEN_UP = "given up before it was written"


@dataclass(frozen=True, slots=True)
class Held:
    """An operation of the inner transport, and its counterpart on the modelled link."""

    made: Op
    link_op: LinkOp


class ShapedTransport(TransportWrapper):
    """`Op.due` says when to check an operation again, so that nothing has to poll in between."""

    def __init__(self, inner: Transport, link: ModelledLink, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(inner)
        self.caps = dataclasses.replace(inner.caps, sync_post=False)
        self._clock = clock
        self._wire = Wire(link, clock())
        self._running: list[Op] = []
        self._lock = threading.RLock()  # several threads may post over one link, each for its own peers

    def post(self, plan: TransferPlan, src_pages: Pages, dst_pages: Pages) -> Op:
        began, nbytes = self._clock(), plan.nbytes(len(src_pages))
        made = self._inner.post(plan, src_pages, dst_pages)
        writes = pieces(plan.local, plan.remote, plan.cut, src_pages, dst_pages)
        with self._lock:
            held = Held(made, self._wire.begin(nbytes, writes, began))
            op = Op(plan.peer, nbytes, OpState.RUNNING, handle=held, descriptors=made.descriptors)
            self._running.append(op)
        self.poll(op)
        return op

    def poll(self, op: Op) -> OpState:
        held = op.handle
        if not isinstance(held, Held):
            return op.state
        inner = self._inner.poll(held.made)
        with self._lock:
            self._wire.advance(self._clock())
            if inner == OpState.FAILED:
                self._end(op, OpState.FAILED, held.made.error)
            elif held.link_op.stage == OperationStage.LOST:
                self._give_up(op, DOWN)
            elif held.link_op.stage == OperationStage.ARRIVED and inner == OpState.DONE:
                self._end(op, OpState.DONE)
            elif inner == OpState.DONE:
                op.due = self._wire.due
        return op.state

    def release(self, op: Op) -> bool:
        with self._lock:
            return self._give_up(op, GIVEN_UP)

    def drop_peer(self, peer: str) -> None:
        with self._lock:
            for op in [op for op in self._running if op.peer == peer]:
                self._give_up(op, GONE)
        super().drop_peer(peer)

    def close(self) -> None:
        with self._lock:
            for op in list(self._running):
                self._give_up(op, CLOSED)
        super().close()

    def _give_up(self, op: Op, why: str) -> bool:
        """Fail an operation. Return False while the inner transport writes: it is not over, whatever the link says."""
        if isinstance(op.handle, Held):
            if not self._inner.release(op.handle.made):
                return False
            self._end(op, OpState.FAILED, why)
        return op.state != OpState.RUNNING

    def _end(self, op: Op, state: OpState, error: str = "") -> None:
        held: Held = op.handle
        self._inner.release(held.made)
        self._wire.cancel(held.link_op)
        self._running.remove(op)
        op.state, op.error, op.handle = state, error, None
        op.nbytes = held.made.nbytes if state == OpState.DONE else 0


class RehearsedDecode(DecodeRole):
    def _fail(self, req: Req, stage: str) -> None:
        failure = req.receiver.failure if req.receiver else None
        if failure and failure.code == FailureCode.MISMATCH.value:
            raise RuntimeError(failure.message.partition(" (bootstrap_addr: ")[0])
        super()._fail(req, stage)
