"""Writes into other processes' pools that land when the world says so, and the check that each may still land."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pdctl.engine.kvcache.pool_geometry import PoolGeometry
from pdctl.engine.transfer.transport import Caps, Cut, Op, OpState, TransferError, TransferPlan, require_compatible

Tokens = npt.NDArray[np.float32]  # [slabs, pages, page_size, kv_heads, head_dim]


class LateWriteError(AssertionError):
    """A write reached a page that is not its room's any more."""


@dataclass(eq=False)
class Write:
    """`owner`: what held each target page when the write began; it must hold them when it lands."""

    op: Op
    plan: TransferPlan
    src: npt.NDArray[np.int32]
    dst: npt.NDArray[np.int32]
    source: SimTransport
    target: SimTransport
    content: Tokens
    owners: list[Any]
    stuck: bool = False


class Fabric:
    """All transports of a world, and the writes between them."""

    def __init__(self, lazy: bool) -> None:
        """`lazy`: a post only begins a write (RDMA, TCP); else the copy has ended when it returns (shm, cma)."""
        self.lazy = lazy
        self.writes: list[Write] = []
        self.transports: dict[bytes, SimTransport] = {}
        self._numbers = itertools.count(1)

    def transport(self) -> SimTransport:
        key = b"sim-%d" % next(self._numbers)
        made = self.transports[key] = SimTransport(self, key)
        return made

    def land(self, write: Write) -> None:
        if write not in self.writes:
            return
        self.writes.remove(write)
        if write.target.dead:
            write.op.state, write.op.error = OpState.FAILED, "the peer's memory is gone"
            return
        check(write)
        self.copy(write)
        write.op.state = OpState.DONE

    def fail(self, write: Write) -> None:
        self.writes.remove(write)
        write.op.state, write.op.error = OpState.FAILED, "the write was refused by the wire"

    def copy(self, write: Write) -> None:
        cut = write.plan.cut
        there = write.target.tokens
        slabs = slice(cut.remote_slab, cut.remote_slab + cut.slabs)
        heads = slice(cut.remote_head, cut.remote_head + cut.heads)
        for place, page in enumerate(write.dst.tolist()):
            there[slabs, page, :, heads] = write.content[:, place]

    def cancel(self, gone: Callable[[Write], bool]) -> None:
        self.writes = [write for write in self.writes if not gone(write)]


def check(write: Write) -> None:
    """Both ends of the write must still be the room's."""
    for page, owner in zip(write.dst.tolist(), write.owners, strict=True):
        now = write.target.owner(page)
        if owner is None or now is not owner:
            raise LateWriteError(f"a write lands in page {page} of {write.target.key!r}: {_who(owner)} → {_who(now)}")
    lost = [page for page in write.src.tolist() if not write.source.holds(page)]
    if lost:
        raise LateWriteError(f"pages {lost} of {write.source.key!r} were freed while they were being read")
    if not np.array_equal(write.source.read(write.plan.cut, write.src), write.content):
        raise LateWriteError(f"pages {write.src.tolist()} of {write.source.key!r} changed while they were being read")


def _who(owner: Any) -> str:
    return f"rid {owner.rid}" if owner is not None else "nobody"


class SimTransport:
    name = "sim"

    def __init__(self, fabric: Fabric, key: bytes) -> None:
        self.caps = Caps(sync_post=not fabric.lazy, peer_progress=fabric.lazy, same_host=False, death=True, gpu=False)
        self.key = key
        self.dead = False
        self.owner: Callable[[int], Any] = lambda page: None
        self.holds: Callable[[int], bool] = lambda page: True  # whether a page of ours is out, to a room or the cache
        self.peers: dict[str, SimTransport] = {}
        self._fabric = fabric
        self.tokens: Tokens = np.zeros(0, dtype=np.float32)

    def adopt(self, memory: memoryview, geometry: PoolGeometry) -> None:
        """The registered pool as an array; page-major pools are not simulated."""
        shape = (geometry.num_slabs, geometry.num_pages, geometry.page_size, geometry.kv_heads, geometry.head_dim)
        self.tokens = np.frombuffer(memory, dtype=np.float32).reshape(shape)

    def read(self, cut: Cut, pages: npt.NDArray[np.int32]) -> Tokens:
        slabs = slice(cut.local_slab, cut.local_slab + cut.slabs)
        heads = slice(cut.local_head, cut.local_head + cut.heads)
        return self.tokens[slabs][:, pages][:, :, :, heads].copy()

    def allocate(self, nbytes: int) -> memoryview:
        return memoryview(bytearray(nbytes))

    def register(self, buffer: object) -> None:
        del buffer

    def descriptor(self) -> bytes:
        return self.key

    def add_peer(self, peer: str, descriptor: bytes) -> None:
        there = self._fabric.transports.get(bytes(descriptor))
        if there is None or there.dead:
            raise TransferError(f"nobody answers as {descriptor!r}")
        self.peers[peer] = there

    def drop_peer(self, peer: str) -> None:
        self.peers.pop(peer, None)
        self._fabric.cancel(lambda write: write.source is self and write.plan.peer == peer)

    def plan(self, peer: str, local: PoolGeometry, remote: PoolGeometry, cut: Cut | None = None) -> TransferPlan:
        return TransferPlan(peer, local, remote, require_compatible(local, remote, cut), None)

    def post(self, plan: TransferPlan, src_pages: Any, dst_pages: Any) -> Op:
        there = self.peers.get(plan.peer)
        op = Op(plan.peer, plan.nbytes(len(src_pages)), OpState.RUNNING, descriptors=1)
        if there is None or there.dead:
            op.state, op.error = OpState.FAILED, "the peer is gone"
            return op
        src, dst = np.array(src_pages, dtype=np.int32), np.array(dst_pages, dtype=np.int32)
        owners = [there.owner(page) for page in dst.tolist()]
        write = Write(op, plan, src, dst, self, there, self.read(plan.cut, src), owners)
        if any(owner is None for owner in owners):
            raise LateWriteError(f"a write into {there.key!r} begins in pages {dst.tolist()} that nobody holds")
        self._fabric.writes.append(write)
        if not self._fabric.lazy:
            self._fabric.land(write)
        return op

    def poll(self, op: Op) -> OpState:
        return op.state

    def release(self, op: Op) -> bool:
        """A write under way cannot be stopped: the peer has to be dropped."""
        return op.state != OpState.RUNNING

    def progress(self, lane: int | None = None) -> None:
        del lane

    def close_left(self, lane: int | None = None) -> None:
        del lane

    def close(self) -> None:
        return

    def die(self) -> None:
        self.dead = True
        self._fabric.cancel(lambda write: write.source is self)
