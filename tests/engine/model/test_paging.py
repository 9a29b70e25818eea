"""Which sequences a decode step reads as one tensor, and that it reads the same numbers either way."""

from __future__ import annotations

import numpy as np
import torch

from pdctl.engine.kvcache.kv_pool import KVPool
from pdctl.engine.kvcache.pool_geometry import PoolGeometry
from pdctl.engine.model.forward_pass import PageReader, Stretch
from tests.cases import for_each

PAGE = 4


def pool(layout: str) -> KVPool:
    geometry = PoolGeometry(
        layers=2, num_pages=40, page_size=PAGE, kv_heads=2, head_dim=6, itemsize=4, layout=layout
    )  # fmt: skip
    made = KVPool(geometry)
    made.rows.copy_(torch.arange(made.rows.numel(), dtype=torch.float32).view(made.rows.shape))
    return made


def stretch(first: int, length: int, skip: int = 0) -> Stretch:
    """On one run of pages."""
    return Stretch(np.arange(first, first - (-(skip + length) // PAGE), dtype=np.int32), skip, length)


SCATTERED = Stretch(np.array([30, 12, 25], np.int32), 1, 10)
ALIKE = [stretch(2, 9), stretch(5, 9), stretch(8, 9)]


@for_each("layout", ["layer-major", "page-major", "head-major"])
@for_each(
    ("parts", "in_place", "gathered"),
    [
        (ALIKE, [3], [3]),
        ([*ALIKE, stretch(12, 9)], [3, 1], [4]),  # a gap before the last; a copy has none
        ([stretch(2, 9), stretch(5, 8), stretch(8, 8)], [1, 2], [1, 2]),
        ([stretch(8, 9), stretch(5, 9)], [1, 1], [2]),
        ([stretch(2, 9), stretch(2, 9)], [1, 1], [2]),  # the same pages: a shared prompt
        ([stretch(2, 6, skip=1), stretch(5, 6, skip=3)], [2], [2]),
        ([SCATTERED, SCATTERED, stretch(2, 10)], [2, 1], [2, 1]),
    ],
    ids=["equal", "gap", "lengths", "backwards", "shared", "skipped", "scattered"],
)
def test_sequences_of_one_length_at_one_distance_are_one_tensor(
    layout: str, parts: list[Stretch], in_place: list[int], gathered: list[int]
) -> None:
    memory = pool(layout)
    joined = PageReader(memory, parts, join=True)
    alone = PageReader(memory, parts)
    for layer in range(2):
        whole, each = joined.past(layer), alone.past(layer)
        assert [len(keys) for keys, _ in whole] == (in_place if layout == "layer-major" else gathered)
        assert len(each) == len(parts)
        for slab in range(2):
            rows = [row for entry in whole for row in entry[slab]]
            for row, entry, part in zip(rows, each, parts, strict=True):
                assert row.shape == (2, part.length, 6)
                assert torch.equal(row, entry[slab][0])
    keys = memory.k(0)[parts[0].pages.tolist()].flatten(0, 1)[parts[0].skip :][: parts[0].length]
    assert torch.equal(alone.past(0)[0][0][0], keys.transpose(0, 1))
