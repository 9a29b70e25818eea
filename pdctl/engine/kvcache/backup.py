"""Pages of a retracted request in host memory (sglang 0.5.23 --disaggregation-decode-retraction-backup cpu_tensor)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from pdctl.engine.kvcache.allocator import Pages
    from pdctl.engine.kvcache.kv_pool import KVPool


class Backup:
    """A copy of some pages, every layer of them: what `restore` writes is what was there, bit for bit."""

    def __init__(self, pool: KVPool, pages: Pages) -> None:
        self._copy = pool.items.index_select(0, _items(pool, pages)).to("cpu")
        self.pages = len(pages)

    @property
    def nbytes(self) -> int:
        return self._copy.nbytes

    def restore(self, pool: KVPool, pages: Pages) -> None:
        """Write the copy into `pages`, as many as were taken, in the same order."""
        if len(pages) != self.pages:
            raise ValueError(f"a backup of {self.pages} pages does not fit into {len(pages)}")
        pool.items.index_copy_(0, _items(pool, pages), self._copy.to(pool.items.device))


def _items(pool: KVPool, pages: Pages) -> torch.Tensor:
    """Where each page of each slab stands among the pool's items, slab by slab."""
    geometry = pool.geometry
    slabs = np.arange(geometry.num_slabs, dtype=np.int64) * (geometry.slab_stride // geometry.item_bytes)
    first = pages.astype(np.int64) * (geometry.page_stride // geometry.item_bytes)
    return torch.from_numpy((slabs[:, None] + first).ravel()).to(pool.items.device)
