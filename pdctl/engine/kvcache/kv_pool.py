"""One rank's KV memory as tensors: the same bytes that transports move and attention reads.

A retracted request's pages are copied to the host (sglang 0.5.23 --disaggregation-decode-retraction-backup cpu_tensor).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from pdctl.engine.kvcache.pool_geometry import Layout, PoolGeometry
from pdctl.layout.shape import stage_layers

if TYPE_CHECKING:
    from pdctl.engine.config.checkpoint_config import ModelConfig
    from pdctl.engine.kvcache.allocator import Pages


class KVPool:
    """Pages of K and V (MLA: of latents) for every layer, over memory of the transport or of its own."""

    def __init__(
        self,
        geometry: PoolGeometry,
        buffer: memoryview | torch.Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        if dtype.itemsize != geometry.itemsize:
            raise ValueError(f"{dtype} has {dtype.itemsize} bytes, the pool's geometry says {geometry.itemsize}")
        self.geometry = geometry
        self.dtype = dtype
        self.device = torch.device(device)
        self.buffer = _as_bytes(buffer, geometry.nbytes, self.device)
        slabs, pages = geometry.num_slabs, geometry.num_pages
        elements = self.buffer.view(dtype)
        shape = (slabs, pages, geometry.page_size, geometry.kv_heads, geometry.head_dim)
        strides = (geometry.slab_stride, geometry.page_stride, geometry.token_stride, geometry.head_stride)
        self._slabs = elements.as_strided(shape, (*(stride // dtype.itemsize for stride in strides), 1))
        # Flat in every layout. A row is the contiguous part of one token of one slab, a strip that of one page of one
        # slab: all heads, or one in head-major. An item is one page of one slab.
        self.rows = elements.view(-1, geometry.token_stride // dtype.itemsize)
        self.strips = self.rows.view(-1, geometry.page_size * self.rows.shape[1])
        self.items = elements.view(slabs * pages, -1)
        # A view [slabs, 1, kv_heads, pages * page_size, head_dim]; None if the pages of a slab are not adjacent.
        self.tokens: torch.Tensor | None = None
        if geometry.page_stride == geometry.page_size * geometry.token_stride:
            self.tokens = self._slabs.flatten(1, 2).transpose(1, 2).unsqueeze(1)

    @staticmethod
    def geometry_for(
        config: ModelConfig,
        attn_tp_size: int,
        page_size: int,
        num_pages: int,
        dtype: torch.dtype,
        layout: Layout | str = Layout.LAYER_MAJOR,
        stage: int = 0,
        stages: int = 1,
    ) -> PoolGeometry:
        """Return the pool that one of `attn_tp_size` ranks of a stage needs. `num_pages` counts the reserved page 0."""
        return PoolGeometry(
            layers=len(stage_layers(config.layers, stages, stage)),
            slabs_per_layer=config.slabs_per_layer,
            num_pages=num_pages,
            page_size=page_size,
            kv_heads=config.rank_kv_heads(attn_tp_size),
            head_dim=config.cached_dim,
            itemsize=dtype.itemsize,
            layout=Layout(layout),
        )

    def k(self, layer: int) -> torch.Tensor:
        """Return [num_pages, page_size, kv_heads, head_dim], strided in page-major and head-major."""
        return self._slabs[self.geometry.slabs_per_layer * layer]

    def v(self, layer: int) -> torch.Tensor:
        """Return V in the same shape as `k`; the same slab as `k` if a layer has only one."""
        return self._slabs[self.geometry.slabs_per_layer * (layer + 1) - 1]


def _as_bytes(buffer: memoryview | torch.Tensor | None, nbytes: int, device: torch.device) -> torch.Tensor:
    """Return exactly `nbytes` of `buffer` as uint8, or new memory."""
    if buffer is None:
        # Zeroed here: the first transfer into untouched pages takes ten times as long as a later one (page faults).
        return torch.empty(nbytes, dtype=torch.uint8, device=device).zero_()
    flat = buffer if isinstance(buffer, torch.Tensor) else torch.frombuffer(buffer, dtype=torch.uint8)
    if flat.dtype != torch.uint8 or flat.numel() < nbytes:
        raise ValueError(f"KV pool buffer is {flat.numel()} of {flat.dtype}; {nbytes} bytes of uint8 are needed")
    return flat[:nbytes]


class Backup:
    """A copy of some pages, in every layer: `restore` writes back what was there, bit for bit."""

    def __init__(self, pool: KVPool, pages: Pages) -> None:
        self._copy = pool.items.index_select(0, _items(pool, pages)).to("cpu")
        self.pages = len(pages)

    @property
    def nbytes(self) -> int:
        return self._copy.nbytes

    def restore(self, pool: KVPool, pages: Pages) -> None:
        """Write the copy into `pages`, of which there must be as many as were copied, in the same order."""
        if len(pages) != self.pages:
            raise ValueError(f"a backup of {self.pages} pages does not fit into {len(pages)}")
        pool.items.index_copy_(0, _items(pool, pages), self._copy.to(pool.items.device))


def _items(pool: KVPool, pages: Pages) -> torch.Tensor:
    """Return the index of each page of each slab among the pool's items, slab by slab."""
    geometry = pool.geometry
    slabs = np.arange(geometry.num_slabs, dtype=np.int64) * (geometry.slab_stride // geometry.item_bytes)
    first = pages.astype(np.int64) * (geometry.page_stride // geometry.item_bytes)
    return torch.from_numpy((slabs[:, None] + first).ravel()).to(pool.items.device)
