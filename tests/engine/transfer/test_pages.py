"""Runs and block descriptors, checked against the plain definition of an address."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from pdctl.engine.kvcache.pool_geometry import Layout
from pdctl.engine.transfer.transport import (
    NO_PAGES,
    Blocks,
    Cut,
    PageRun,
    TransferError,
    Unit,
    blocks,
    expanded_rows,
    require_pairs,
    runs,
    sides,
    unit,
)
from tests.engine.transfer.far import geometry


def pages(*ids: int) -> np.ndarray:
    return np.array(ids, dtype=np.int32)


@pytest.mark.parametrize(
    ("src", "dst", "expected"),
    [
        ((), (), []),
        ((3,), (7,), [PageRun(3, 7, 1)]),
        ((3, 4, 5), (7, 8, 9), [PageRun(3, 7, 3)]),
        ((3, 4, 5), (7, 9, 10), [PageRun(3, 7, 1), PageRun(4, 9, 2)]),
        ((3, 5, 6), (7, 8, 9), [PageRun(3, 7, 1), PageRun(5, 8, 2)]),
        ((5, 4, 3), (9, 8, 7), [PageRun(5, 9, 1), PageRun(4, 8, 1), PageRun(3, 7, 1)]),
        ((1, 2, 2), (4, 5, 6), [PageRun(1, 4, 2), PageRun(2, 6, 1)]),
    ],
)
def test_a_run_ends_where_either_side_jumps(
    src: tuple[int, ...], dst: tuple[int, ...], expected: list[PageRun]
) -> None:
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


def addresses(found: Blocks, ids: np.ndarray) -> list[int]:
    """Where the chosen blocks begin, by way of the rows nixl gets."""
    every = expanded_rows(found.rows(1000))
    assert set(every[:, 1].tolist()) == {found.length}
    return [int(address) for address in every[found.numbers(ids), 0]]


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("slabs", [range(6), range(2, 4)])
def test_items_stand_where_the_geometry_says(layout: Layout, slabs: range) -> None:
    shape, ids = geometry(layout), pages(5, 0, 23)
    found = blocks(shape, Unit.ITEM, len(slabs), slabs.start, shape.kv_heads, 0)
    assert addresses(found, ids) == [1000 + shape.address(slab, page) for slab in slabs for page in ids.tolist()]
    assert (found.length, found.per_page) == (shape.item_bytes, len(slabs))


@pytest.mark.parametrize("layout", [Layout.LAYER_MAJOR, Layout.PAGE_MAJOR])
def test_some_heads_are_one_piece_per_token(layout: Layout) -> None:
    shape, ids = replace(geometry(layout), kv_heads=4), pages(5, 0)
    found = blocks(shape, Unit.TOKEN, 2, 3, heads=2, first_head=1)
    head = shape.head_dim * shape.itemsize
    starts = [1000 + shape.address(slab, page) for slab in (3, 4) for page in (5, 0)]
    assert addresses(found, ids) == [start + token * 4 * head + head for start in starts for token in range(4)]
    assert (found.length, found.per_page) == (2 * head, 2 * shape.page_size)


def test_some_heads_are_one_piece_per_item_where_heads_stand_apart() -> None:
    shape, ids = replace(geometry(Layout.HEAD_MAJOR), kv_heads=4), pages(5, 0)
    found = blocks(shape, Unit.HEADS, 2, 3, heads=2, first_head=1)
    strip = shape.page_size * shape.head_dim * shape.itemsize
    assert addresses(found, ids) == [1000 + shape.address(slab, page) + strip for slab in (3, 4) for page in (5, 0)]
    assert (found.length, found.per_page) == (2 * strip, 2)


@pytest.mark.parametrize("layout", list(Layout))
def test_one_head_of_one_token_stands_where_the_layout_says(layout: Layout) -> None:
    shape, ids = replace(geometry(layout), kv_heads=4), pages(5, 0)
    found = blocks(shape, Unit.HEAD, 2, 3, heads=2, first_head=1)
    head, tokens = shape.head_dim * shape.itemsize, shape.page_size
    order = [
        (head_number * tokens + token if layout == Layout.HEAD_MAJOR else token * 4 + head_number) * head
        for token in range(tokens)
        for head_number in (1, 2)
    ]
    starts = [1000 + shape.address(slab, page) for slab in (3, 4) for page in (5, 0)]
    assert addresses(found, ids) == [start + inside for start in starts for inside in order]
    assert (found.length, found.per_page) == (head, 2 * 2 * tokens)


def test_the_larger_the_piece_the_better() -> None:
    """What moves between head-major pools, and others: with one head, or one token in a page, they are the same."""
    by_head, by_token = geometry(Layout.HEAD_MAJOR), geometry(Layout.LAYER_MAJOR)
    some, every = Cut(slabs=6, heads=1), Cut.whole(by_head)
    assert unit(by_head, by_head, every) == Unit.ITEM
    assert unit(by_head, by_head, some) == Unit.HEADS
    assert unit(by_head, by_token, every) == unit(by_token, by_head, some) == Unit.HEAD
    one = replace(by_token, kv_heads=1)
    assert unit(one, by_head, some) == unit(by_head, one, some) == Unit.HEADS
    assert unit(by_token, replace(by_head, kv_heads=1), some) == Unit.TOKEN
    assert unit(one, replace(by_head, kv_heads=1), some) == Unit.ITEM
    assert unit(replace(by_head, page_size=1), replace(by_token, page_size=1), every) == Unit.ITEM


def test_pages_are_one_block_each_where_both_sides_keep_their_slabs_together() -> None:
    page_major, layer_major = geometry(Layout.PAGE_MAJOR), geometry(Layout.LAYER_MAJOR)
    whole = Cut.whole(page_major)
    assert unit(page_major, page_major, whole) == Unit.PAGE
    assert unit(page_major, layer_major, whole) == unit(layer_major, layer_major, whole) == Unit.ITEM
    assert unit(page_major, page_major, replace(whole, heads=1)) == Unit.TOKEN
    assert unit(page_major, replace(page_major, kv_heads=4), whole) == Unit.TOKEN
    here, there = sides(page_major, page_major, whole)
    assert here.first == 0
    assert here.length == there.length == here.stride == page_major.page_bytes, "neighbouring pages join"


def test_a_pipeline_stage_of_a_page_is_still_one_block() -> None:
    """A stage's page-major pool into the part of a page that its layers are on the other side."""
    stage, full = geometry(Layout.PAGE_MAJOR, layers=1), geometry(Layout.PAGE_MAJOR, num_pages=30)
    here, there = sides(stage, full, Cut(slabs=2, heads=2, remote_slab=4))
    assert (here.first, here.length, here.stride) == (0, stage.page_bytes, stage.page_bytes)
    assert (there.first, there.length, there.stride) == (full.address(4, 0), stage.page_bytes, full.page_bytes)


def test_a_pool_with_more_pieces_than_can_be_numbered_is_refused() -> None:
    huge = replace(geometry(), num_pages=1 << 27)
    with pytest.raises(TransferError, match="pieces are numbered in 32 bits"):
        sides(huge, huge, Cut(slabs=2, heads=1))


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
