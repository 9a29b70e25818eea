from __future__ import annotations

from pdctl.engines.sglang.refusals import RULES
from pdctl.engines.versions import NEWEST, SGLANG, V0_5_3, V0_5_8, V0_5_13, V0_5_18, Version, spell
from pdctl.layout.feasibility import broken_rules, nearest
from pdctl.layout.handover import check_pair
from pdctl.layout.model_config import load
from pdctl.layout.shape import Shape, flags
from tests.cases import for_each

from .conftest import MODELS

# What breaks which rule, in the oldest and the newest release that have it.
BROKEN = {
    "sizes-positive": Shape(tp=0),
    "gpu-ids": Shape(tp=2, gpu_id_step=0),
    "nodes-divide-gpus": Shape(tp=16, nnodes=3),
    "replicas-on-one-node": Shape(tp=8, replicas=2),
    "attn-dp-divides-tp": Shape(tp=16, dp=3),
    "attn-dp-or-replicas": Shape(tp=4, dp=2, replicas=2),
    "attn-cp-needs-release": Shape(tp=4, cp=2),
    "moe-dp-needs-release": Shape(tp=4, cp=2, moe_dp=2),
    "attn-cp-divides-tp": Shape(tp=8, dp=2, cp=8),
    "moe-dp-divides-tp": Shape(tp=8, cp=3, moe_dp=3),
    "moe-dp-with-ep": Shape(tp=8, cp=2, moe_dp=2, ep=2),
    "moe-dp-without-pp": Shape(tp=4, pp=2, cp=2, moe_dp=2, ep=2),
    "attn-cp-is-moe-dp": Shape(tp=8, cp=4, moe_dp=2, ep=4),
    "ep-divides-tp": Shape(tp=16, ep=5),
    "pp-and-nodes": Shape(tp=4, pp=3),
    "gpus-per-host": Shape(tp=8, base_gpu_id=4),
    "gpu-ids-distinct": Shape(tp=2, pp=2, gpu_id_step=2),
    "heads-divide": Shape(tp=3),
    "kv-heads-divide": Shape(tp=7),
    "intermediate-divides": Shape(tp=16),
    "experts-divide": Shape(tp=24, ep=24, gpus_per_host=24),
    "layers-for-stages": Shape(pp=33, gpus_per_host=33),
}
MODEL_OF = {
    "heads-divide": "llama-3-8b",
    "kv-heads-divide": "qwen2.5-7b",
    "intermediate-divides": "qwen3-32b",
    "experts-divide": "mixtral-8x7b",
    "layers-for-stages": "llama-3-8b",
}
PAIRS = {
    "pair-tp-divides": (Shape(tp=4), Shape(tp=6)),
    "pair-attn-tp-divides": (Shape(tp=4), Shape(tp=6)),
    "pair-pp": (Shape(tp=2, pp=2), Shape(tp=2, pp=4)),
    "pair-decode-cp": (Shape(tp=2), Shape(tp=4, cp=2)),
    "pair-page-size": (Shape(), Shape()),
}


def releases(code: str) -> list[Version]:
    return [version for version in SGLANG if any(row.code == code and row.span.holds(version) for row in RULES)]


@for_each("code", BROKEN)
def test_a_broken_rule_is_named_in_every_release_that_has_it(code: str) -> None:
    model = load(MODELS / MODEL_OF[code]) if code in MODEL_OF else None
    if code == "intermediate-divides":
        assert model is not None
        model = model._replace(intermediate=25604)
    for version in SGLANG:
        codes = [problem.code for problem in broken_rules(BROKEN[code], version, model)]
        assert (code in codes) == (version in releases(code)), version


@for_each("code", PAIRS)
def test_a_broken_rule_between_two_instances(code: str) -> None:
    prefill, decode = PAIRS[code]
    for version in SGLANG:
        codes = [problem.code for problem in check_pair(prefill, decode, version, (1, 64))]
        assert (code in codes) == (version in releases(code)), version


def test_every_shape_rule_of_the_table_is_reached() -> None:
    of_arguments = {"chunk-is-pages", "moe-dense-tp", "served-name"}  # test_plan.py, test_arguments.py
    assert {row.code for row in RULES} == BROKEN.keys() | PAIRS.keys() | of_arguments


