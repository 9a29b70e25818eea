"""Page lists as runs: neighbours on both sides become one copy.

A page list is an int32 array; element i of the source goes to element i of the destination.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pdctl.engine.cache.geometry import Layout
from pdctl.engine.transfer.base import Cut, TransferError

if TYPE_CHECKING:
    import numpy.typing as npt

    from pdctl.engine.cache.geometry import PoolGeometry
    from pdctl.engine.transfer.base import Pages

NO_PAGES: Pages = np.empty(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Run:
    """`count` pages from `src` on, to `dst` on."""

    src: int
    dst: int
    count: int


def runs(src: Pages, dst: Pages) -> list[Run]:
    """The shortest list of runs that moves every pair in order; a run ends where either side jumps."""
    if len(src) == 0:
        return []
    breaks = np.flatnonzero((np.diff(src) != 1) | (np.diff(dst) != 1)) + 1
    starts = np.concatenate(([0], breaks))
    counts = np.diff(np.concatenate((starts, [len(src)])))
    return [Run(s, d, n) for s, d, n in zip(src[starts].tolist(), dst[starts].tolist(), counts.tolist(), strict=True)]


def require_pages(what: str, pages: Pages, num_pages: int) -> None:
    """Raises TransferError unless every page exists in a pool of `num_pages`."""
    if len(pages) and (int(pages.min()) < 0 or int(pages.max()) >= num_pages):
        raise TransferError(f"{what}: page {_outside(pages, num_pages)} is outside the pool of {num_pages} pages")


def require_pairs(src: Pages, dst: Pages, local: PoolGeometry, remote: PoolGeometry) -> None:
    """Raises TransferError unless both lists are equally long and every page exists."""
    if len(src) != len(dst):
        raise TransferError(f"{len(src)} source pages cannot go to {len(dst)} destination pages")
    require_pages("source", src, local.num_pages)
    require_pages("destination", dst, remote.num_pages)


def _outside(pages: Pages, num_pages: int) -> int:
    return int(pages[(pages < 0) | (pages >= num_pages)][0])


def whole_pages(local: PoolGeometry, remote: PoolGeometry, cut: Cut) -> bool:
    """Both sides keep one page of all slabs together and all slabs are wanted: a page is one block."""
    both = local.layout == Layout.PAGE_MAJOR and remote.layout == Layout.PAGE_MAJOR
    return both and cut == Cut.whole(local) and remote.num_slabs == local.num_slabs


def strided_rows(geometry: PoolGeometry, base: int, slabs: tuple[int, int], whole: bool) -> npt.NDArray[np.uint64]:
    """Every block of a pool as rows (address, length, device, stride, count), the form nixl prepares without expanding.

    Block index: the page when `whole`, else (slab - slabs[0]) * num_pages + page.
    """
    pages = geometry.num_pages
    if whole:
        return np.array([[base, geometry.page_stride, 0, geometry.page_stride, pages]], dtype=np.uint64)
    rows = np.empty((slabs[1] - slabs[0], 5), dtype=np.uint64)
    rows[:, 0] = base + np.arange(*slabs, dtype=np.uint64) * np.uint64(geometry.slab_stride)
    rows[:, 1:] = (geometry.item_bytes, 0, geometry.page_stride, pages)
    return rows


def expanded_rows(strided: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The same blocks one by one, as (address, length, device): for nixl releases that know no strides."""
    parts = []
    for address, length, device, stride, count in strided.tolist():
        block = np.empty((count, 3), dtype=np.uint64)
        block[:, 0] = np.uint64(address) + np.arange(count, dtype=np.uint64) * np.uint64(stride)
        block[:, 1:] = (length, device)
        parts.append(block)
    return np.concatenate(parts)


def block_indices(pages: Pages, slab_count: int, num_pages: int, whole: bool) -> Pages:
    """Which blocks of `strided_rows` a page list means; slab by slab, so that neighbouring pages stay neighbours."""
    if whole:
        return pages
    indices = (np.arange(slab_count, dtype=np.int32) * np.int32(num_pages))[:, None] + pages
    return np.ascontiguousarray(indices.ravel())
