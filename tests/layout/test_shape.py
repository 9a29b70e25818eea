"""Rank vectors: the answers SGLang's own functions gave when they were executed for 0.5.3 to 0.5.23."""

from __future__ import annotations

from itertools import product

import pytest

from pdctl.layout.feasibility import broken_rules
from pdctl.layout.shape import RankPlace, Shape, place, stage_layers
from tests.cases import for_each

EIGHT = tuple(range(8))
SIXTEEN = tuple(range(16))
TWO_NODES = (0,) * 8 + (1,) * 8


def column(ranks: tuple[RankPlace, ...], field: str) -> tuple[object, ...]:
    return tuple(getattr(rank, field) for rank in ranks)


def halves(count: int, each: int) -> tuple[int, ...]:
    """0 0 1 1 2 2 …: `count` numbers, `each` times each."""
    return tuple(number for number in range(count) for _ in range(each))


GOLDEN: dict[str, tuple[Shape, dict[str, tuple[object, ...]]]] = {
    "A: tp16 dp8 on two nodes": (
        Shape(tp=16, dp=8, ep=16),
        {
            "node": TWO_NODES,
            "gpu": EIGHT + EIGHT,
            "tp_rank": SIXTEEN,
            "attn_dp_rank": halves(8, 2),
            "dp_rank": halves(8, 2),
            "attn_tp_rank": (0, 1) * 8,
            "moe_ep_rank": SIXTEEN,
        },
    ),
    "B: tp16 dp2 on two nodes": (
        Shape(tp=16, dp=2, ep=16),
        {
            "node": TWO_NODES,
            "gpu": EIGHT + EIGHT,
            "tp_rank": SIXTEEN,
            "attn_dp_rank": (0,) * 8 + (1,) * 8,
            "attn_tp_rank": EIGHT + EIGHT,
            "moe_ep_rank": SIXTEEN,
        },
    ),
    "C: tp8 pp2 on two nodes": (
        Shape(tp=8, pp=2),
        {
            "node": TWO_NODES,
            "gpu": EIGHT + EIGHT,
            "pp_rank": TWO_NODES,
            "tp_rank": EIGHT + EIGHT,
            "dp_rank": (None,) * 16,
            "attn_dp_rank": (0,) * 16,
            "attn_tp_rank": EIGHT + EIGHT,
            "moe_ep_rank": (0,) * 16,
            "world_rank": SIXTEEN,
        },
    ),
    "D: tp8 dp8 ep8": (
        Shape(tp=8, dp=8, ep=8),
        {"gpu": EIGHT, "tp_rank": EIGHT, "attn_dp_rank": EIGHT, "moe_ep_rank": EIGHT, "attn_tp_rank": (0,) * 8},
    ),
    "E: tp16 dp2 cp2": (
        Shape(tp=16, dp=2, cp=2, ep=16),
        {
            "gpu": EIGHT + EIGHT,
            "tp_rank": SIXTEEN,
            "attn_dp_rank": (0,) * 8 + (1,) * 8,
            "attn_cp_rank": (0, 0, 0, 0, 1, 1, 1, 1) * 2,
            "attn_tp_rank": (0, 1, 2, 3) * 4,
            "moe_ep_rank": SIXTEEN,
        },
    ),
    "F: tp8 dp4 ep4": (
        Shape(tp=8, dp=4, ep=4),
        {"attn_dp_rank": halves(4, 2), "attn_tp_rank": (0, 1) * 4, "moe_ep_rank": halves(4, 2), "gpu": EIGHT},
    ),
    "G: tp4 pp2 on one node": (
        Shape(tp=4, pp=2),
        {"gpu": EIGHT, "pp_rank": (0, 0, 0, 0, 1, 1, 1, 1), "tp_rank": (0, 1, 2, 3) * 2, "node": (0,) * 8},
    ),
    "H: tp16 dp4 pp2 on four nodes": (
        Shape(tp=16, dp=4, pp=2, ep=16),
        {
            "node": halves(4, 8),
            "gpu": EIGHT * 4,
            "pp_rank": (0,) * 16 + (1,) * 16,
            "tp_rank": SIXTEEN * 2,
            "attn_dp_rank": halves(4, 4) * 2,
            "attn_tp_rank": (0, 1, 2, 3) * 8,
            "moe_ep_rank": SIXTEEN * 2,
        },
    ),
    "I: tp2 dp2 from GPU 4 by 2": (Shape(tp=2, dp=2, base_gpu_id=4, gpu_id_step=2), {"gpu": (4, 6)}),
    "J: tp8 cp4 moe_dp2 ep4": (  # arithmetic alone: SGLang's start-up check wants attn_cp == moe_dp
        Shape(tp=8, cp=4, moe_dp=2, ep=4),
        {
            "attn_cp_rank": halves(4, 2),
            "attn_tp_rank": (0, 1) * 4,
            "moe_dp_rank": (0, 0, 0, 0, 1, 1, 1, 1),
            "moe_ep_rank": (0, 1, 2, 3) * 2,
        },
    ),
}
WIDTHS = {"A": 2, "B": 8, "C": 8, "D": 1, "E": 4, "F": 2, "G": 4, "H": 4, "I": 1, "J": 2}


