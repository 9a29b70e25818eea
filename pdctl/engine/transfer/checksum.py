"""A checksum of every page that moves: computed before it is sent, compared before it is used.

CRC-32 over the part of the page that moves, slab by slab and token by token, so it does not depend on the layouts of
the two pools. (sglang 0.5.23: --disaggregation-enable-kv-checksum)
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from pdctl.engine.transfer.transport import TransferError, TransportWrapper
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from pdctl.engine.kvcache.pool_geometry import PoolGeometry
    from pdctl.engine.transfer.transport import Buffer, Cut, Op, Pages, TransferPlan, Transport

    Sums = npt.NDArray[np.uint32]


class Region(NamedTuple):
    """The part of each page of one pool that moves."""

    first_slab: int
    slabs: int
    first_head: int
    heads: int

    @classmethod
    def ours(cls, cut: Cut) -> Region:
        return cls(cut.local_slab, cut.slabs, cut.local_head, cut.heads)

    @classmethod
    def theirs(cls, cut: Cut) -> Region:
        return cls(cut.remote_slab, cut.slabs, cut.remote_head, cut.heads)

    def inside(self, geometry: PoolGeometry) -> bool:
        slabs, heads = self.first_slab + self.slabs, self.first_head + self.heads
        there = min(self.first_slab, self.first_head) >= 0 and min(self.slabs, self.heads) > 0
        return there and slabs <= geometry.num_slabs and heads <= geometry.kv_heads


class Difference(NamedTuple):
    """The first page, by its place in the list, whose bytes differ from those that were sent."""

    place: int
    sent: int
    found: int


class ChecksumTransport(TransportWrapper):
    """`Op.sums` holds the checksums of a post's pages, in their order, as little-endian 32-bit numbers."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self._pool: memoryview | None = None

    def beneath(self, put: Callable[[Transport], Transport]) -> None:
        """Insert a transport between the checksums and what moves the bytes. Call it before any bytes move."""
        self._inner = put(self._inner)
        self.caps = self._inner.caps

    def register(self, buffer: Buffer) -> None:
        if not isinstance(buffer, memoryview):
            raise TransferError("--disaggregation-enable-kv-checksum needs a KV pool in host memory, not on a GPU")
        super().register(buffer)
        self._pool = buffer

    def post(self, plan: TransferPlan, src_pages: Pages, dst_pages: Pages) -> Op:
        sums = self.sums(plan.local, Region.ours(plan.cut), src_pages)
        op = super().post(plan, src_pages, dst_pages)
        op.sums = sums.astype("<u4", copy=False).tobytes()
        return op

    def sums(self, geometry: PoolGeometry, region: Region, pages: Pages) -> Sums:
        """Return the checksums of pages of our own pool. Releases the GIL while it reads."""
        cells = _cells(self._own(), geometry, region)
        # A page that lies in pieces is gathered first, so that one call covers them all, however many there are.
        found = [zlib.crc32(np.ascontiguousarray(cells[:, page]).data) for page in pages.tolist()]
        return np.array(found, dtype=np.uint32)

    def compare(self, geometry: PoolGeometry, region: Region, pages: Pages, sent: bytes) -> Difference | None:
        """Return the first difference between our pages and the checksums sent with them; None if there is none."""
        expected = np.frombuffer(sent, dtype="<u4")
        found = self.sums(geometry, region, pages)
        wrong = np.flatnonzero(found != expected)
        return Difference(int(wrong[0]), int(expected[wrong[0]]), int(found[wrong[0]])) if len(wrong) else None

    def close(self) -> None:
        self._pool = None
        super().close()

    def _own(self) -> memoryview:
        if self._pool is None:
            raise TransferError("no pool registered")
        return self._pool


def _cells(pool: memoryview, geometry: PoolGeometry, region: Region) -> npt.NDArray[Any]:
    """View what moves as [slab, page, token, head, number]. Wide numbers are gathered several times faster."""
    head = geometry.head_bytes
    width = next(width for width in (8, 4, 2, 1) if head % width == 0)
    cells: npt.NDArray[Any] = np.ndarray(
        (region.slabs, geometry.num_pages, geometry.page_size, region.heads, head // width),
        dtype=np.dtype(f"u{width}"),
        buffer=pool,
        offset=region.first_slab * geometry.slab_stride + region.first_head * geometry.head_stride,
        strides=(geometry.slab_stride, geometry.page_stride, geometry.token_stride, geometry.head_stride, width),
    )
    return cells
