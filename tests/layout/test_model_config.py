from __future__ import annotations

import json
from pathlib import Path

import pytest

from pdctl.errors import UsageError
from pdctl.layout.model_config import FAMILIES, load

from .conftest import MODELS


def test_a_directory_and_its_file_are_the_same() -> None:
    assert load(MODELS / "llama-3-8b") == load(MODELS / "llama-3-8b" / "config.json")


def test_families_are_told_apart() -> None:
    assert {path.name: load(path).family for path in MODELS.iterdir()} == {
        "llama-3-8b": "llama",
        "mistral-7b": "mistral",
        "qwen2.5-7b": "qwen2",
        "qwen3-32b": "qwen3",
        "qwen3-30b-a3b": "qwen3-moe",
        "mixtral-8x7b": "mixtral",
        "deepseek-v2-lite": "deepseek",
        "deepseek-v3": "deepseek",
        "gpt-oss-120b": "gpt-oss",
    }


def test_layers_that_differ() -> None:
    assert load(MODELS / "deepseek-v3").dense_layers == (0, 1, 2)
    assert load(MODELS / "gpt-oss-120b").sliding_layers == tuple(range(0, 36, 2))
    assert load(MODELS / "llama-3-8b").sliding_layers == ()


def written(folder: Path, **changes: object) -> Path:
    config = json.loads((MODELS / "llama-3-8b" / "config.json").read_text())
    config = {name: value for name, value in (config | changes).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_head_dim_follows_from_the_hidden_size_unless_given(tmp_path: Path) -> None:
    assert load(written(tmp_path)).head_dim == 128
    assert load(written(tmp_path, head_dim=64)).head_dim == 64


@pytest.mark.parametrize(
    ("changes", "message", "fix"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "architecture MambaForCausalLM is not supported", "LlamaForCausalLM"),
        ({"architectures": None}, r"\(none; model_type llama\) is not supported", "GptOssForCausalLM"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization awq", "fp8, mxfp4"),
        ({"torch_dtype": "float8"}, "torch_dtype float8 is unknown", "bfloat16"),
        ({"num_hidden_layers": None}, "has no key 'num_hidden_layers'", "config.json"),
        ({"num_attention_heads": "32"}, 'num_attention_heads is "32"', "a whole number above 0"),
        ({"hidden_size": 0}, "hidden_size is 0", "a whole number above 0"),
        ({"head_dim": [128]}, r"head_dim is \[128\]", "a whole number above 0"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, changes: dict[str, object], message: str, fix: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load(written(tmp_path, **changes))
    assert str(tmp_path) in caught.value.message
    assert fix in caught.value.fix


def test_every_supported_architecture_is_listed_in_the_refusal(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load(written(tmp_path, architectures=["Unheard"]))
    assert all(name in caught.value.fix for name in FAMILIES)


def test_null_is_no_number_of_layers_but_a_head_dim_to_find_out(tmp_path: Path) -> None:
    config = json.loads((MODELS / "llama-3-8b" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"head_dim": None}))
    assert load(tmp_path).head_dim == 128
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": None}))
    with pytest.raises(UsageError, match="num_hidden_layers is null"):
        load(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_file_that_is_no_config(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError, match="is not"):
        load(tmp_path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*No such file"):
        load(tmp_path / "nowhere")
