"""What one GPU of an instance holds: weights, KV bytes per token, tokens that fit; and what to change if too few do."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from pdctl.errors import UsageError
from pdctl.layout.feasibility import check
from pdctl.layout.shape import Caution, Problem
from pdctl.layout.weight_bytes import copy_bytes, parameters, rank_bytes, stage_layers
from pdctl.layout.workload import NO_DEMAND, Demand

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.engines.versions import Version
    from pdctl.layout.model_config import ModelShape
    from pdctl.layout.shape import Placement, Shape, ShapeWords
    from pdctl.layout.workload import Budget

GIB = 1 << 30
MOST = 0.9  # the highest mem-fraction offered as a remedy
TIGHT = 0.1  # a KV pool below this part of the budget is a warning
KV_BYTES = {
    "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1,
}  # fmt: skip
SHOWN = 3


class MemoryVerdict(str, Enum):
    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"
    UNKNOWN = "unknown"  # no GPU memory was given


class GpuMemory(NamedTuple):
    """Per rank of the heaviest pipeline stage; tokens are of one DP rank's pool, or of the whole instance."""

    parameters: int
    copy_bytes: int  # of the whole checkpoint
    weights: tuple[tuple[str, int], ...]
    weight_bytes: int
    kv_bytes_per_token: int
    gpu_memory: int | None
    mem_fraction: float
    page_size: int
    pool_bytes: int | None
    tokens: int | None
    instance_tokens: int | None
    requests: int | None
    verdict: MemoryVerdict
    reasons: tuple[str, ...]


def kv_itemsize(name: str, model: ModelShape) -> int:
    """Bytes of one KV element; `auto` is the model's own dtype, as in SGLang."""
    if name == "auto":
        return model.dtype_bytes
    if name not in KV_BYTES:
        raise UsageError(f"KV dtype {name} is unknown", f"known: auto, {', '.join(KV_BYTES)}")
    return KV_BYTES[name]


