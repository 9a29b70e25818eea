"""KV frames and writes that are failed, lost, delayed, repeated or damaged on request (fault_points.py), or modelled.

`ShapedTransport`, of a rehearsal (docs/rehearsals.md), puts any transport behind a modelled link: it reports each
operation when the link would have completed it. The bytes move at once, through the inner transport; only the report is
held back, so that the time they really took is part of the link's time and not added to it. If the link is faster than
the real copy, the real copy decides.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pdctl.engine.drill.fault_points import arm
from pdctl.engine.drill.modelled_link import LinkOp, OperationStage, Wire
from pdctl.engine.ipc.messages import FrameError
from pdctl.engine.kv_link.kv_frames import Link, codec
from pdctl.engine.transfer.checksum import ChecksumTransport
from pdctl.engine.transfer.transport import Op, OpState, TransportWrapper, find_layer, pieces

if TYPE_CHECKING:
    from collections.abc import Callable

    import zmq

    from pdctl.engine.drill.fault_points import Armed
    from pdctl.engine.drill.modelled_link import ModelledLink
    from pdctl.engine.ipc.channels import SocketKeys
    from pdctl.engine.transfer.transport import Pages, TransferPlan, Transport

    Later = Callable[[float, Callable[[], None]], object]

DOWN = "the link went down"
GONE = "the peer is gone"
CLOSED = "the transport was closed"
GIVEN_UP = "given up before it was written"


class FrameFaults:
    """`later` is the loop's timer, so that a delayed frame holds up nothing else."""

    def __init__(self, armed: Armed, later: Later) -> None:
        self._armed = armed
        self._later = later

    def link(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, keys: SocketKeys | None = None) -> Link:
        return FaultyLink(self, context, endpoint, keys)

    def passing(self, frame: bytes, prefix: str, go_on: Callable[[bytes], bool]) -> bool:
        """Pass `frame` to `go_on` as the faults say. Return what `go_on` returns, or True if it is not called now."""
        kind, room = described(frame)
        fault = self._armed.at(prefix + kind, room) if kind else None
        if fault is None or fault.action == "stall":
            return go_on(frame)
        if fault.action == "delay":
            self._later(fault.value, lambda: _forget(go_on(frame)))
        elif fault.action == "duplicate":
            go_on(frame)
            return go_on(frame)
        elif fault.action == "corrupt":
            return go_on(damaged(frame))
        return True


class FaultyLink(Link):
    def __init__(
        self,
        faults: FrameFaults,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        keys: SocketKeys | None = None,
    ) -> None:
        super().__init__(context, endpoint, keys)
        self._faults = faults

    def send(self, frame: bytes) -> bool:
        return self._faults.passing(frame, "", super().send)


def described(frame: bytes) -> tuple[str, int | None]:
    """Return a frame's kind and room; the kind is empty if the frame cannot be decoded."""
    try:
        message = codec.decode(frame)
    except FrameError:
        return "", None
    return str(message.__struct_config__.tag), getattr(message, "room", None)


def damaged(frame: bytes) -> bytes:
    """Cut off the end of the body. The header stays, so that it is still a frame for this socket."""
    return frame[: max(8, len(frame) - 3)]


def faults_for(rank: int, later: Later) -> FrameFaults | None:
    armed = arm(rank)
    return FrameFaults(armed, later) if armed is not None else None


def _forget(_: bool) -> None:
    return


class FaultyTransport(TransportWrapper):
    def __init__(self, inner: Transport, armed: Armed) -> None:
        super().__init__(inner)
        self.caps = dataclasses.replace(inner.caps, prompt=False)  # a stall must never block the KV manager
        self._armed = armed
        self.breaks_off: Callable[[], None] | None = None  # half-way through the next write

    def post(self, plan: TransferPlan, src_pages: Pages, dst_pages: Pages) -> Op:
        if self.breaks_off is not None:
            half = len(src_pages) // 2
            super().post(plan, src_pages[:half], dst_pages[:half])
            self.breaks_off()
        fault = self._armed.at("post")
        action = fault.action if fault is not None else ""
        if action == "drop":  # like a write that the network acknowledged and then lost
            return Op(plan.peer, plan.nbytes(len(src_pages)), OpState.DONE)
        if action == "fail":
            return Op(plan.peer, 0, OpState.FAILED, f"fault {fault.word}" if fault else "")
        if self._armed.at("page") is not None:
            src_pages = np.roll(src_pages, 1) if len(src_pages) > 1 else np.zeros_like(src_pages)
        if action == "duplicate":
            super().post(plan, src_pages, dst_pages)
        return super().post(plan, src_pages, dst_pages)


def with_faults(transport: Transport, rank: int, more: str = "") -> Transport:
    """Return `transport`, wrapped if PDCTL_FAULTS or `more` ask for faults in it."""
    armed = arm(rank, more)
    if armed is None:
        return transport
    checked = find_layer(transport, ChecksumTransport)
    if checked is not None and find_layer(checked, FaultyTransport) is not None:
        return transport  # a wrapper from when this instance was a prefill, before it became a decode
    if checked is not None:  # checksums are of the bytes that should be sent: the fault has to come after them
        checked.beneath(lambda inner: FaultyTransport(inner, armed))
        return transport
    return FaultyTransport(transport, armed)


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
