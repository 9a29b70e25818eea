"""Rank pairs: the answers of SGLang's own `_resolve_rank_mapping`, executed for 0.5.13, 0.5.18 and 0.5.23."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from pdctl.engines.versions import V0_5_3, V0_5_8
from pdctl.layout.kv_links import (
    KvModel,
    KvPiece,
    PoolSeat,
    find_targets,
    head_slices,
    held_heads,
    piece,
    pull,
    speaks,
    targets,
)
from pdctl.layout.shape import Shape
from tests.cases import for_each

# D, P, MLA -> per decode rank: targets, real, required_dst_info_num, required_prefill_response_num
GOLDEN = [
    (2, 2, False, [((0,), (0,), 1, 1), ((1,), (1,), 1, 1)]),
    (4, 2, False, [((0,), (0,), 2, 1), ((0,), (0,), 2, 1), ((1,), (1,), 2, 1), ((1,), (1,), 2, 1)]),
    (2, 4, False, [((0, 1), (0, 1), 1, 2), ((2, 3), (2, 3), 1, 2)]),
    (2, 4, True, [((0, 1), (0,), 1, 1), ((2, 3), (2,), 1, 1)]),
    (1, 8, False, [(tuple(range(8)), tuple(range(8)), 1, 8)]),
    (1, 8, True, [(tuple(range(8)), (0,), 1, 1)]),
    (1, 2, False, [((0, 1), (0, 1), 1, 2)]),
]


@for_each(("decode", "prefill", "mla", "rows"), GOLDEN)
def test_golden_mapping(decode: int, prefill: int, mla: bool, rows: list[tuple[object, ...]]) -> None:
    found = [targets(decode, prefill, rank, mla) for rank in range(decode)]
    assert [
        (one.tp_ranks, one.real, one.required_dst_info_num, one.required_prefill_response_num) for one in found
    ] == rows
    for one in found:
        assert sorted(one.real + one.dummy) == list(one.tp_ranks)


def test_pipeline_stages_are_contacted_last_first() -> None:
    found = targets(1, 1, 0, False, prefill_pp=2, decode_pp=1)
    assert (found.tp_ranks, found.pp_ranks, found.required_prefill_response_num) == ((0,), (1, 0), 2)
    found = targets(1, 2, 0, False, prefill_pp=2, decode_pp=1)
    assert (found.tp_ranks, found.pp_ranks, found.required_prefill_response_num) == ((0, 1), (1, 0), 4)


def test_equal_pipelines_pull_stage_from_stage() -> None:
    for stage in range(2):
        found = targets(2, 2, 1, False, prefill_pp=2, decode_pp=2, decode_pp_rank=stage)
        assert (found.pp_ranks, found.required_prefill_response_num) == ((stage,), 1)


def test_the_oldest_release_contacts_every_stage_in_order() -> None:
    assert targets(1, 1, 0, False, prefill_pp=2, version=V0_5_3).pp_ranks == (0, 1)
    assert targets(1, 1, 0, False, prefill_pp=2, version=V0_5_8).pp_ranks == (1, 0)


def test_context_parallel_ranks() -> None:
    found = targets(4, 4, 0, True, prefill_cp=2)
    assert (found.cp_ranks, found.required_prefill_response_num) == ((0,), 1)
    found = targets(4, 4, 0, True, prefill_cp=2, all_cp_ranks=True)
    assert (found.cp_ranks, found.required_prefill_response_num) == ((0, 1), 2)


@for_each(("decode", "prefill"), [(2, 3), (4, 6), (3, 8)])
def test_widths_that_do_not_divide_are_refused(decode: int, prefill: int) -> None:
    with pytest.raises(ValueError, match="!= 0"):
        targets(decode, prefill, 0, False)


def test_pipelines_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="neither 1 nor"):
        targets(1, 1, 0, False, prefill_pp=2, decode_pp=4)


WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
PAIRS = [(d, p) for d, p in product(WIDTHS, WIDTHS) if max(d, p) % min(d, p) == 0]


@pytest.mark.parametrize("mla", [False, True])
def test_both_sides_wait_for_the_same_messages(mla: bool) -> None:
    """A prefill rank waits for as many decode ranks as name it; a decode rank for as many as really send to it."""
    for decode, prefill in PAIRS:
        named = dict.fromkeys(range(prefill), 0)
        for rank in range(decode):
            found = targets(decode, prefill, rank, mla)
            assert len(found.real) == found.required_prefill_response_num
            assert found.real
            for other in found.tp_ranks:
                named[other] += 1
        waits = targets(decode, prefill, 0, mla).required_dst_info_num
        assert set(named.values()) == {waits}, (decode, prefill)


HEADS = (1, 2, 4, 8, 16, 64)


def test_every_decode_rank_gets_each_of_its_heads() -> None:
    for heads, (decode, prefill) in product(HEADS, PAIRS):
        if any(heads % width and width % heads for width in (decode, prefill)):
            continue
        for rank in range(decode):
            slices = head_slices(heads, decode, prefill, rank)
            wanted = held_heads(heads, decode, rank)
            filled = [part.target + at for part in slices for at in range(part.heads)]
            assert sorted(set(filled)) == list(range(len(wanted)))
            for part in slices:
                assert part.heads > 0
                held = held_heads(heads, prefill, part.prefill_rank)
                assert held[part.source] == wanted[part.target]
                assert part.source + part.heads <= len(held)


def test_every_head_is_sent_once_where_no_side_is_wider_than_the_heads() -> None:
    for heads, (decode, prefill) in product(HEADS, PAIRS):
        if max(decode, prefill) > heads or heads % max(decode, prefill):
            continue
        sent = [
            held_heads(heads, prefill, part.prefill_rank)[part.source + at]
            for rank in range(decode)
            for part in head_slices(heads, decode, prefill, rank)
            for at in range(part.heads)
        ]
        assert sorted(sent) == list(range(heads)), (heads, decode, prefill)


def test_heads_that_cannot_be_shared_out_are_refused() -> None:
    with pytest.raises(ValueError, match="neither divides"):
        held_heads(8, 3, 0)


@pytest.mark.parametrize(("dp", "ranks"), [(8, (0, 1)), (2, tuple(range(8)))])
def test_the_walkthrough(dp: int, ranks: tuple[int, ...]) -> None:
    """TP16 prefill, TP32/DP32 decode: every decode rank pulls from all attention ranks of its request's DP group."""
    links = pull("prefill-0", "decode-0", Shape(tp=16, dp=dp), Shape(tp=32, dp=32), mla=False)
    assert [link.decode_rank for link in links] == list(range(32))
    assert {link.prefill_ranks for link in links} == {ranks}
    assert {link.dummy_ranks for link in links} == {()}
    under_mla = pull("prefill-0", "decode-0", Shape(tp=16, dp=dp), Shape(tp=32, dp=32), mla=True)
    assert {(link.prefill_ranks, link.dummy_ranks) for link in under_mla} == {(ranks, ranks[1:])}


