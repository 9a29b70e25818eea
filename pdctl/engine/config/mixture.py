"""What config.json says about a mixture of experts: how many there are, how tokens choose, which layers have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Raw = Mapping[str, Any]


class Clamped(NamedTuple):
    """gpt-oss's SwiGLU (gpt_oss.py)."""

    alpha: float = 1.702
    limit: float = 7.0


class Mixture(NamedTuple):
    """Experts of a sparse layer, all alike. Widths are of one whole expert."""

    experts: int
    active: int  # for each token
    intermediate: int
    shared_intermediate: int = 0  # an MLP every token passes through besides; 0: none
    shared_gate: bool = False  # what it gives is weighed by a gate of its own
    sigmoid: bool = False  # scores are sigmoids, each expert for itself; else a softmax over all
    choice_bias: bool = False  # e_score_correction_bias: added to choose, not to weigh
    groups: int = 1  # experts stand in equal groups,
    active_groups: int = 1  # and a token chooses within the best of them
    group_members: int = 1  # a group is as good as the sum of its best so many
    normalise: bool = False  # the weights of a token's experts are made to add up to 1
    scale: float = 1.0
    router_bias: bool = False  # added to the scores before all else
    clamped: Clamped | None = None  # experts are gpt-oss's, not gated MLPs


def mixture(raw: Raw, architecture: str) -> Mixture | None:
    """None for a dense model. Raises KeyError for what is missing and ValueError for what is not implemented."""
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
    """Of each layer of a mixture, whether it has experts (else a dense MLP)."""
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
    """A softmax over the chosen scores is the softmax over all, made to add up to 1 again."""
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
    _only(raw, "norm_topk_prob", False)  # transformers and the model's own code do not agree on what it means here
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
    """The first of `accepted` is what a missing key means."""
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
