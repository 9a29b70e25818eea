"""Runs and block descriptors, checked against the plain definition of an address."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from pdctl.engine.cache.geometry import Layout
from pdctl.engine.transfer.base import Cut, TransferError
from pdctl.engine.transfer.pages import (
    NO_PAGES,
    Run,
    block_indices,
    expanded_rows,
    require_pairs,
    runs,
    strided_rows,
    whole_pages,
)
from tests.engine.transfer.far import geometry


def pages(*ids: int) -> np.ndarray:
    return np.array(ids, dtype=np.int32)


@pytest.mark.parametrize(
    ("src", "dst", "expected"),
    [
        ((), (), []),
        ((3,), (7,), [Run(3, 7, 1)]),
        ((3, 4, 5), (7, 8, 9), [Run(3, 7, 3)]),
        ((3, 4, 5), (7, 9, 10), [Run(3, 7, 1), Run(4, 9, 2)]),
        ((3, 5, 6), (7, 8, 9), [Run(3, 7, 1), Run(5, 8, 2)]),
        ((5, 4, 3), (9, 8, 7), [Run(5, 9, 1), Run(4, 8, 1), Run(3, 7, 1)]),
        ((1, 2, 2), (4, 5, 6), [Run(1, 4, 2), Run(2, 6, 1)]),
    ],
)
def test_a_run_ends_where_either_side_jumps(src: tuple[int, ...], dst: tuple[int, ...], expected: list[Run]) -> None:
    assert runs(pages(*src), pages(*dst)) == expected


def test_runs_move_every_pair_in_order_and_are_as_few_as_possible() -> None:
    rng = np.random.default_rng(5)
    for _ in range(200):
        length = int(rng.integers(1, 40))
        src, dst = (np.cumsum(rng.choice([1, 1, 1, 2, -1], length)).astype(np.int32) for _ in range(2))
        found = runs(src, dst)
        pairs = [(run.src + i, run.dst + i) for run in found for i in range(run.count)]
        assert pairs == list(zip(src.tolist(), dst.tolist(), strict=True))
        for one, two in itertools.pairwise(found):
            assert (one.src + one.count, one.dst + one.count) != (two.src, two.dst)


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("slabs", [(0, 6), (2, 4)])
def test_strided_rows_stand_where_the_geometry_says(layout: Layout, slabs: tuple[int, int]) -> None:
    shape = geometry(layout)
    blocks = expanded_rows(strided_rows(shape, 1000, slabs, whole=False))
    ids = pages(5, 0, 23)
    chosen = blocks[block_indices(ids, slabs[1] - slabs[0], shape.num_pages, whole=False)]
    expected = [1000 + shape.address(slab, page) for slab in range(*slabs) for page in ids.tolist()]
    assert chosen[:, 0].tolist() == expected
    assert set(chosen[:, 1].tolist()) == {shape.item_bytes}


def test_whole_pages_are_one_block_each_only_when_both_sides_keep_them_together() -> None:
    page_major, layer_major = geometry(Layout.PAGE_MAJOR), geometry(Layout.LAYER_MAJOR)
    assert whole_pages(page_major, page_major, Cut.whole(page_major))
    assert not whole_pages(page_major, page_major, replace(Cut.whole(page_major), slabs=2))
    assert not whole_pages(page_major, layer_major, Cut.whole(page_major))
    blocks = expanded_rows(strided_rows(page_major, 0, (0, 6), whole=True))
    assert blocks[7].tolist() == [page_major.address(0, 7), page_major.page_bytes, 0]


@pytest.mark.parametrize(
    ("src", "dst", "text"),
    [
        ((1, 2), (1,), "2 source pages cannot go to 1 destination pages"),
        ((1, 24), (1, 2), "source: page 24 is outside the pool of 24 pages"),
        ((1, 2), (1, -3), "destination: page -3 is outside the pool of 24 pages"),
    ],
)
def test_pages_that_do_not_exist_are_refused_before_anything_moves(
    src: tuple[int, ...], dst: tuple[int, ...], text: str
) -> None:
    with pytest.raises(TransferError, match=text):
        require_pairs(pages(*src), pages(*dst), geometry(), geometry())


def test_no_pages_are_fine() -> None:
    require_pairs(NO_PAGES, NO_PAGES, geometry(), geometry())
    assert runs(NO_PAGES, NO_PAGES) == []