@for_each("name", GOLDEN)
def test_golden_vectors(name: str) -> None:
    shape, columns = GOLDEN[name]
    ranks = place(shape)
    assert {field: column(ranks, field) for field in columns} == columns
    assert shape.attn_tp_size == WIDTHS[name[0]]


def test_replicas_take_gpus_of_their_own() -> None:
    ranks = place(Shape(tp=2, replicas=3, base_gpu_id=1))
    assert column(ranks, "gpu") == (1, 2, 3, 4, 5, 6)
    assert column(ranks, "dp_rank") == (0, 0, 1, 1, 2, 2)
    assert column(ranks, "attn_dp_rank") == (0,) * 6
    assert column(ranks, "world_rank") == (0, 1) * 3


def test_deepep_makes_ep_tp() -> None:
    shape = Shape(tp=16, dp=8, deepep=True)
    assert shape.ep_size == 16
    assert column(place(shape), "moe_ep_rank") == SIXTEEN


def test_expert_tp_rank_where_ep_is_smaller_than_tp() -> None:
    ranks = place(Shape(tp=8, ep=2))
    assert column(ranks, "moe_ep_rank") == (0, 0, 0, 0, 1, 1, 1, 1)
    assert column(ranks, "moe_tp_rank") == (0, 1, 2, 3) * 2


def test_no_gpu_on_a_cpu() -> None:
    assert column(place(Shape(tp=2), on_cpu=True), "gpu") == (None, None)


SIZES = (1, 2, 3, 4, 6, 8, 16, 32)
WORKING = [
    shape
    for tp, dp, pp, ep, cp in product(SIZES, (1, 2, 4, 8, 16), (1, 2, 3, 4), (1, 2, 8), (1, 2))
    if not broken_rules(shape := Shape(tp=tp, dp=dp, pp=pp, ep=ep, cp=cp))
]


def test_every_shape_that_passes_is_placed_whole() -> None:
    """Each (pp, tp) rank once, each GPU once, the attention coordinates a bijection, groups of equal size."""
    assert len(WORKING) > 200
    for shape in WORKING:
        ranks = place(shape)
        assert len(ranks) == shape.gpus
        assert {(rank.pp_rank, rank.tp_rank) for rank in ranks} == set(product(range(shape.pp), range(shape.tp)))
        assert len({(rank.node, rank.gpu) for rank in ranks}) == shape.gpus
        assert {rank.world_rank for rank in ranks} == set(range(shape.gpus))
        for rank in ranks:
            group = rank.attn_dp_rank * shape.cp + rank.attn_cp_rank
            assert rank.tp_rank == group * shape.attn_tp_size + rank.attn_tp_rank
            assert rank.gpu is not None
            assert 0 <= rank.gpu < shape.gpus_per_host
            assert rank.moe_ep_rank < shape.ep_size
        corners = {(rank.pp_rank, rank.attn_dp_rank, rank.attn_cp_rank, rank.attn_tp_rank) for rank in ranks}
        assert len(corners) == shape.gpus


VECTOR = [(0, 7), (7, 14), (14, 21), (21, 29), (29, 37), (37, 45), (45, 53), (53, 61)]


@for_each(("layers", "pp"), [(1, 1), (7, 3), (8, 4), (61, 8), (4, 4)])
def test_stages_hold_every_layer_once_and_the_last_ones_the_rest(layers: int, pp: int) -> None:
    stages = [stage_layers(layers, pp, stage) for stage in range(pp)]
    assert [layer for stage in stages for layer in stage] == list(range(layers))
    sizes = [len(stage) for stage in stages]
    assert sizes == sorted(sizes)
    assert sizes[-1] - sizes[0] <= 1


def test_a_stage_without_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="3 layers over 4 pipeline stages"):
        stage_layers(3, 4, 0)


def test_it_is_sglangs_answer() -> None:
    """Executed: get_pp_indices of sglang 0.5.8 and 0.5.23, 61 layers over 8 stages."""
    assert [(layers.start, layers.stop) for layers in (stage_layers(61, 8, stage) for stage in range(8))] == VECTOR