def test_links_carry_head_slices_of_a_known_model() -> None:
    links = pull("p", "d", Shape(tp=2), Shape(tp=4), mla=False, kv_heads=8)
    assert [[tuple(part) for part in link.slices] for link in links] == [
        [(0, 0, 0, 2)],
        [(0, 2, 0, 2)],
        [(1, 0, 0, 2)],
        [(1, 2, 0, 2)],
    ]


TP = (1, 2, 4, 8)


def seats(attn_tp: int, pp: int) -> list[PoolSeat]:
    return [PoolSeat(attn_tp, tp, pp, stage) for stage in range(pp) for tp in range(attn_tp)]


def pool(model: KvModel, seat: PoolSeat) -> np.ndarray:
    """[slab, head] of what the rank holds: each number names its slab and head in the model."""
    slabs, heads = model.slabs(seat), model.heads(seat)
    return np.array([[1000 * slab + head for head in heads] for slab in slabs])


@for_each(
    ("model", "prefill_pp", "decode_pp"),
    [
        (KvModel(4, 8), 1, 1),
        (KvModel(4, 2), 1, 1),
        (KvModel(1, 1), 1, 1),
        (KvModel(7, 4), 3, 1),
        (KvModel(7, 4), 3, 3),
        (KvModel(5, 1, mla=True), 1, 1),
        (KvModel(5, 1, mla=True), 2, 1),
        (KvModel(5, 1, mla=True), 2, 2),
    ],
)
def test_every_decode_pool_is_filled_exactly_once(model: KvModel, prefill_pp: int, decode_pp: int) -> None:
    for prefill_tp, decode_tp in product(TP, TP):
        for decode in seats(decode_tp, decode_pp):
            wanted = pool(model, decode)
            filled, writes = np.full_like(wanted, -1), np.zeros_like(wanted)
            for prefill in seats(prefill_tp, prefill_pp):
                cut = piece(model, prefill, decode)
                if cut is None:
                    continue
                source = pool(model, prefill)[
                    cut.local_slab : cut.local_slab + cut.slabs, cut.local_head : cut.local_head + cut.heads
                ]
                at = (
                    slice(cut.remote_slab, cut.remote_slab + cut.slabs),
                    slice(cut.remote_head, cut.remote_head + cut.heads),
                )
                filled[at], writes[at] = source, writes[at] + 1
            assert np.array_equal(filled, wanted), (prefill_tp, decode_tp, decode)
            assert (writes == 1).all(), (prefill_tp, decode_tp, decode)


