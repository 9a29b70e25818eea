"""A Hugging Face config.json as the numbers a plan needs: layers, heads, experts, widths, storage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pdctl import user_files
from pdctl.errors import UsageError
from pdctl.quick_definitions import NamedTuple

Config = Mapping[str, Any]
REQUIRED = ("num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads")
COUNTS = (*REQUIRED, "num_key_value_heads", "head_dim", "intermediate_size")
FAMILIES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3-moe",
    "MixtralForCausalLM": "mixtral",
    "DeepseekV2ForCausalLM": "deepseek",
    "DeepseekV3ForCausalLM": "deepseek",
    "GptOssForCausalLM": "gpt-oss",
}
LARGEST = 16 << 20  # bytes of a config.json; those of quantised models, which list layers, have up to 1 MiB
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class ModelShape(NamedTuple):
    """What a model's KV cache and weights follow from. Widths in elements, `dtype_bytes` per element."""

    family: str
    architecture: str
    layers: int
    hidden: int
    vocab: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int  # of a dense MLP layer
    tied: bool  # lm_head is the embedding
    dtype_bytes: int
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False
    sinks: bool = False
    # MLA (kv_lora_rank 0: not MLA)
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    rope_dim: int = 0
    nope_dim: int = 0
    v_dim: int = 0
    # mixture of experts (experts 0: dense)
    experts: int = 0
    moe_intermediate: int = 0
    shared_experts: int = 0
    dense_layers: tuple[int, ...] = ()  # the dense layers of a MoE model
    gate_bias: bool = False
    expert_bias: bool = False
    # sliding window (window 0: none)
    window: int = 0
    sliding_layers: tuple[int, ...] = ()
    quantization: str = ""  # "", fp8 or mxfp4
    quant_block: int = 0  # side of a square fp8 scale block; 0: one scale per tensor

    @property
    def mla(self) -> bool:
        return self.kv_lora_rank > 0


def load(path: str | Path, dtype: str = "auto") -> ModelShape:
    """From a checkpoint directory or a config.json; `dtype` other than auto replaces that of unquantised weights.

    UsageError names the file and what was expected of it.
    """
    file = Path(path)
    file = file / "config.json" if file.is_dir() else file
    try:
        text = user_files.read(file, LARGEST)
        if len(text) > LARGEST:
            raise UsageError(f"{file} is larger than {LARGEST >> 20} MiB", "give the config.json of a checkpoint")
        config = json.loads(text)
    except OSError as error:
        raise UsageError(
            f"cannot read {file}: {error.strerror}", "give a checkpoint directory or the path of its config.json"
        ) from error
    except ValueError as error:
        raise UsageError(f"{file} is not JSON: {error}", "give the config.json of a Hugging Face checkpoint") from error
    if not isinstance(config, dict):
        raise UsageError(f"{file} is not a JSON object", "give the config.json of a Hugging Face checkpoint")
    try:
        model = parse(config)
    except KeyError as error:
        raise UsageError(f"{file} has no key {error}", "give the config.json of a Hugging Face checkpoint") from error
    except UsageError as error:
        raise UsageError(f"{file}: {error.message}", error.fix) from error
    return model._replace(dtype_bytes=DTYPE_BYTES.get(dtype, model.dtype_bytes))


def parse(config: Config) -> ModelShape:
    """Raise KeyError for a missing key, UsageError for an architecture or storage that pdctl cannot compute with."""
    names = config.get("architectures") or [f"(none; model_type {config.get('model_type', 'missing')})"]
    architecture = str(names[0])
    family = FAMILIES.get(architecture)
    if family is None:
        raise UsageError(
            f"architecture {architecture} is not supported by pdctl's memory arithmetic",
            f"supported: {', '.join(FAMILIES)}",
        )
    values = _common(config) | _FEATURES[family](config) | _storage(config)
    return ModelShape(family=family, architecture=architecture, **values)


def _check_counts(config: Config) -> None:
    """Raise UsageError for a count that is not a whole number above 0: all the arithmetic uses them."""
    for key in COUNTS:
        count = config.get(key, 1)  # whoever reads a required key reports it missing
        if (type(count) is not int or count < 1) and (count is not None or key in REQUIRED):
            raise UsageError(f"{key} is {json.dumps(count)}", "a whole number above 0 is expected")


