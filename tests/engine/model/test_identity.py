"""The name two engines compare: the same wherever their KV cache means the same, another wherever it does not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from pdctl.engine.config.checkpoint_config import ModelConfig
from pdctl.engine.model.weights import model_identity
from tests.engine.scheduler.rig import TINY


def identity(path: Path) -> str:
    return model_identity(ModelConfig.from_dir(path), path)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY, tmp_path / "elsewhere"))


def edit(path: Path, **fields: object) -> None:
    file = path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def test_a_copy_elsewhere_with_another_limit_is_the_same_model(copy: Path) -> None:
    edit(copy, max_position_embeddings=99)
    assert identity(copy) == identity(TINY)
    assert identity(copy).startswith("LlamaForCausalLM-")


def test_another_rope_is_another_model(copy: Path) -> None:
    edit(copy, rope_theta=123.0, rope_parameters={"rope_theta": 123.0, "rope_type": "default"})
    assert identity(copy) != identity(TINY)


def test_tuned_weights_are_another_model(copy: Path) -> None:
    file = copy / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith("layers.0.self_attn.k_proj.weight"))
    tensors[name][0, 0] += 0.5
    save_file(tensors, file)
    assert identity(copy) != identity(TINY)
