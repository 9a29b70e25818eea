from __future__ import annotations

import pytest

from pdctl.errors import UsageError
from pdctl.layout.gpu_memory import MemoryVerdict, estimate, kv_bytes_per_token, kv_itemsize, pool_tokens, remedies
from pdctl.layout.model_config import load
from pdctl.layout.shape import PLAIN, Placement, Shape
from pdctl.layout.workload import Budget, Demand
from tests.cases import for_each

from .conftest import MODELS

EIGHTY = 80 << 30
WIDE = Placement(redundant_experts=32, moe_dense_tp=1, dp_lm_head=True)


@for_each(
    ("name", "widths"),
    [
        ("llama-3-8b", {1: 131_072, 2: 65_536, 4: 32_768, 8: 16_384, 16: 16_384}),
        ("qwen3-32b", {1: 262_144, 2: 131_072, 4: 65_536, 8: 32_768}),
        ("gpt-oss-120b", {1: 73_728, 2: 36_864, 4: 18_432, 8: 9_216}),
        ("deepseek-v3", {1: 70_272, 2: 70_272, 8: 70_272, 16: 70_272}),
    ],
)
def test_kv_bytes_per_token_per_rank(name: str, widths: dict[int, int]) -> None:
    model = load(MODELS / name)
    assert {width: kv_bytes_per_token(model, width, 2) for width in widths} == widths


def test_fp8_halves_it() -> None:
    assert kv_bytes_per_token(load(MODELS / "deepseek-v3"), 1, 1) == 35_136


@for_each(
    ("name", "shape", "placement", "budget", "tokens"),
    [
        ("llama-3-8b", Shape(), PLAIN, Budget(EIGHTY, 0.85), 434_523),
        ("llama-3-8b", Shape(), PLAIN, Budget(EIGHTY, 0.85, 64), 434_496),
        ("deepseek-v3", Shape(tp=16, dp=8, deepep=True), WIDE, Budget(EIGHTY, 0.80, 64), 139_712),
        ("deepseek-v3", Shape(tp=32, dp=32, deepep=True), WIDE, Budget(EIGHTY, 0.85, 64), 440_256),
        ("deepseek-v3", Shape(tp=32, dp=32, deepep=True), WIDE, Budget(EIGHTY, 0.85, 64, 1), 880_512),
    ],
)
def test_capacity(name: str, shape: Shape, placement: Placement, budget: Budget, tokens: int) -> None:
    memory = estimate(load(MODELS / name), shape, placement, budget)
    assert memory.tokens == tokens
    assert memory.instance_tokens == tokens * shape.dp
    assert memory.verdict is MemoryVerdict.OK


def test_whole_pages_only() -> None:
    assert pool_tokens(1000, 10, 16) == 96
    assert pool_tokens(-5, 10, 16) == 0


def test_weights_that_do_not_fit() -> None:
    memory = estimate(load(MODELS / "deepseek-v3"), Shape(tp=8), PLAIN, Budget(EIGHTY, 0.85))
    assert memory.verdict is MemoryVerdict.FAIL
    assert memory.reasons == ("weights of 79.29 GiB per rank do not fit 68.00 GiB (80.00 GiB x 0.85)",)
    assert memory.tokens == 0


@for_each(
    ("memory_gib", "demand", "verdict", "said"),
    [
        (17.7, Demand(4000), MemoryVerdict.FAIL, "less than one request of 4,000 tokens"),
        (17.7, Demand(400), MemoryVerdict.WARN, "are left for KV"),
        (80, Demand(400, context_length=500_000), MemoryVerdict.WARN, "less than context-length 500,000"),
        (80, Demand(4000, concurrency=200), MemoryVerdict.WARN, "108 requests fit at once, the workload needs 200"),
        (80, Demand(4000, concurrency=100), MemoryVerdict.OK, ""),
        (None, Demand(4000), MemoryVerdict.UNKNOWN, ""),
    ],
)
def test_verdicts(memory_gib: float | None, demand: Demand, verdict: MemoryVerdict, said: str) -> None:
    gpu = None if memory_gib is None else int(memory_gib * (1 << 30))
    memory = estimate(load(MODELS / "llama-3-8b"), Shape(), PLAIN, Budget(gpu, 0.85), demand)
    assert memory.verdict is verdict
    assert said in "; ".join(memory.reasons)
    assert (memory.tokens is None) == (memory_gib is None)


def test_the_tightest_stage_speaks() -> None:
    model = load(MODELS / "llama-3-8b")
    memory = estimate(model, Shape(pp=2), PLAIN, Budget(EIGHTY, 0.85))
    assert memory.kv_bytes_per_token == 65_536
    assert (
        dict(memory.weights)["attention"] * 2
        == dict(estimate(model, Shape(), PLAIN, Budget(EIGHTY)).weights)["attention"]
    )


def test_remedies_are_reckoned_not_guessed() -> None:
    model = load(MODELS / "deepseek-v3")
    found = {
        (remedy.shape.tp if remedy.shape else remedy.setting): remedy.memory.verdict
        for remedy in remedies(model, Shape(tp=8), PLAIN, Budget(EIGHTY, 0.85), Demand())
        if not (remedy.shape and remedy.shape.deepep)
    }
    assert found == {
        "mem-fraction": MemoryVerdict.FAIL,
        "kv-dtype": MemoryVerdict.FAIL,
        16: MemoryVerdict.OK,
        32: MemoryVerdict.OK,
        64: MemoryVerdict.OK,
    }


def test_kv_dtypes() -> None:
    model = load(MODELS / "llama-3-8b")
    assert [kv_itemsize(name, model) for name in ("auto", "bf16", "fp8_e5m2", "float32")] == [2, 2, 1, 4]
    with pytest.raises(UsageError, match="int3 is unknown"):
        kv_itemsize("int3", model)
