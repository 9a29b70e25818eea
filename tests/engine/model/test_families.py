"""What config.json says about experts and latents is read as transformers writes it; what cannot be run is named."""

from __future__ import annotations

from typing import Any

import pytest

from pdctl.engine.config.checkpoint_config import CheckpointError, Latent, ModelConfig
from pdctl.engine.config.layer_kinds import Mixture
from pdctl.layout.shape import Shape
from tests.cases import for_each
from tests.engine.checkpoints import COMMON, CONFIGS

DEEPSEEK2 = {"architectures": ["DeepseekV2ForCausalLM"], "norm_topk_prob": False, "topk_method": "greedy"}


def read(kind: str, **changes: Any) -> ModelConfig:
    return ModelConfig.from_json(COMMON | CONFIGS[kind] | changes, {}, where="here")


def test_deepseek_v3() -> None:
    config = read("mla")
    assert config.latent == Latent(q_rank=24, kv_rank=32, nope_dim=8, rope_dim=8, v_dim=12, adjacent=True)
    assert (config.slabs_per_layer, config.cached_dim, config.head_dim) == (1, 40, 8)
    assert [config.rank_kv_heads(size) for size in (1, 2, 8)] == [1, 1, 1]
    assert config.sparse == (False, True)
    assert config.mixture == Mixture(
        experts=8, active=2, intermediate=32, shared_intermediate=32, sigmoid=True, choice_bias=True,
        groups=4, active_groups=2, group_members=2, normalise=True, scale=2.5,
    )  # fmt: skip


def test_deepseek_v2_chooses_by_softmax() -> None:
    plain = read("mla", **DEEPSEEK2).mixture
    grouped = read("mla", **DEEPSEEK2 | {"topk_method": "group_limited_greedy"}).mixture
    assert plain == Mixture(experts=8, active=2, intermediate=32, shared_intermediate=32, scale=2.5)
    assert grouped == plain._replace(groups=4, active_groups=2)
    assert read("mla", **DEEPSEEK2 | {"n_routed_experts": None}).mixture is None


def test_qwen_mixtures() -> None:
    config = read("moe", num_hidden_layers=5, decoder_sparse_step=2, mlp_only_layers=[3])
    assert config.sparse == (False, True, False, False, False)
    assert config.mixture == Mixture(experts=8, active=3, intermediate=32, normalise=True)
    assert (config.qk_norm, config.qkv_bias, config.slabs_per_layer, config.cached_dim) == (True, False, 2, 8)
    older = read("moe", architectures=["Qwen2MoeForCausalLM"], shared_expert_intermediate_size=48)
    assert (older.qk_norm, older.qkv_bias) == (False, True)
    assert older.mixture == Mixture(
        experts=8, active=3, intermediate=32, shared_intermediate=48, shared_gate=True, normalise=True
    )


def test_both_names_of_the_number_of_experts() -> None:
    renamed = {key: value for key, value in (COMMON | CONFIGS["moe"]).items() if key != "num_experts"}
    config = ModelConfig.from_json(renamed | {"num_local_experts": 8}, {}, where="here")
    assert config.mixture == read("moe").mixture


@for_each(
    ("kind", "changes", "message"),
    [
        ("mla", {"topk_method": "greedy"}, "DeepseekV3ForCausalLM with topk_method = 'greedy'; supported: noaux_tc"),
        ("mla", {"scoring_func": "softmax"}, "scoring_func = 'softmax'; supported: sigmoid"),
        ("mla", {"moe_layer_freq": 2}, "moe_layer_freq = 2; supported: 1"),
        ("mla", {"kv_lora_rank": 33}, "kv_lora_rank = 33; supported: even widths"),
        ("mla", {"n_group": 3}, "2 of 8 experts in 2 of 3 groups: the groups must be equal"),
        ("mla", {"num_experts_per_tok": 5}, "5 of 8 experts in 2 of 4 groups"),
        ("mla", DEEPSEEK2 | {"norm_topk_prob": True}, "norm_topk_prob = True; supported: False"),
        ("mla", DEEPSEEK2 | {"topk_method": "noaux_tc"}, "topk_method = 'noaux_tc'; supported: greedy, group_limited"),
        ("mla", {"attention_bias": True}, "attention_bias = True; supported: no attention_bias"),
        ("mla", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config = .* unquantised weights"),
        ("moe", {"use_sliding_window": True}, "use_sliding_window = True; supported: full attention"),
        ("moe", {"num_experts_per_tok": 9}, "9 of 8 experts in 1 of 1 groups"),
    ],
)
def test_what_is_not_implemented_is_named(kind: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(kind, **changes)


@for_each(
    ("kind", "shape", "message"),
    [
        ("moe", Shape(tp=4, dp=2), ""),
        ("mla", Shape(tp=8, dp=8, ep=8), ""),
        ("gqa", Shape(tp=8, dp=2, pp=2), ""),
        ("moe", Shape(tp=3, ep=3), "num_attention_heads 8 is not divisible by --tp-size 3"),
        ("mla", Shape(tp=12, dp=2), r"8 is not divisible by attention TP \(--tp-size / --attn-dp-size\) 6"),
        ("moe", Shape(tp=16, dp=2, ep=16), "experts 8 is not divisible by --ep-size 16"),
        ("moe", Shape(tp=64, dp=8), r"intermediate_size 32 is not divisible by MoE TP \(--tp-size / --ep-size\) 64"),
        ("gqa", Shape(tp=64, dp=8), "intermediate_size 96 is not divisible by --tp-size 64"),
        ("gqa", Shape(tp=2, ep=2), "--ep-size 2: LlamaForCausalLM has no experts"),
        ("gqa", Shape(pp=3), "num_hidden_layers 2 are fewer than --pp-size 3 stages"),
    ],
)
def test_shapes_that_do_not_cut_evenly_are_refused(kind: str, shape: Shape, message: str) -> None:
    if not message:
        read(kind).check_shape(shape)
        return
    with pytest.raises(CheckpointError, match=message):
        read(kind).check_shape(shape)
