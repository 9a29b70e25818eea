"""What one GPU of an instance holds: weights, KV bytes per token, tokens that fit; and what to change if too few do.

One table of weights (`_tensors`) gives the number of parameters, the bytes of one copy and the bytes per rank. It is a
lower bound: what SGLang adds (absorbed MLA copies, workspaces, CUDA graphs) is not in it.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from pdctl.errors import UsageError
from pdctl.layout import shape
from pdctl.layout.feasibility import broken_rules
from pdctl.layout.shape import PLAIN, Caution, Problem
from pdctl.layout.workload import NO_DEMAND, Demand
from pdctl.quick_definitions import NamedTuple

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
SHOWN = 3  # remedies named
COMPONENTS = ("attention", "experts", "dense", "shared", "embedding", "head", "gate", "norm", "scales")
MXFP4_BITS = 4.25  # 4 bits, and 8 bits of scale per 32 weights
FP8_SCALE_BYTES = 4


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


def kv_itemsize(name: str, model: ModelShape | None) -> int:
    """Bytes of one KV element; `auto` is the model's own dtype, as in SGLang, and two bytes without a model."""
    if name == "auto":
        return model.dtype_bytes if model is not None else 2
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
    """A change after which the instance fits: another shape, or another value of one setting."""

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
    """One role's instance: what it holds, on which GPUs, for which load. Messages begin with `name`."""

    name: str
    model: ModelShape
    shape: Shape
    placement: Placement
    budget: Budget
    demand: Demand
    version: Version


def judge_memory(
    question: CapacityQuestion, words: ShapeWords
) -> tuple[GpuMemory, tuple[Problem, ...], tuple[Caution, ...]]:
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
        if shape is not None and broken_rules(shape, question.version, question.model, redundant):
            continue
        ways.append(words.shape(shape) if shape is not None else words.setting(remedy.setting, remedy.value))
    return ways[:SHOWN]


class Split(Enum):
    """Over how many ranks a tensor is cut."""

    NONE = "every rank has it whole"
    ATTENTION = "attention TP"
    KV = "attention TP, at least one head each"
    DENSE = "TP, or moe_dense_tp_size"
    EXPERTS = "EP, then MoE TP"
    SHARED = "TP, or whole with DeepEP"
    EMBEDDING = "TP, or whole with DP attention"
    HEAD = "TP, or attention TP with dp-lm-head"


class Storage(Enum):
    PLAIN = "the checkpoint's dtype"
    LINEAR = "quantised where the checkpoint is"
    EXPERT = "quantised, in mxfp4 too"


class Tensor(NamedTuple):
    component: str
    parameters: int
    split: Split
    storage: Storage


def parameters(model: ModelShape) -> int:
    return sum(tensor.parameters for tensor in _tensors(model))


def copy_bytes(model: ModelShape) -> int:
    """One copy of the weights, as the checkpoint stores them."""
    return round(sum(tensor.parameters * sum(_bytes_per_parameter(model, tensor)) for tensor in _tensors(model)))


def rank_bytes(model: ModelShape, shape: Shape, placement: Placement = PLAIN, stage: int = 0) -> dict[str, int]:
    """Bytes by component on each rank of one pipeline stage."""
    sums = dict.fromkeys(COMPONENTS, 0.0)
    for tensor in _tensors(model, stage_layers(model, shape.pp, stage)):
        first, last = stage == 0, stage == shape.pp - 1
        if (tensor.component == "embedding" and not first) or (tensor.component == "head" and not last):
            continue
        held = tensor.parameters * _share(tensor.split, model, shape, placement)
        width, scale = _bytes_per_parameter(model, tensor)
        sums[tensor.component] += held * width
        sums["scales"] += held * scale
    if model.tied and shape.pp > 1 and stage == shape.pp - 1:
        sums["head"] += model.vocab * model.hidden * model.dtype_bytes * _share(Split.HEAD, model, shape, placement)
    return {component: round(size) for component, size in sums.items()}


def stage_layers(model: ModelShape, pp: int, stage: int) -> range:
    return shape.stage_layers(model.layers, pp, stage)


def _bytes_per_parameter(model: ModelShape, tensor: Tensor) -> tuple[float, float]:
    """Bytes per parameter, and of fp8 scales per parameter; every term is exact in binary."""
    if model.quantization == "mxfp4" and tensor.storage is Storage.EXPERT:
        return MXFP4_BITS / 8, 0.0
    if model.quantization == "fp8" and tensor.storage is not Storage.PLAIN:
        return 1.0, FP8_SCALE_BYTES / model.quant_block**2 if model.quant_block else 0.0
    return float(model.dtype_bytes), 0.0