@for_each(
    ("shape", "version", "message"),
    [
        (
            Shape(tp=16, dp=3),
            NEWEST,
            f"tp_size 16 is not divisible by attn_dp_size 3 (sglang {spell(NEWEST)} asserts tp_size % "
            "attn_dp_size == 0)",
        ),
        (
            Shape(tp=16, dp=3),
            V0_5_18,
            "tp_size 16 is not divisible by dp_size 3 (sglang 0.5.18 asserts tp_size % dp_size == 0)",
        ),
        (
            Shape(tp=16, nnodes=3),
            V0_5_3,
            "tp_size 16 x pp_size 1 on 3 nodes (sglang 0.5.3 asserts (tp_size * pp_size) % nnodes == 0: "
            "tp_size must be divisible by number of nodes)",
        ),
        (
            Shape(tp=8, replicas=2),
            NEWEST,
            f"2 replicas of 8 GPUs on 2 nodes (sglang {spell(NEWEST)} raises ValueError: multi-node data-parallel "
            "replicas are not supported; use attention DP)",
        ),
        (
            Shape(tp=16, ep=5),
            V0_5_13,
            "tp_size 16 is not divisible by ep_size 5 (sglang 0.5.13 does not check that tp_size % ep_size == 0, "
            "and goes wrong silently)",
        ),
        (Shape(tp=4, cp=2), V0_5_8, "attn_cp_size 2 (sglang 0.5.8 says: no --attn-cp-size before 0.5.9)"),
    ],
)
def test_messages_speak_the_release(shape: Shape, version: Version, message: str) -> None:
    assert [problem.message for problem in broken_rules(shape, version)] == [message]


def test_the_embedded_engine_speaks_for_itself() -> None:
    (problem,) = broken_rules(
        Shape(tp=3), NEWEST, load(MODELS / "llama-3-8b")._replace(kv_heads=6, intermediate=6), 0, "embedded"
    )
    assert problem.message.endswith("(the embedded engine needs num_attention_heads % attn_tp_size == 0)")


def test_redundant_experts_count() -> None:
    model = load(MODELS / "deepseek-v3")
    wide = Shape(tp=72, dp=72, ep=72)
    assert {problem.code for problem in broken_rules(wide, NEWEST, model)} == {"experts-divide"}
    assert not broken_rules(wide, NEWEST, model, redundant_experts=32)
    assert not broken_rules(Shape(tp=32, dp=32, deepep=True), NEWEST, model, redundant_experts=32)


def works(shape: Shape) -> bool:
    return not broken_rules(shape)


@for_each(
    ("shape", "ways"),
    [
        (Shape(tp=16, dp=3), ["--tp 16 --dp 4", "--tp 16 --dp 2", "--tp 24 --dp 3"]),
        (Shape(tp=7, dp=3), ["--tp 6 --dp 3", "--tp 7 --dp 7", "--tp 7"]),
        (Shape(tp=5, dp=2), ["--tp 6 --dp 2", "--tp 4 --dp 2", "--tp 5"]),
        (Shape(tp=16, dp=7), ["--tp 16 --dp 8", "--tp 16 --dp 4", "--tp 16 --dp 2"]),
        (Shape(tp=8, replicas=2), ["--tp 8 --dp 2", "--tp 8", "--tp 4 --replicas 2"]),
        (Shape(tp=8, base_gpu_id=4), ["--tp 4 --base-gpu-id 4", "--tp 2 --base-gpu-id 4", "--tp 1 --base-gpu-id 4"]),
        (Shape(tp=0), ["--tp 1", "--tp 2"]),
    ],
    ids=range(7),
)
def test_closest_first(shape: Shape, ways: list[str]) -> None:
    assert [flags(found) for found in nearest(shape, works)] == ways


def test_two_sizes_change_where_one_is_not_enough() -> None:
    shape = Shape(tp=6, dp=4, ep=4, nnodes=1, gpus_per_host=6)
    found = nearest(shape, works)
    assert found
    for other in found:
        changed = [name for name in Shape._fields if getattr(other, name) != getattr(shape, name)]
        assert len(changed) == 2


def test_whatever_is_offered_works() -> None:
    offered = 0
    for tp in range(1, 34):
        for dp in (1, 2, 3, 5, 8):
            for nnodes in (None, 2, 3):
                shape = Shape(tp=tp, dp=dp, nnodes=nnodes, ep=2)
                if works(shape):
                    continue
                found = nearest(shape, works)
                offered += len(found)
                assert all(works(other) for other in found)
                assert shape not in found
    assert offered > 500


def test_nothing_is_offered_where_nothing_works() -> None:
    assert nearest(Shape(tp=4), lambda shape: False) == ()
