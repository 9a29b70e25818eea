"""Small random checkpoints with the tokenizer of pdctl/checkpoints/tiny: what a whole engine serves in tests.

None of them names an end-of-sequence token, so that every answer has the length it was asked for.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

import pdctl

TINY = Path(pdctl.__file__).parent / "checkpoints" / "tiny"
VOCAB = 1280  # of that tokenizer
KINDS = ("gqa", "mla", "moe")
COMMON = {
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "dtype": "float32",
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 4096,
    "num_attention_heads": 8,
    "num_hidden_layers": 2,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "tie_word_embeddings": False,
    "vocab_size": VOCAB,
}
CONFIGS = {
    # 8 heads over 4 KV heads: attention TP 1, 2, 4 and (each KV head twice) 8.
    "gqa": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "head_dim": 8,
        "num_key_value_heads": 4,
    },
    # DeepSeek-V3: a dense layer, then 8 experts in 4 groups and a shared one.
    "mla": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "first_k_dense_replace": 1,
        "kv_lora_rank": 32,
        "moe_intermediate_size": 32,
        "n_group": 4,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_experts_per_tok": 2,
        "num_key_value_heads": 8,
        "q_lora_rank": 24,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "rope_interleave": True,
        "routed_scaling_factor": 2.5,
        "topk_group": 2,
        "v_head_dim": 12,
    },
    # Qwen3-MoE: 8 experts in both layers, 3 for each token.
    "moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "decoder_sparse_step": 1,
        "head_dim": 8,
        "mlp_only_layers": [],
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "num_key_value_heads": 4,
    },
}


def make_checkpoint(kind: str, directory: Path, seed: int = 0) -> Path:
    """Write a checkpoint of one of KINDS into `directory` (created) and return it; the same seed, the same bytes."""
    config = COMMON | CONFIGS[kind]
    generator = torch.Generator().manual_seed(seed)
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {name: _random(shape, generator) for name, shape in _tensors(config)}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    (directory / "generation_config.json").write_text(json.dumps({"do_sample": False}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / name, directory / name)
    return directory


def _random(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Wide enough that the most likely token leads by far more than rounding, and differs from step to step."""
    if len(shape) == 1:
        return 1.0 + 0.2 * torch.randn(shape, generator=generator)
    return torch.randn(shape, generator=generator) * 1.5 / shape[-1] ** 0.5


def _tensors(config: dict) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor, as Hugging Face names them."""
    hidden = config["hidden_size"]
    yield "model.embed_tokens.weight", (VOCAB, hidden)
    yield "lm_head.weight", (VOCAB, hidden)
    yield "model.norm.weight", (hidden,)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (hidden,)
        yield prefix + "post_attention_layernorm.weight", (hidden,)
        attention = _latent(config) if "kv_lora_rank" in config else _grouped(config)
        yield from ((f"{prefix}self_attn.{name}.weight", shape) for name, shape in attention)
        experts = config.get("n_routed_experts") or config.get("num_experts")
        if not experts or layer < config.get("first_k_dense_replace", 0):
            yield from _mlp(prefix + "mlp.", hidden, config["intermediate_size"])
            continue
        yield prefix + "mlp.gate.weight", (experts, hidden)
        for expert in range(experts):
            yield from _mlp(f"{prefix}mlp.experts.{expert}.", hidden, config["moe_intermediate_size"])
        if "n_shared_experts" in config:
            yield prefix + "mlp.gate.e_score_correction_bias", (experts,)
            yield from _mlp(prefix + "mlp.shared_experts.", hidden, config["moe_intermediate_size"])


def _mlp(prefix: str, hidden: int, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield prefix + "gate_proj.weight", (width, hidden)
    yield prefix + "up_proj.weight", (width, hidden)
    yield prefix + "down_proj.weight", (hidden, width)


def _grouped(config: dict) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, dim = config["hidden_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    yield "q_proj", (heads * dim, hidden)
    yield "k_proj", (kv_heads * dim, hidden)
    yield "v_proj", (kv_heads * dim, hidden)
    yield "o_proj", (hidden, heads * dim)
    if config["model_type"] == "qwen3_moe":
        yield "q_norm", (dim,)
        yield "k_norm", (dim,)


def _latent(config: dict) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    q_rank, kv_rank = config["q_lora_rank"], config["kv_lora_rank"]
    nope, rope, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    yield "q_a_proj", (q_rank, hidden)
    yield "q_a_layernorm", (q_rank,)
    yield "q_b_proj", (heads * (nope + rope), q_rank)
    yield "kv_a_proj_with_mqa", (kv_rank + rope, hidden)
    yield "kv_a_layernorm", (kv_rank,)
    yield "kv_b_proj", (heads * (nope + value), kv_rank)
    yield "o_proj", (hidden, heads * value)