def _share(split: Split, model: ModelShape, shape: Shape, placement: Placement) -> float:
    """The share of a tensor that one rank holds; above 1 where redundant experts are added."""
    attention = 1 / shape.attn_tp_size
    whole = 1.0
    tp = 1 / shape.tp
    if split is Split.EXPERTS:
        held = (model.experts + placement.redundant_experts) / model.experts
        return held / (shape.ep_size * shape.moe_tp_size)
    return {
        Split.NONE: whole,
        Split.ATTENTION: attention,
        Split.KV: max(attention, 1 / model.kv_heads),
        Split.DENSE: tp if placement.moe_dense_tp is None else 1 / placement.moe_dense_tp,
        Split.SHARED: whole if shape.deepep else tp,
        Split.EMBEDDING: whole if shape.dp_attention else tp,
        Split.HEAD: attention if placement.dp_lm_head else tp,
    }[split]


def _tensors(model: ModelShape, layers: range | None = None) -> Iterator[Tensor]:
    """Every tensor of these layers (None: all), with embedding, head and the last norm."""
    table = model.vocab * model.hidden
    yield Tensor("embedding", table, Split.EMBEDDING, Storage.PLAIN)
    if not model.tied:
        yield Tensor("head", table, Split.HEAD, Storage.PLAIN)
    yield Tensor("norm", model.hidden, Split.NONE, Storage.PLAIN)
    attention = list(_mla(model) if model.mla else _gqa(model))
    sparse, dense = list(_experts(model)), list(_dense(model))
    for layer in layers if layers is not None else range(model.layers):
        yield Tensor("norm", 2 * model.hidden, Split.NONE, Storage.PLAIN)
        yield from attention
        yield from sparse if model.experts and layer not in model.dense_layers else dense


def _gqa(model: ModelShape) -> Iterator[Tensor]:
    q, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    yield Tensor("attention", model.hidden * q, Split.ATTENTION, Storage.LINEAR)
    yield Tensor("attention", 2 * model.hidden * kv, Split.KV, Storage.LINEAR)
    yield Tensor("attention", q * model.hidden, Split.ATTENTION, Storage.LINEAR)
    if model.qkv_bias:
        yield Tensor("attention", q, Split.ATTENTION, Storage.PLAIN)
        yield Tensor("attention", 2 * kv, Split.KV, Storage.PLAIN)
    if model.o_bias:  # added by one rank of the group only, so counted once over it
        yield Tensor("attention", model.hidden, Split.ATTENTION, Storage.PLAIN)
    if model.qk_norm:
        yield Tensor("attention", 2 * model.head_dim, Split.NONE, Storage.PLAIN)
    if model.sinks:
        yield Tensor("attention", model.heads, Split.ATTENTION, Storage.PLAIN)


def _mla(model: ModelShape) -> Iterator[Tensor]:
    """The down-projections and their norms stand whole on every rank; the head-wise ones are cut."""
    q = model.heads * (model.nope_dim + model.rope_dim)
    if model.q_lora_rank:
        yield Tensor("attention", model.hidden * model.q_lora_rank, Split.NONE, Storage.LINEAR)
        yield Tensor("attention", model.q_lora_rank, Split.NONE, Storage.PLAIN)
    yield Tensor("attention", (model.q_lora_rank or model.hidden) * q, Split.ATTENTION, Storage.LINEAR)
    yield Tensor("attention", model.hidden * (model.kv_lora_rank + model.rope_dim), Split.NONE, Storage.LINEAR)
    yield Tensor("attention", model.kv_lora_rank, Split.NONE, Storage.PLAIN)
    up = model.kv_lora_rank * model.heads * (model.nope_dim + model.v_dim)
    yield Tensor("attention", up, Split.ATTENTION, Storage.LINEAR)
    yield Tensor("attention", model.heads * model.v_dim * model.hidden, Split.ATTENTION, Storage.LINEAR)


def _dense(model: ModelShape) -> Iterator[Tensor]:
    yield Tensor("dense", 3 * model.hidden * model.intermediate, Split.DENSE, Storage.LINEAR)


def _experts(model: ModelShape) -> Iterator[Tensor]:
    matrices = 3 * model.hidden * model.moe_intermediate
    yield Tensor("experts", model.experts * matrices, Split.EXPERTS, Storage.EXPERT)
    if model.expert_bias:
        biases = 2 * model.moe_intermediate + model.hidden
        yield Tensor("experts", model.experts * biases, Split.EXPERTS, Storage.PLAIN)
    if model.shared_experts:
        yield Tensor("shared", model.shared_experts * matrices, Split.SHARED, Storage.LINEAR)
    gate = model.hidden * model.experts + (model.experts if model.gate_bias else 0)
    yield Tensor("gate", gate, Split.NONE, Storage.PLAIN)
