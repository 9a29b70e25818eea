"""Pools that hold a part of one cache each: its layers, its heads."""

from __future__ import annotations

import numpy as np

from pdctl.engine.kvcache.pool_geometry import Layout, PoolGeometry

LAYERS, HEADS, PAGE_SIZE, HEAD_DIM, ITEMSIZE = 4, 4, 3, 2, 4
PAGES = (9, 13)  # of the near and of the far pool
SRC, DST = np.array([1, 2, 3, 7, 8], dtype=np.int32), np.array([4, 5, 11, 12, 2], dtype=np.int32)


def shape(tp: int, layout: Layout, num_pages: int, pp: int = 1, mla: bool = False) -> PoolGeometry:
    """One rank's pool: a share of the heads and layers; with MLA there is nothing to share but layers."""
    return PoolGeometry(
        layers=LAYERS // pp,
        slabs_per_layer=1 if mla else 2,
        num_pages=num_pages,
        page_size=PAGE_SIZE,
        kv_heads=1 if mla else HEADS // tp,
        head_dim=9 if mla else HEAD_DIM,
        itemsize=ITEMSIZE,
        layout=layout,
    )


def cells(pool: np.ndarray, geometry: PoolGeometry) -> np.ndarray:
    """The pool as [slab, page, token, head, byte], by nothing but the geometry's addresses."""
    head = geometry.head_dim * geometry.itemsize
    return np.ndarray(
        (geometry.num_slabs, geometry.num_pages, geometry.page_size, geometry.kv_heads, head),
        dtype=np.uint8,
        buffer=pool,
        strides=(geometry.slab_stride, geometry.page_stride, geometry.token_stride, geometry.head_stride, 1),
    )