def kv_bytes_per_token(model: ModelShape, attn_tp: int, itemsize: int, layers: int | None = None) -> int:
    """On one rank. MLA: the whole latent, whatever the attention TP; GQA: this rank's heads, at least one."""
    layers = model.layers if layers is None else layers
    if model.mla:
        return layers * (model.kv_lora_rank + model.rope_dim) * itemsize
    return 2 * layers * max(1, model.kv_heads // attn_tp) * model.head_dim * itemsize


def pool_tokens(pool_bytes: int, cell: int, page_size: int) -> int:
    """Whole pages only."""
    return max(0, pool_bytes) // cell // page_size * page_size


def estimate(
    model: ModelShape, shape: Shape, placement: Placement, budget: Budget, demand: Demand = NO_DEMAND
) -> GpuMemory:
    """The stage that fits the fewest tokens speaks for the instance (without a GPU size: the one least able to)."""
    stages = [_stage(model, shape, placement, budget, stage) for stage in range(shape.pp)]
    weights, cell, pool = min(stages, key=lambda stage: stage[2] // stage[1])
    tokens = pool_tokens(pool, cell, budget.page_size)
    known = budget.gpu_memory is not None
    total = tokens * shape.dp_ranks
    fitting = total // demand.request_tokens if demand.request_tokens else None
    verdict, reasons = _verdict(pool, tokens, fitting, budget, demand) if known else (MemoryVerdict.UNKNOWN, ())
    return GpuMemory(
        parameters=parameters(model),
        copy_bytes=copy_bytes(model),
        weights=tuple((component, size) for component, size in weights.items() if size),
        weight_bytes=sum(weights.values()),
        kv_bytes_per_token=cell,
        gpu_memory=budget.gpu_memory,
        mem_fraction=budget.mem_fraction,
        page_size=budget.page_size,
        pool_bytes=pool if known else None,
        tokens=tokens if known else None,
        instance_tokens=total if known else None,
        requests=fitting if known else None,
        verdict=verdict,
        reasons=reasons,
    )


def _stage(
    model: ModelShape, shape: Shape, placement: Placement, budget: Budget, stage: int
) -> tuple[dict[str, int], int, int]:
    weights = rank_bytes(model, shape, placement, stage)
    cell = kv_bytes_per_token(model, shape.attn_tp_size, budget.kv_bytes, len(stage_layers(model, shape.pp, stage)))
    return weights, cell, budget.usable - sum(weights.values())


def _verdict(
    pool: int, tokens: int, fitting: int | None, budget: Budget, demand: Demand
) -> tuple[MemoryVerdict, tuple[str, ...]]:
    usable = f"{budget.usable / GIB:.2f} GiB ({(budget.gpu_memory or 0) / GIB:.2f} GiB x {budget.mem_fraction:g})"
    if pool <= 0:
        return MemoryVerdict.FAIL, (f"weights of {(budget.usable - pool) / GIB:.2f} GiB per rank do not fit {usable}",)
    if tokens < max(demand.request_tokens, 1):
        need = f"one request of {demand.request_tokens:,} tokens" if demand.request_tokens else "a single page"
        return MemoryVerdict.FAIL, (f"the KV pool holds {tokens:,} tokens, less than {need}",)
    reasons: list[str] = []
    if pool < TIGHT * budget.usable:
        reasons.append(f"only {pool / GIB:.2f} GiB of {usable} are left for KV")
    if demand.context_length and tokens < demand.context_length:
        reasons.append(f"the KV pool holds {tokens:,} tokens, less than context-length {demand.context_length:,}")
    if demand.concurrency is not None and fitting is not None and fitting < demand.concurrency:
        reasons.append(f"{fitting:,} requests fit at once, the workload needs {demand.concurrency:,.0f}")
    return (MemoryVerdict.WARN if reasons else MemoryVerdict.OK), tuple(reasons)


class Remedy(NamedTuple):
    """A change after which it fits: another shape, or else another value of one setting."""

    shape: Shape | None
    setting: str
    value: str
    memory: GpuMemory


def remedies(model: ModelShape, shape: Shape, placement: Placement, budget: Budget, demand: Demand) -> Iterator[Remedy]:
    """Single changes after which the instance is OK: first those that need no more GPUs."""
    if budget.mem_fraction < MOST:
        more = estimate(model, shape, placement, budget._replace(mem_fraction=MOST), demand)
        yield Remedy(None, "mem-fraction", f"{MOST:g}", more)
    if budget.kv_bytes > 1:
        half = estimate(model, shape, placement, budget._replace(kv_bytes=1), demand)
        yield Remedy(None, "kv-dtype", "fp8_e4m3", half)
    shapes = [shape._replace(tp=shape.tp * factor, nnodes=None) for factor in (2, 4, 8)]
    if model.experts and not shape.deepep and shape.ep == 1:
        shapes.insert(0, shape._replace(deepep=True))
    for other in shapes:
        yield Remedy(other, "", "", estimate(model, other, placement, budget, demand))


class CapacityQuestion(NamedTuple):
    """One role's instance: what it holds, on what, for whom. `name` leads the messages."""

    name: str
    model: ModelShape
    shape: Shape
    placement: Placement
    budget: Budget
    demand: Demand
    version: Version


def judge(question: CapacityQuestion, words: ShapeWords) -> tuple[GpuMemory, tuple[Problem, ...], tuple[Caution, ...]]:
    """The memory, and a problem where it does not fit, or a warning where it is tight."""
    memory = estimate(question.model, question.shape, question.placement, question.budget, question.demand)
    told = f"{question.name}: {'; '.join(memory.reasons)}"
    if memory.verdict is MemoryVerdict.FAIL:
        return memory, (Problem("memory", told, tuple(_ways(question, words))),), ()
    if memory.verdict is MemoryVerdict.WARN:
        ways = _ways(question, words)
        fix = f"; {' or '.join(ways)} would do" if ways else ""
        return memory, (), (Caution("memory", told + fix),)
    return memory, (), ()


def _ways(question: CapacityQuestion, words: ShapeWords) -> list[str]:
    """The first remedies that fit and that SGLang accepts."""
    ways: list[str] = []
    redundant = question.placement.redundant_experts
    for remedy in remedies(question.model, question.shape, question.placement, question.budget, question.demand):
        if remedy.memory.verdict is not MemoryVerdict.OK:
            continue
        shape = remedy.shape
        if shape is not None and check(shape, question.version, question.model, redundant):
            continue
        ways.append(words.shape(shape) if shape is not None else words.setting(remedy.setting, remedy.value))
    return ways[:SHOWN]
