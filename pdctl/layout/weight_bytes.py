"""Parameters of a model by component, and the bytes of them one rank holds.

One table (`_tensors`) gives parameter counts, the bytes of one copy and the bytes per rank. What SGLang adds on top
(absorbed MLA copies, workspaces, CUDA graphs) is not in it: a lower bound.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from pdctl.layout import shape
from pdctl.layout.shape import PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.layout.model_config import ModelShape
    from pdctl.layout.shape import Placement, Shape

COMPONENTS = ("attention", "experts", "dense", "shared", "embedding", "head", "gate", "norm", "scales")
MXFP4_BITS = 4.25  # 4 bits, and 8 bits of scale per 32 weights
FP8_SCALE_BYTES = 4


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
    return round(sum(tensor.parameters * sum(_widths(model, tensor)) for tensor in _tensors(model)))


def rank_bytes(model: ModelShape, shape: Shape, placement: Placement = PLAIN, stage: int = 0) -> dict[str, int]:
    """Bytes by component on each rank of one pipeline stage."""
    sums = dict.fromkeys(COMPONENTS, 0.0)
    for tensor in _tensors(model, stage_layers(model, shape.pp, stage)):
        first, last = stage == 0, stage == shape.pp - 1
        if (tensor.component == "embedding" and not first) or (tensor.component == "head" and not last):
            continue
        held = tensor.parameters * _share(tensor.split, model, shape, placement)
        width, scale = _widths(model, tensor)
        sums[tensor.component] += held * width
        sums["scales"] += held * scale
    if model.tied and shape.pp > 1 and stage == shape.pp - 1:
        sums["head"] += model.vocab * model.hidden * model.dtype_bytes * _share(Split.HEAD, model, shape, placement)
    return {component: round(size) for component, size in sums.items()}


def stage_layers(model: ModelShape, pp: int, stage: int) -> range:
    return shape.stage_layers(model.layers, pp, stage)


def _widths(model: ModelShape, tensor: Tensor) -> tuple[float, float]:
    """Bytes per parameter, and of fp8 scales per parameter; every term is exact in binary."""
    if model.quantization == "mxfp4" and tensor.storage is Storage.EXPERT:
        return MXFP4_BITS / 8, 0.0
    if model.quantization == "fp8" and tensor.storage is not Storage.PLAIN:
        return 1.0, FP8_SCALE_BYTES / model.quant_block**2 if model.quant_block else 0.0
    return float(model.dtype_bytes), 0.0


def _share(split: Split, model: ModelShape, shape: Shape, placement: Placement) -> float:
    """The part of a tensor one rank holds; above 1 where redundant experts are added."""
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
