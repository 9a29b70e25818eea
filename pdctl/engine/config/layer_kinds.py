"""How layers differ by config.json: which have a sliding window, which have experts, how tokens choose experts.

The pool keeps every token of every layer, as SGLang's does with hybrid memory off: a page holds the same tokens for all
layers, and a transfer sends it whole. A layer with a window of w tokens attends to the token itself and the w - 1
before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pdctl.quick_definitions import NamedTuple

FULL = 0  # the window of a layer with full attention
KINDS = ("full_attention", "sliding_attention")
# Defaults of transformers 5 where config.json is silent: the window, and the layers before the first with a window.
DEFAULT_WINDOW = {"MistralForCausalLM": 4096, "GptOssForCausalLM": 128}
DEFAULT_SWITCHED_WINDOW = 4096
DEFAULT_FULL_LAYERS = 28
SWITCHED = ("Qwen2ForCausalLM", "Qwen3ForCausalLM")  # have a window only with use_sliding_window


def layer_windows(raw: Mapping[str, Any], architecture: str, layers: int) -> tuple[int, ...]:
    """Return the window of each layer in tokens, or FULL. Raise ValueError if config.json has an unsupported value."""
    window = _window(raw, architecture)
    if not window:
        return (FULL,) * layers
    kinds = raw.get("layer_types") or _default_kinds(raw, architecture, layers)
    if len(kinds) != layers or not set(kinds) <= set(KINDS):
        raise ValueError(f"layer_types = {kinds!r}; supported: one of {', '.join(KINDS)} for each of {layers} layers")
    return tuple(window if kind == "sliding_attention" else FULL for kind in kinds)


def _window(raw: Mapping[str, Any], architecture: str) -> int:
    if architecture in SWITCHED:
        window = raw.get("sliding_window", DEFAULT_SWITCHED_WINDOW) if raw.get("use_sliding_window") else None
    elif architecture in DEFAULT_WINDOW:
        window = raw.get("sliding_window", DEFAULT_WINDOW[architecture])
    else:
        window = None
    if window is None:
        return FULL
    if not isinstance(window, int) or window < 1:
        raise ValueError(f"sliding_window = {window!r}; supported: tokens, at least 1, or null")
    return window


def _default_kinds(raw: Mapping[str, Any], architecture: str, layers: int) -> list[str]:
    if architecture == "GptOssForCausalLM":
        return [KINDS[1 - index % 2] for index in range(layers)]
    full = int(raw.get("max_window_layers", DEFAULT_FULL_LAYERS)) if architecture in SWITCHED else 0
    return [KINDS[index >= full] for index in range(layers)]


Raw = Mapping[str, Any]


class Clamped(NamedTuple):
    """Parameters of gpt-oss's clamped SwiGLU (mlp.py)."""

    alpha: float = 1.702
    limit: float = 7.0


class Mixture(NamedTuple):
    """The experts of an MoE layer, which are all alike. Widths are those of one expert before it is split."""

    experts: int
    active: int  # per token
    intermediate: int
    shared_intermediate: int = 0  # an additional MLP that every token passes through; 0: none
    shared_gate: bool = False  # the shared MLP's output is weighted by its own gate
    sigmoid: bool = False  # scores are a sigmoid for each expert; otherwise a softmax over all
    choice_bias: bool = False  # e_score_correction_bias: added to choose experts, not to weight them
    groups: int = 1  # experts are divided into this many equal groups,
    active_groups: int = 1  # and a token chooses within this many of the best
    group_members: int = 1  # a group's score is the sum of this many of its best experts
    normalise: bool = False  # scale the weights of a token's experts to a sum of 1
    scale: float = 1.0
    router_bias: bool = False  # added to the scores before anything else
    clamped: Clamped | None = None  # the experts are gpt-oss's; None: gated MLPs


