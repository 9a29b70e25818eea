"""Page lists as runs and as blocks: what lies side by side on both sides becomes one copy.

A page list is an int32 array; element i of the source goes to element i of the destination.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pdctl.engine.kvcache.pool_geometry import Layout
from pdctl.engine.transfer.transport import Cut, TransferError

if TYPE_CHECKING:
    import numpy.typing as npt

    from pdctl.engine.kvcache.pool_geometry import PoolGeometry
    from pdctl.engine.transfer.transport import Pages

NO_PAGES: Pages = np.empty(0, dtype=np.int32)


class PageRun(NamedTuple):
    """`count` pages from `src` on, to `dst` on."""

    src: int
    dst: int
    count: int  # type: ignore[assignment]  # tuple.count is of no use here


def runs(src: Pages, dst: Pages) -> list[PageRun]:
    """The shortest list of runs that moves every pair in order; a run ends where either side jumps."""
    if len(src) == 0:
        return []
    # Before every write, with caches full of KV bytes: few calls into numpy, each costs more than a short list does.
    froms, tos, count = src.tolist(), dst.tolist(), len(src)
    if froms == list(range(froms[0], froms[0] + count)) and tos == list(range(tos[0], tos[0] + count)):
        return [PageRun(froms[0], tos[0], count)]
    ends = (np.flatnonzero((src[1:] - src[:-1] != 1) | (dst[1:] - dst[:-1] != 1)) + 1).tolist()
    starts = [0, *ends]
    return [PageRun(froms[start], tos[start], end - start) for start, end in zip(starts, [*ends, count], strict=True)]


def require_pages(what: str, pages: Pages, num_pages: int) -> None:
    """Raises TransferError unless every page exists in a pool of `num_pages`."""
    # As an unsigned number, a negative one is large.
    if len(pages) and int(np.maximum.reduce(pages.view(np.uint32))) >= num_pages:
        raise TransferError(f"{what}: page {_outside(pages, num_pages)} is outside the pool of {num_pages} pages")


def require_pairs(src: Pages, dst: Pages, local: PoolGeometry, remote: PoolGeometry) -> None:
    """Raises TransferError unless both lists are equally long and every page exists."""
    if len(src) != len(dst):
        raise TransferError(f"{len(src)} source pages cannot go to {len(dst)} destination pages")
    require_pages("source", src, local.num_pages)
    require_pages("destination", dst, remote.num_pages)


def _outside(pages: Pages, num_pages: int) -> int:
    return int(pages[(pages < 0) | (pages >= num_pages)][0])


class Unit(Enum):
    """The largest piece of a page that lies in one place on both sides."""

    PAGE = "every slab of the cut: both pools keep the slabs of a page together"
    ITEM = "one slab: whole items move"
    HEADS = "some heads of one slab: both pools are head-major"
    TOKEN = "one token of one slab: some of its heads move"
    HEAD = "one head of one token: only one pool is head-major"


def unit(local: PoolGeometry, remote: PoolGeometry, cut: Cut) -> Unit:
    # Where there is one head, or one token, either order is the same.
    ordered = [one.layout for one in (local, remote) if one.kv_heads > 1 and one.page_size > 1]
    by_head = [layout == Layout.HEAD_MAJOR for layout in ordered]
    if any(by_head) and not all(by_head):
        return Unit.HEAD
    if not cut.all_heads(local, remote):
        return Unit.HEADS if any(by_head) else Unit.TOKEN
    both = local.layout == Layout.PAGE_MAJOR and remote.layout == Layout.PAGE_MAJOR
    return Unit.PAGE if both else Unit.ITEM


@dataclass(frozen=True, slots=True)
class Blocks:
    """One side of a cut as equal blocks: block i is `length` bytes at `first` + i * `stride` from the pool's start.

    In any layout every page, item, token row or head stands a whole number of its own sizes from the pool's start. So
    three numbers describe them all, however many there are, and a page list becomes a list of block numbers.
    """

    first: int
    length: int
    stride: int
    count: int
    slab_numbers: Pages  # what each slab of the cut adds to a block's number
    page_step: int  # what one page adds
    inner: tuple[tuple[int, int], ...] = ()  # of one page of one slab: how many, and what the next one adds

    @property
    def per_page(self) -> int:
        return len(self.slab_numbers) * math.prod(count for count, _ in self.inner)

    def numbers(self, pages: Pages) -> Pages:
        """Slab by slab, so that neighbouring pages stay neighbours; both sides of a cut agree on the order."""
        found = self.slab_numbers[:, None] + pages * np.int32(self.page_step)
        for count, step in self.inner:
            found = found[..., None] + np.arange(count, dtype=np.int32) * np.int32(step)
        return np.ascontiguousarray(found.ravel())

    def rows(self, base: int) -> npt.NDArray[np.uint64]:
        """The one row (address, length, device, stride, count) from which nixl makes them all without expanding it."""
        return np.array([[base + self.first, self.length, 0, self.stride, self.count]], dtype=np.uint64)


def blocks(geometry: PoolGeometry, unit: Unit, slabs: int, first_slab: int, heads: int, first_head: int) -> Blocks:
    """The blocks of some slabs and heads of a pool. Raises TransferError when they are too many to number."""
    if unit == Unit.PAGE:
        first, length = geometry.address(first_slab, 0), slabs * geometry.item_bytes
        return Blocks(first, length, geometry.page_stride, geometry.num_pages, np.zeros(1, dtype=np.int32), 1)
    first, length, size, inner = _inside(geometry, unit, heads, first_head)
    count = geometry.nbytes // size
    if count > np.iinfo(np.int32).max:
        raise TransferError(f"a pool of {count} pieces of {size} bytes is too large: pieces are numbered in 32 bits")
    numbers = np.arange(first_slab, first_slab + slabs) * (geometry.slab_stride // size) + first // size
    return Blocks(first % size, length, size, count, numbers.astype(np.int32), geometry.page_stride // size, inner)


def _inside(
    geometry: PoolGeometry, unit: Unit, heads: int, first_head: int
) -> tuple[int, int, int, tuple[tuple[int, int], ...]]:
    """Of one item: where the first block begins, its length and stride in bytes, and the others as in Blocks.inner."""
    head, tokens = geometry.head_bytes, geometry.page_size
    if unit == Unit.ITEM:
        return 0, geometry.item_bytes, geometry.item_bytes, ()
    if unit == Unit.HEADS:
        return first_head * tokens * head, heads * tokens * head, geometry.item_bytes, ()
    if unit == Unit.TOKEN:
        return first_head * head, heads * head, geometry.token_bytes, ((tokens, 1),)
    inner = ((tokens, geometry.token_stride // head), (heads, geometry.head_stride // head))
    return first_head * geometry.head_stride, head, head, inner


def sides(local: PoolGeometry, remote: PoolGeometry, cut: Cut) -> tuple[Blocks, Blocks]:
    """What moves, on our side and on the peer's: block lists of both have the same length and order."""
    one = unit(local, remote, cut)
    return (
        blocks(local, one, cut.slabs, cut.local_slab, cut.heads, cut.local_head),
        blocks(remote, one, cut.slabs, cut.remote_slab, cut.heads, cut.remote_head),
    )


