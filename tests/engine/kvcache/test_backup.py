"""What a backup restores is what was there, in whichever pages it lands, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pdctl.engine.kvcache.kv_pool import Backup, KVPool
from pdctl.engine.kvcache.pool_geometry import Layout, PoolGeometry


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("slabs_per_layer", [1, 2])
def test_other_pages_hold_the_same(layout: Layout, slabs_per_layer: int) -> None:
    geometry = PoolGeometry(
        layers=3, slabs_per_layer=slabs_per_layer, num_pages=12, page_size=4, kv_heads=2, head_dim=8, itemsize=4,
        layout=layout,
    )  # fmt: skip
    pool = KVPool(geometry)
    pool.buffer.random_(0, 256)
    before = items(pool, geometry)
    source, target = np.array([2, 3, 9], dtype=np.int32), np.array([5, 11, 1], dtype=np.int32)
    backup = Backup(pool, source)
    assert backup.nbytes == 3 * geometry.page_bytes
    pool.items[:] = 0
    backup.restore(pool, target)
    after = items(pool, geometry)
    for slab in range(geometry.num_slabs):
        for page in range(geometry.num_pages):
            found = np.flatnonzero(target == page)
            expected = before[slab, int(source[found[0]])] if len(found) else torch.zeros(geometry.item_bytes)
            assert torch.equal(after[slab, page], expected.to(torch.uint8))


def items(pool: KVPool, geometry: PoolGeometry) -> dict[tuple[int, int], torch.Tensor]:
    """A copy of every item, by where the geometry says it is."""
    return {
        (slab, page): pool.buffer[start : start + geometry.item_bytes].clone()
        for slab in range(geometry.num_slabs)
        for page in range(geometry.num_pages)
        if (start := geometry.address(slab, page)) >= 0
    }


def test_as_many_pages_as_were_taken() -> None:
    pool = KVPool(PoolGeometry(layers=1, num_pages=4, page_size=4, kv_heads=1, head_dim=8, itemsize=4))
    backup = Backup(pool, np.array([1, 2], dtype=np.int32))
    with pytest.raises(ValueError, match="a backup of 2 pages does not fit into 1"):
        backup.restore(pool, np.array([3], dtype=np.int32))
