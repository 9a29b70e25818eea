"""What prefill ranks write into decode ranks, checked by writing it: every number of the cache once, in its place."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from pdctl.layout.kv_links import KvModel, KvPiece, PoolSeat, find_targets, piece, speaks

TP = (1, 2, 4, 8)


def seats(attn_tp: int, pp: int) -> list[PoolSeat]:
    return [PoolSeat(attn_tp, tp, pp, stage) for stage in range(pp) for tp in range(attn_tp)]


def pool(model: KvModel, seat: PoolSeat) -> np.ndarray:
    """[slab, head] of what the rank holds: each number names its slab and head in the model."""
    slabs, heads = model.slabs(seat), model.heads(seat)
    return np.array([[1000 * slab + head for head in heads] for slab in slabs])


@pytest.mark.parametrize(
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
