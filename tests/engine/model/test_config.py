"""config.json is read as transformers writes it, old and new; what cannot be run is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pdctl.engine.config.checkpoint_config import CheckpointError, ModelConfig, Rope
from pdctl.layout.shape import Shape
from tests.cases import for_each

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "intermediate_size": 96,
    "vocab_size": 128,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
    "eos_token_id": 2,
}


def read(directory: Path, generation: dict | None = None, **changes: object) -> ModelConfig:
    (directory / "config.json").write_text(json.dumps(LLAMA | changes))
    if generation is not None:
        (directory / "generation_config.json").write_text(json.dumps(generation))
    return ModelConfig.from_dir(directory)


def test_a_plain_llama(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert (config.layers, config.hidden, config.heads, config.kv_heads, config.head_dim) == (3, 64, 8, 2, 8)
    assert (config.intermediate, config.vocab, config.max_position, config.rms_eps) == (96, 128, 8192, 1e-5)
    assert (config.tie_embeddings, config.qkv_bias, config.qk_norm) == (False, False, False)
    assert config.rope == Rope(theta=10000.0)
    assert config.dtype == "bfloat16"


def test_families_differ_in_bias_and_norm(tmp_path: Path) -> None:
    qwen2 = read(tmp_path, architectures=["Qwen2ForCausalLM"])
    qwen3 = read(tmp_path, architectures=["Qwen3ForCausalLM"], head_dim=128, tie_word_embeddings=True, dtype="float32")
    assert (qwen2.qkv_bias, qwen2.qk_norm) == (True, False)
    assert (qwen3.qkv_bias, qwen3.qk_norm, qwen3.head_dim) == (False, True, 128)
    assert (qwen3.tie_embeddings, qwen3.dtype) == (True, "float32")


def test_windows_of_layers(tmp_path: Path) -> None:
    """As transformers reads them: Mistral has one unless it is null, Qwen only with the switch."""

    def windows(architecture: str, **changes: object) -> tuple[int, ...]:
        return read(tmp_path, architectures=[architecture], **changes).windows

    assert windows("LlamaForCausalLM", sliding_window=8) == (0, 0, 0)
    assert windows("MistralForCausalLM", sliding_window=8) == (8, 8, 8)
    assert windows("MistralForCausalLM", sliding_window=None) == (0, 0, 0)
    assert windows("MistralForCausalLM") == (4096, 4096, 4096)
    assert windows("Qwen2ForCausalLM", sliding_window=8, use_sliding_window=False) == (0, 0, 0)
    assert windows("Qwen2ForCausalLM", sliding_window=8, use_sliding_window=True) == (0, 0, 0)  # 28 full layers first
    assert windows("Qwen2ForCausalLM", sliding_window=8, use_sliding_window=True, max_window_layers=1) == (0, 8, 8)
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    assert windows("Qwen3ForCausalLM", sliding_window=8, use_sliding_window=True, layer_types=kinds) == (8, 0, 8)


GPT_OSS = {
    "architectures": ["GptOssForCausalLM"], "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8,
    "attention_bias": True, "swiglu_limit": 5.0, "rope_theta": 150000.0,
    "rope_scaling": {
        "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False,
    },
}  # fmt: skip


def test_gpt_oss(tmp_path: Path) -> None:
    config = read(tmp_path, **GPT_OSS)
    assert config.windows == (8, 0, 8)
    assert (config.qkv_bias, config.out_bias, config.sinks) == (True, True, True)
    assert config.mixture is not None
    assert (config.mixture.experts, config.mixture.active, config.mixture.router_bias) == (4, 2, True)
    assert config.mixture.clamped == (1.702, 5.0)
    assert (config.rope.kind, config.rope.whole, round(config.rope.magnitude, 4)) == ("yarn", False, 1.3466)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_scaling": None}, "config.json has no 'rope_scaling'"),
        ({"attention_bias": False}, "attention_bias = False; supported: attention_bias"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "quantization_config .* supported: unquantised weights"),
    ],
    ids=["rope", "bias", "mxfp4"],
)
def test_a_gpt_oss_that_cannot_run_is_named(tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path, **GPT_OSS | changes)


def test_eos_ids_of_both_files_count_once_each(tmp_path: Path) -> None:
    assert read(tmp_path).eos_token_ids == (2,)
    assert read(tmp_path, {"eos_token_id": [5, 2, 9]}).eos_token_ids == (5, 2, 9)


@pytest.mark.parametrize(
    "written",
    [
        {"rope_theta": 500000.0, "rope_scaling": {"type": "linear", "factor": 4.0}},
        {"rope_parameters": {"rope_theta": 500000.0, "rope_type": "linear", "factor": 4.0}},
    ],
    ids=["before transformers 5", "transformers 5"],
)
def test_rope_is_read_in_both_spellings(tmp_path: Path, written: dict) -> None:
    rope = read(tmp_path, **written).rope
    assert (rope.theta, rope.kind, rope.factor) == (500000.0, "linear", 4.0)


def test_llama3_rope_keeps_all_its_numbers(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 2048,
    }  # fmt: skip
    rope = read(tmp_path, rope_theta=500000.0, rope_scaling=scaling).rope
    assert rope == Rope(500000.0, "llama3", 8.0, 1.0, 4.0, 2048)


@for_each(
    ("changes", "message"),
    [
        (
            {"architectures": ["MixtralForCausalLM"]},
            "MixtralForCausalLM is not served .* LlamaForCausalLM, ",
        ),
        ({"architectures": None}, "no architecture is not served"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope type 'longrope' .* default, linear, llama3, yarn"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
        (
            {"architectures": ["MistralForCausalLM"], "sliding_window": 0},
            "sliding_window = 0; supported: tokens, at least 1, or null",
        ),
        (
            {"architectures": ["MistralForCausalLM"], "layer_types": ["sliding_attention"]},
            "layer_types = .* supported: one of full_attention, sliding_attention for each of 3 layers",
        ),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'; supported: silu"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config .* supported: unquantised weights"),
        ({"mlp_bias": True}, "mlp_bias = True; supported: no bias in the MLP"),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"dtype": "float8_e4m3fn"}, "dtype 'float8_e4m3fn' is not supported; supported: float32"),
        ({"num_key_value_heads": 3}, "8 heads over 3 KV heads"),
        ({"num_attention_heads": None}, "num_attention_heads = None; supported: a whole number above 0"),
        ({"hidden_size": "wide"}, "hidden_size = 'wide'; supported: a whole number above 0"),
        ({"vocab_size": 0}, "vocab_size = 0; supported: a whole number above 0"),
        ({"rope_theta": [1]}, "LlamaForCausalLM with float\\(\\) argument"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_run_is_named_with_what_can(tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        read(tmp_path, **changes)
    assert str(tmp_path) in caught.value.message


def test_a_missing_key_or_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json: no such file"):
        ModelConfig.from_dir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    with pytest.raises(CheckpointError, match=r"config\.json has no 'num_attention_heads'"):
        ModelConfig.from_dir(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json: not JSON"):
        ModelConfig.from_dir(tmp_path)
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").mkdir()
    with pytest.raises(CheckpointError, match=r"config\.json: Is a directory"):
        ModelConfig.from_dir(tmp_path)


def test_tensor_parallel_sizes_that_do_not_cut_evenly_are_refused(tmp_path: Path) -> None:
    config = read(tmp_path, num_key_value_heads=4, num_attention_heads=12, hidden_size=96)
    assert [config.rank_kv_heads(size) for size in (1, 2, 4)] == [4, 2, 1]
    config.check_shape(Shape(tp=4))
    with pytest.raises(CheckpointError, match="num_attention_heads 12 is not divisible by --tp-size 8"):
        config.check_shape(Shape(tp=8))
    with pytest.raises(CheckpointError, match="num_key_value_heads 4 and --tp-size 6: one must divide the other"):
        config.check_shape(Shape(tp=6))