def _common(config: Config) -> dict[str, Any]:
    _check_counts(config)
    heads = config["num_attention_heads"]
    return {
        "layers": config["num_hidden_layers"],
        "hidden": config["hidden_size"],
        "vocab": config["vocab_size"],
        "heads": heads,
        "kv_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or config["hidden_size"] // heads,
        "intermediate": config.get("intermediate_size", 0),
        "tied": bool(config.get("tie_word_embeddings", False)),
    }


def _llama(config: Config) -> dict[str, Any]:
    bias = bool(config.get("attention_bias", False))
    return {"qkv_bias": bias, "o_bias": bias}


def _qwen2(config: Config) -> dict[str, Any]:
    return {"qkv_bias": True}


def _qwen3(config: Config) -> dict[str, Any]:
    return _llama(config) | {"qk_norm": True}


def _qwen3_moe(config: Config) -> dict[str, Any]:
    step = config.get("decoder_sparse_step", 1) or 1
    only_dense = set(config.get("mlp_only_layers") or ())
    layers = range(config["num_hidden_layers"])
    return _qwen3(config) | {
        "experts": config.get("num_experts") or config["num_local_experts"],  # transformers 5 writes the latter
        "moe_intermediate": config["moe_intermediate_size"],
        "dense_layers": tuple(layer for layer in layers if layer in only_dense or (layer + 1) % step),
    }


def _mixtral(config: Config) -> dict[str, Any]:
    return {
        "experts": config["num_local_experts"],
        "moe_intermediate": config["intermediate_size"],
    }


def _deepseek(config: Config) -> dict[str, Any]:
    experts = config.get("n_routed_experts") or 0
    every = config.get("moe_layer_freq", 1) or 1
    method = "noaux_tc" if config["architectures"][0] == "DeepseekV3ForCausalLM" else "greedy"
    first = config.get("first_k_dense_replace", 0)
    layers = range(config["num_hidden_layers"])
    return {
        "q_lora_rank": config.get("q_lora_rank") or 0,
        "kv_lora_rank": config["kv_lora_rank"],
        "rope_dim": config["qk_rope_head_dim"],
        "nope_dim": config["qk_nope_head_dim"],
        "v_dim": config["v_head_dim"],
        "experts": experts,
        "moe_intermediate": config.get("moe_intermediate_size", 0),
        "shared_experts": config.get("n_shared_experts") or 0,
        "dense_layers": tuple(layer for layer in layers if layer < first or layer % every) if experts else (),
        "gate_bias": config.get("topk_method", method) == "noaux_tc",  # e_score_correction_bias
    }


def _gpt_oss(config: Config) -> dict[str, Any]:
    kinds = config.get("layer_types") or ["sliding_attention", "full_attention"] * config["num_hidden_layers"]
    sliding = (n for n in range(config["num_hidden_layers"]) if kinds[n] == "sliding_attention")
    return {
        "qkv_bias": True,
        "o_bias": True,
        "sinks": True,
        "experts": config.get("num_local_experts") or config["num_experts"],
        "moe_intermediate": config["intermediate_size"],
        "gate_bias": True,
        "expert_bias": True,
        "window": config["sliding_window"],
        "sliding_layers": tuple(sliding),
    }


_FEATURES = {
    "llama": _llama,
    "mistral": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3-moe": _qwen3_moe,
    "mixtral": _mixtral,
    "deepseek": _deepseek,
    "gpt-oss": _gpt_oss,
}


def _storage(config: Config) -> dict[str, Any]:
    dtype = str(config.get("torch_dtype") or config.get("dtype") or "bfloat16")
    if dtype not in DTYPE_BYTES:
        raise UsageError(f"torch_dtype {dtype} is unknown", f"known: {', '.join(DTYPE_BYTES)}")
    quantization = config.get("quantization_config") or {}
    method = str(quantization.get("quant_method", ""))
    if method not in ("", "fp8", "mxfp4"):
        raise UsageError(f"quantization {method} is not supported by the memory arithmetic", "supported: fp8, mxfp4")
    block = quantization.get("weight_block_size") or [0]
    return {"dtype_bytes": DTYPE_BYTES[dtype], "quantization": method, "quant_block": block[0]}
