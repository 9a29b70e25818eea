"""Prefills and decodes of different shapes: every head of every layer lands where the decode rank keeps it."""

from __future__ import annotations

from itertools import product

import pytest

from pdctl.engine.kvcache.pool_geometry import Layout
from pdctl.layout.kv_links import KvModel
from tests.cases import for_each
from tests.engine.kv_link.instances import DST, Grid, assert_moved, cache, instance, run_room
from tests.engine.kv_link.rig import bootstrap
from tests.engine.transfer.backends import has_nixl

GQA, MLA = KvModel(4, 4), KvModel(3, 1, mla=True)


def moves(
    model: KvModel,
    prefill_grid: Grid,
    decode_grid: Grid,
    layouts: tuple[Layout, Layout] = (Layout.LAYER_MAJOR,) * 2,
    backend: str = "shm",
) -> None:
    with (
        bootstrap() as server,
        instance("prefill", model, prefill_grid, server.port, layouts[0], backend=backend) as prefill,
        instance("decode", model, decode_grid, layout=layouts[1], backend=backend) as decode,
    ):
        whole = cache(model)
        prefill.fill(whole)
        before = [rank.pool.copy() for rank in decode.ranks]
        senders, receivers = run_room(prefill, decode, 5, server.port)
        assert_moved(decode, whole, before)
        assert {receiver.metadata for receiver in receivers} == {b"first token"}
        assert all(room.drained and room.failure is None for room in (*senders, *receivers))
        sent = sum(sender.stats.nbytes for sender in senders)
        received = [receiver.stats.nbytes for receiver in receivers]
        assert received == [len(DST) * rank.side.shape.page_bytes for rank in decode.ranks]
        assert sent == sum(received)
        assert {room.stats.room_nbytes for room in (*senders, *receivers)} == {sent}
        assert sum(s.stats.descriptors for s in senders) == sum(r.stats.descriptors for r in receivers) > 0
        assert all(0 < room.stats.moving <= room.stats.transfer for room in receivers)
        assert all(room.stats.gb_s > 0 for room in receivers)
        assert {stats.pages for stats in (room.stats for room in (*senders, *receivers))} == {len(DST)}


@for_each(("prefill_tp", "decode_tp"), list(product((1, 2, 4), (1, 2, 4))))
def test_heads_go_to_the_rank_that_keeps_them(prefill_tp: int, decode_tp: int) -> None:
    moves(GQA, Grid(prefill_tp), Grid(decode_tp))


@pytest.mark.parametrize(("prefill_tp", "decode_tp"), [(4, 1), (4, 2), (1, 4), (4, 4)])
def test_heads_that_several_ranks_hold_travel_once(prefill_tp: int, decode_tp: int) -> None:
    moves(KvModel(4, 2), Grid(prefill_tp), Grid(decode_tp))


@pytest.mark.parametrize(("prefill_tp", "decode_tp"), [(2, 1), (1, 2), (2, 4), (4, 2)])
def test_a_latent_comes_from_one_rank_and_the_dummies_only_count(prefill_tp: int, decode_tp: int) -> None:
    moves(MLA, Grid(prefill_tp), Grid(decode_tp))


@pytest.mark.parametrize(
    ("model", "prefill", "decode"),
    [
        (KvModel(5, 2), Grid(1, 2), Grid(1)),
        (KvModel(5, 2), Grid(2, 2), Grid(1)),
        (KvModel(5, 2), Grid(1, 2), Grid(2)),
        (KvModel(5, 2), Grid(2, 2), Grid(1, 2)),
        (MLA, Grid(2, 3), Grid(1)),
        (MLA, Grid(2, 2), Grid(1, 2)),
    ],
)
def test_a_stages_layers_land_at_their_place(model: KvModel, prefill: Grid, decode: Grid) -> None:
    moves(model, prefill, decode)


@for_each("layouts", list(product(Layout, Layout)))
def test_layouts_and_shapes_may_differ_together(layouts: tuple[Layout, Layout]) -> None:
    moves(GQA, Grid(4), Grid(2), layouts)


@pytest.mark.skipif(not has_nixl(), reason="no NIXL wheel for this platform")
@pytest.mark.parametrize(
    ("model", "prefill", "decode"),
    [(GQA, Grid(2), Grid(1)), (GQA, Grid(1), Grid(2)), (KvModel(5, 2), Grid(1, 2), Grid(1)), (MLA, Grid(2), Grid(1))],
)
def test_nixl_moves_the_same(model: KvModel, prefill: Grid, decode: Grid) -> None:
    moves(model, prefill, decode, backend="nixl")
