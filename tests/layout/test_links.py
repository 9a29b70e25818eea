"""Rank pairs: the answers of SGLang's own `_resolve_rank_mapping`, executed for 0.5.13, 0.5.18 and 0.5.23."""

from __future__ import annotations

from itertools import product

import pytest

from pdctl.engines.versions import V0_5_3, V0_5_8
from pdctl.layout.kv_links import head_slices, held_heads, pull, targets
from pdctl.layout.shape import Shape

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


@pytest.mark.parametrize(("decode", "prefill", "mla", "rows"), GOLDEN)
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


@pytest.mark.parametrize(("decode", "prefill"), [(2, 3), (4, 6), (3, 8)])
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