@pytest.mark.parametrize("mla", [False, True])
def test_exactly_one_rank_speaks_to_each_decode_rank_and_it_is_of_the_last_stage(mla: bool) -> None:
    model = KvModel(4, 1 if mla else 4, mla)
    for prefill_tp, decode_tp, (prefill_pp, decode_pp) in product(TP, TP, ((1, 1), (2, 1), (2, 2))):
        for decode in seats(decode_tp, decode_pp):
            found = find_targets(model, PoolSeat(prefill_tp, 0, prefill_pp, 0), decode)
            speakers = [
                prefill
                for prefill in seats(prefill_tp, prefill_pp)
                if prefill.attn_tp_rank in found.tp_ranks
                and prefill.pp_rank in found.pp_ranks
                and speaks(model, prefill, decode)
            ]
            assert len(speakers) == 1
            assert speakers[0].attn_tp_rank in found.real
            assert speakers[0].pp_rank == (decode.pp_rank if decode_pp > 1 else prefill_pp - 1)


def test_ranks_that_hold_the_same_head_share_its_layers_evenly() -> None:
    """8 ranks, 2 heads: four hold each; a decode of one rank takes a quarter of the layers from each of them."""
    model, decode = KvModel(6, 2), PoolSeat()
    cuts = [piece(model, PoolSeat(8, rank), decode) for rank in range(8)]
    assert [cut and (cut.remote_slab, cut.slabs, cut.remote_head) for cut in cuts] == [
        (0, 3, 0), (3, 3, 0), (6, 3, 0), (9, 3, 0), (0, 3, 1), (3, 3, 1), (6, 3, 1), (9, 3, 1),
    ]  # fmt: skip


def test_ranks_are_left_out_where_there_is_less_to_write_than_ranks_that_hold_it() -> None:
    cuts = [piece(KvModel(1, 1), PoolSeat(8, rank), PoolSeat()) for rank in range(8)]
    assert sum(cut is not None for cut in cuts) == 2


def test_a_latent_comes_whole_from_the_first_of_the_ranks_that_hold_it() -> None:
    model = KvModel(3, 1, mla=True)
    whole = KvPiece(slabs=3, heads=1, local_slab=0, remote_slab=0, local_head=0, remote_head=0)
    assert [piece(model, PoolSeat(4, rank), PoolSeat(2, 1)) for rank in range(4)] == [None, None, whole, None]
    assert [piece(model, PoolSeat(2, rank), PoolSeat(4, 3)) for rank in range(2)] == [None, whole]


def test_a_stage_lands_at_its_layers_place_in_a_decode_without_stages() -> None:
    model = KvModel(5, 2)
    cuts = [piece(model, PoolSeat(1, 0, 2, stage), PoolSeat()) for stage in range(2)]
    assert [cut and (cut.local_slab, cut.remote_slab, cut.slabs) for cut in cuts] == [(0, 0, 4), (0, 4, 6)]
    assert piece(model, PoolSeat(1, 0, 2, 0), PoolSeat(1, 0, 2, 1)) is None
