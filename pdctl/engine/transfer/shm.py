"""Pools in shared memory of one host (Linux, macOS): the prefill maps the decode's pool and copies pages into it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from pdctl.engine.ipc.messages import MALFORMED
from pdctl.engine.transfer import segment
from pdctl.engine.transfer.segment import Mapping, Segment, SegmentHandle, create_segment, map_segment
from pdctl.engine.transfer.transport import (
    Blocks,
    Buffer,
    Caps,
    Cut,
    Op,
    OpState,
    TransferError,
    TransferPlan,
    require_compatible,
    require_pairs,
    runs,
    sides,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from pdctl.engine.kvcache.pool_geometry import PoolGeometry
    from pdctl.engine.transfer.transport import Pages


@dataclass(frozen=True, slots=True)
class Views:
    """What moves in both pools, as arrays [slab, page, …, number]; numpy merges adjacent elements.

    The dimensions in between are the pieces of an item (`Blocks.inner`). In two page-major pools, a page's slabs count
    as one.
    """

    source: npt.NDArray[Any]
    target: npt.NDArray[Any]
    mapping: Mapping


class ShmTransport:
    """`post` returns when the pages are copied. A peer's death is noticed before each post, not during it."""

    name = "shm"
    caps = Caps(sync_post=True, peer_progress=False, same_host=True, death=True, gpu=False, prompt=True)

    def __init__(self) -> None:
        self._segment: Segment | None = None
        self._peers: dict[str, Mapping] = {}

    def allocate(self, nbytes: int) -> memoryview:
        if self._segment is not None:
            raise TransferError("shm: this transport already has a pool")
        self._segment = create_segment(nbytes)
        return self._segment.view

    def register(self, buffer: Buffer) -> None:
        if not isinstance(buffer, memoryview):
            raise TransferError(
                "shm: a pool in GPU memory cannot be shared; --disaggregation-transfer-backend nixl can"
            )
        ours = self._own()
        start = segment.address(buffer) - segment.address(ours.view)
        if start != 0 or buffer.nbytes > ours.view.nbytes:
            raise TransferError("shm: only memory this transport allocated can be registered")

    def descriptor(self) -> bytes:
        return msgspec.msgpack.encode(self._own().handle)

    def add_peer(self, peer: str, descriptor: bytes) -> None:
        try:
            handle = msgspec.msgpack.decode(descriptor, type=SegmentHandle)
        except MALFORMED as error:
            raise TransferError(f"shm: peer {peer} sent no shared-memory handle ({error})") from None
        self.drop_peer(peer)
        self._peers[peer] = map_segment(peer, handle)

    def drop_peer(self, peer: str) -> None:
        mapping = self._peers.pop(peer, None)
        if mapping is not None:
            mapping.close()

    def plan(self, peer: str, local: PoolGeometry, remote: PoolGeometry, cut: Cut | None = None) -> TransferPlan:
        cut = require_compatible(local, remote, cut)
        mapping = self._peers.get(peer)
        if mapping is None:
            raise TransferError(f"shm: peer {peer} was never added")
        if remote.nbytes > mapping.view.nbytes or local.nbytes > self._own().view.nbytes:
            raise TransferError(f"shm: peer {peer}: a pool is smaller than its geometry says ({remote.nbytes} bytes)")
        here, there = sides(local, remote, cut)
        width = _width(here, there)
        source = _pieces(self._own().view, local, here, width)
        target = _pieces(mapping.view, remote, there, width)
        return TransferPlan(peer, local, remote, cut, Views(source, target, mapping), here.per_page)

    def post(self, plan: TransferPlan, src_pages: Pages, dst_pages: Pages) -> Op:
        require_pairs(src_pages, dst_pages, plan.local, plan.remote)
        views: Views = plan.state
        if not views.mapping.alive():
            return Op(plan.peer, 0, OpState.FAILED, f"the process {views.mapping.pid} that owned the pool is gone")
        source, target = views.source, views.target
        for run in runs(src_pages, dst_pages):
            target[:, run.dst : run.dst + run.count] = source[:, run.src : run.src + run.count]
        count = len(src_pages)
        return Op(plan.peer, plan.nbytes(count), OpState.DONE, descriptors=plan.per_page * count)

    def poll(self, op: Op) -> OpState:
        return op.state

    def release(self, op: Op) -> bool:
        return op.state != OpState.RUNNING

    def progress(self, lane: int | None = None) -> None:
        del lane

    def close_left(self, lane: int | None = None) -> None:
        del lane

    def close(self) -> None:
        for peer in list(self._peers):
            self.drop_peer(peer)
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def _own(self) -> Segment:
        if self._segment is None:
            raise TransferError("shm: no pool allocated")
        return self._segment


def _width(one: Blocks, other: Blocks) -> int:
    """Return the widest number that divides every piece: with strides of 8 bytes numpy is far faster than with 1."""
    sizes = [size for side in (one, other) for size in (side.first, side.length, side.stride)]
    return next(width for width in (8, 4, 2, 1) if not any(size % width for size in sizes))


def _pieces(view: memoryview, geometry: PoolGeometry, blocks: Blocks, width: int) -> npt.NDArray[Any]:
    slab = int(blocks.slab_numbers[0]) * blocks.stride
    counts, steps = [count for count, _ in blocks.inner], [step * blocks.stride for _, step in blocks.inner]
    pieces: npt.NDArray[Any] = np.ndarray(
        (len(blocks.slab_numbers), geometry.num_pages, *counts, blocks.length // width),
        dtype=np.dtype(f"u{width}"),
        buffer=view,
        offset=blocks.first + slab,
        strides=(geometry.slab_stride, geometry.page_stride, *steps, width),
    )
    return pieces