def mixture(raw: Raw, architecture: str) -> Mixture | None:
    """Return None for a dense model. Raise KeyError for a missing key, ValueError for what is not implemented."""
    read = _READERS.get(architecture)
    found = read(raw) if read else None
    if found is None:
        return None
    reachable = found.experts // found.groups * found.active_groups
    if found.experts % found.groups or not 0 < found.active <= reachable:
        raise ValueError(
            f"{found.active} of {found.experts} experts in {found.active_groups} of {found.groups} groups: "
            "the groups must be equal and hold as many as a token chooses"
        )
    return found


def sparse_layers(raw: Raw, layers: int) -> tuple[bool, ...]:
    """Return for each layer of an MoE model whether it has experts (otherwise it has a dense MLP)."""
    dense = set(raw.get("mlp_only_layers") or ())
    first = int(raw.get("first_k_dense_replace") or 0)
    step = int(raw.get("decoder_sparse_step") or 1)
    return tuple(layer >= first and layer not in dense and (layer + 1) % step == 0 for layer in range(layers))


def _qwen3(raw: Raw) -> Mixture:
    return Mixture(
        experts=int(raw.get("num_experts") or raw["num_local_experts"]),  # the hub's name, then transformers 5's
        active=int(raw["num_experts_per_tok"]),
        intermediate=int(raw["moe_intermediate_size"]),
        normalise=bool(raw.get("norm_topk_prob", False)),
    )


def _qwen2(raw: Raw) -> Mixture:
    return _qwen3(raw)._replace(shared_intermediate=int(raw["shared_expert_intermediate_size"]), shared_gate=True)


def _gpt_oss(raw: Raw) -> Mixture:
    """gpt-oss takes a softmax over the chosen scores: the softmax over all, scaled to a sum of 1."""
    usual = Clamped()
    return Mixture(
        experts=int(raw["num_local_experts"]),
        active=int(raw["num_experts_per_tok"]),
        intermediate=int(raw["intermediate_size"]),
        normalise=True,
        router_bias=True,
        clamped=Clamped(float(raw.get("swiglu_alpha", usual.alpha)), float(raw.get("swiglu_limit", usual.limit))),
    )


def _deepseek(raw: Raw) -> Mixture:
    _only(raw, "moe_layer_freq", 1)
    intermediate = int(raw["moe_intermediate_size"])
    return Mixture(
        experts=int(raw["n_routed_experts"]),
        active=int(raw["num_experts_per_tok"]),
        intermediate=intermediate,
        shared_intermediate=intermediate * int(raw.get("n_shared_experts") or 0),
        scale=float(raw.get("routed_scaling_factor", 1.0)),
    )


def _deepseek2(raw: Raw) -> Mixture | None:
    if not raw.get("n_routed_experts"):
        return None
    _only(raw, "topk_method", "greedy", "group_limited_greedy")
    _only(raw, "scoring_func", "softmax")
    _only(raw, "norm_topk_prob", False)  # transformers and the model's own code disagree on its meaning here
    if raw.get("topk_method", "greedy") == "greedy":
        return _deepseek(raw)
    return _deepseek(raw)._replace(groups=int(raw["n_group"]), active_groups=int(raw["topk_group"]))


def _deepseek3(raw: Raw) -> Mixture:
    _only(raw, "topk_method", "noaux_tc")
    _only(raw, "scoring_func", "sigmoid")
    return _deepseek(raw)._replace(
        sigmoid=True,
        choice_bias=True,
        groups=int(raw["n_group"]),
        active_groups=int(raw["topk_group"]),
        group_members=2,
        normalise=bool(raw.get("norm_topk_prob", True)),
    )


def _only(raw: Raw, key: str, *accepted: object) -> None:
    """Raise ValueError for a value not `accepted`. A missing key means the first of those."""
    found = raw.get(key)
    if found is not None and found not in accepted:
        raise ValueError(f"{key} = {found!r}; supported: {', '.join(map(str, accepted))}")


_READERS: dict[str, Callable[[Raw], Mixture | None]] = {
    "Qwen2MoeForCausalLM": _qwen2,
    "Qwen3MoeForCausalLM": _qwen3,
    "DeepseekV2ForCausalLM": _deepseek2,
    "DeepseekV3ForCausalLM": _deepseek3,
    "GptOssForCausalLM": _gpt_oss,
}