class Spans(NamedTuple):
    """Contiguous writes, as offsets from the starts of the pools and lengths in bytes; all three equally long."""

    src: npt.NDArray[np.int64]
    dst: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]


def spans(here: Blocks, there: Blocks, src: Pages, dst: Pages) -> Spans:
    """What moves these pages in as few writes as its order allows: neighbours on both sides are joined."""
    if len(src) == 0:
        none = np.empty(0, dtype=np.int64)
        return Spans(none, none, none)
    froms = here.numbers(src).astype(np.int64) * here.stride + here.first
    tos = there.numbers(dst).astype(np.int64) * there.stride + there.first
    apart = (np.diff(froms) != here.length) | (np.diff(tos) != here.length)
    starts = np.concatenate(([0], np.flatnonzero(apart) + 1))
    lengths = np.diff(np.concatenate((starts, [len(froms)]))) * here.length
    return Spans(froms[starts], tos[starts], lengths)


def pieces(local: PoolGeometry, remote: PoolGeometry, cut: Cut, src: Pages, dst: Pages) -> int:
    """How many contiguous writes move these pages where neighbours on both sides are joined."""
    one = unit(local, remote, cut)
    if one not in (Unit.PAGE, Unit.ITEM):
        here, _ = sides(local, remote, cut)
        return len(src) * here.per_page
    layers = Layout.PAGE_MAJOR not in (local.layout, remote.layout)
    if one == Unit.PAGE:
        joins = cut.slabs == local.num_slabs == remote.num_slabs
        return len(runs(src, dst)) if joins else len(src)
    return (len(runs(src, dst)) if layers else len(src)) * cut.slabs


def expanded_rows(strided: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The same blocks one by one, as (address, length, device): for nixl releases that know no strides."""
    parts = []
    for address, length, device, stride, count in strided.tolist():
        block = np.empty((count, 3), dtype=np.uint64)
        block[:, 0] = np.uint64(address) + np.arange(count, dtype=np.uint64) * np.uint64(stride)
        block[:, 1:] = (length, device)
        parts.append(block)
    return np.concatenate(parts)
