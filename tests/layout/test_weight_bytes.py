"""Parameter counts equal the published ones; bytes per rank equal the tables computed by hand from the configs."""

from __future__ import annotations

from pdctl.layout.gpu_memory import copy_bytes, parameters, rank_bytes, stage_layers
from pdctl.layout.model_config import load
from pdctl.layout.shape import PLAIN, Placement, Shape
from tests.cases import for_each

from .conftest import MODELS

GIB = 1 << 30
WIDE = Placement(redundant_experts=32, moe_dense_tp=1, dp_lm_head=True)


@for_each(
    ("name", "count", "size"),
    [
        ("llama-3-8b", 8_030_261_248, 16_060_522_496),
        ("qwen3-32b", 32_762_123_264, 65_524_246_528),
        ("deepseek-v3", 671_026_419_200, None),
        ("gpt-oss-120b", 116_829_156_672, 60_914_073_600 + 4_334_742_144),
        ("mixtral-8x7b", 46_702_792_704, None),
        ("mistral-7b", 7_248_023_552, None),
        ("qwen2.5-7b", 7_615_616_512, None),
        ("qwen3-30b-a3b", 30_532_122_624, None),
        ("deepseek-v2-lite", 15_706_484_224, None),
    ],
)
def test_parameters(name: str, count: int, size: int | None) -> None:
    model = load(MODELS / name)
    assert parameters(model) == count
    assert size is None or copy_bytes(model) == size


@for_each(
    ("name", "sizes"),
    [
        ("llama-3-8b", {1: 14.958, 2: 7.479, 4: 3.740, 8: 1.870, 16: 0.967}),
        ("qwen3-32b", {1: 61.024, 2: 30.513, 4: 15.257, 8: 7.629}),
        ("gpt-oss-120b", {1: 60.768, 2: 30.396, 4: 15.211, 8: 7.618}),
    ],
)
def test_bytes_per_rank(name: str, sizes: dict[int, float]) -> None:
    model = load(MODELS / name)
    found = {tp: round(sum(rank_bytes(model, Shape(tp=tp)).values()) / GIB, 3) for tp in sizes}
    assert found == sizes


@for_each(
    ("shape", "placement", "row", "total"),
    [
        (Shape(tp=8), PLAIN, (2.081, 76.125, 0.138, 0.297, 0.216, 0.216, 0.198), 79.29),
        (Shape(tp=16), PLAIN, (1.471, 38.062, 0.069, 0.149, 0.108, 0.108, 0.198), 40.18),
        (Shape(tp=16, dp=8, deepep=True), WIDE, (5.745, 42.820, 1.107, 2.379, 1.726, 0.863, 0.198), 54.85),
        (Shape(tp=16, dp=16, deepep=True), WIDE, (10.630, 42.820, 1.107, 2.379, 1.726, 1.726, 0.198), 60.60),
        (Shape(tp=32, dp=32, deepep=True), WIDE, (10.630, 21.410, 1.107, 2.379, 1.726, 1.726, 0.198), 39.19),
    ],
    ids=["TP8", "TP16", "TP16 DP8 EP16", "TP16 DP16 EP16", "TP32 DP32 EP32"],
)
def test_deepseek_by_component(shape: Shape, placement: Placement, row: tuple[float, ...], total: float) -> None:
    found = rank_bytes(load(MODELS / "deepseek-v3"), shape, placement)
    names = ("attention", "experts", "dense", "shared", "embedding", "head", "gate")
    assert tuple(round(found[name] / GIB, 3) for name in names) == row
    assert round(sum(found.values()) / GIB, 2) == total
    assert found["scales"] <= 0.02 * GIB


def test_pipeline_stages_hold_the_model_together() -> None:
    model = load(MODELS / "deepseek-v3")
    for pp in (1, 2, 3, 4):
        layers = [layer for stage in range(pp) for layer in stage_layers(model, pp, stage)]
        assert layers == list(range(model.layers))
        norm = model.hidden * 2 * (pp - 1)  # the last norm is counted on every stage
        held = sum(sum(rank_bytes(model, Shape(pp=pp), stage=stage).values()) for stage in range(pp))
        assert abs(held - norm - copy_bytes(model)) < 64


def test_a_tied_head_costs_only_a_last_stage_of_its_own() -> None:
    model = load(MODELS / "llama-3-8b")._replace(tied=True)
    table = model.vocab * model.hidden * 2
    assert copy_bytes(model) == copy_bytes(model._replace(tied=False)) - table
    assert rank_bytes(model, Shape())["head"] == 0
    assert rank_bytes(model, Shape(pp=2), stage=0)["head"] == 0
    assert rank_bytes(model, Shape(pp=2), stage=1)["head"] == table
