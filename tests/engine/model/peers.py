"""Random small checkpoints, and what transformers computes with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from pdctl.engine.cache.pool import KVPool
from pdctl.engine.model.config import ModelConfig
from pdctl.engine.model.parallel import Groups
from pdctl.engine.model.runner import ForwardBatch, ModelRunner, SeqSlice

FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}


@dataclass(frozen=True)
class Case:
    """One random model, and the pool it is run over."""

    name: str
    family: str
    heads: tuple[int, int]  # query, KV
    head_dim: int
    page_size: int
    layout: str
    tied: bool = False
    rope: dict[str, object] = field(default_factory=lambda: {"rope_type": "default", "rope_theta": 10000.0})
    vocab: int = 101


CASES = (
    Case("llama-gqa2-tied", "llama", (4, 2), 12, 16, "layer-major", tied=True),
    Case("llama-mha-dim20-page1", "llama", (4, 4), 20, 1, "page-major"),
    Case("llama-mqa-llama3-rope-page64", "llama", (8, 1), 16, 64, "layer-major", rope=LLAMA3),
    Case("llama-linear-rope-page7", "llama", (6, 2), 10, 7, "layer-major", rope=LINEAR),
    Case("qwen2-bias-gqa3", "qwen2", (6, 2), 8, 16, "page-major"),
    Case("qwen2-bias-tied-page5", "qwen2", (4, 1), 16, 5, "layer-major", tied=True),
    Case("qwen3-qk-norm-page64", "qwen3", (4, 2), 24, 64, "page-major", tied=True),
    Case("qwen3-qk-norm-mha-page3", "qwen3", (2, 2), 34, 3, "layer-major"),
)


def make_peer(case: Case, directory: Path) -> PreTrainedModel:
    """A random transformers model, saved to `directory`."""
    torch.manual_seed(7)
    config_class, model_class = FAMILIES[case.family]
    config = config_class(
        vocab_size=case.vocab,
        hidden_size=48 if case.family != "qwen2" else case.heads[0] * case.head_dim,
        intermediate_size=84,
        num_hidden_layers=3,
        num_attention_heads=case.heads[0],
        num_key_value_heads=case.heads[1],
        head_dim=case.head_dim,
        max_position_embeddings=256,
        tie_word_embeddings=case.tied,
        rope_parameters=dict(case.rope),
        rms_norm_eps=1e-5,
    )
    model = model_class(config).eval()
    for weight in model.parameters():
        # Norm weights away from 1 and biases away from 0: a part that is left out must show.
        torch.nn.init.normal_(weight, 1.0 if weight.dim() == 1 else 0.0, 0.2)
    model.save_pretrained(directory)
    return model


def make_runner(
    case: Case, directory: Path, pages: int = 200, groups: Groups | None = None, dtype: torch.dtype = torch.float32
) -> ModelRunner:
    groups = groups or Groups.single()
    config = ModelConfig.from_dir(directory)
    geometry = KVPool.geometry_for(config, groups.attn_tp.size, case.page_size, pages, dtype, case.layout)
    pool = KVPool(geometry, dtype=dtype)
    torch.nn.init.uniform_(pool.rows, -50, 50)  # what is not written must not be read
    return ModelRunner(config, directory, pool, groups, dtype)


def logits_of(peer: PreTrainedModel, ids: np.ndarray) -> torch.Tensor:
    """[tokens, vocab]"""
    with torch.inference_mode():
        return peer(input_ids=torch.from_numpy(ids)[None]).logits[0]


def token_ids(case: Case, count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, case.vocab, count)


def run_of_pages(case: Case, first: int, tokens: int) -> np.ndarray:
    return np.arange(first, first - (-tokens // case.page_size), dtype=np.int32)


def forward(runner: ModelRunner, *parts: tuple[np.ndarray, np.ndarray, int, int]) -> torch.Tensor:
    """Each part is (all ids of the sequence, its pages, tokens already cached, tokens after this step)."""
    new = np.concatenate([ids[start:stop] for ids, _, start, stop in parts])
    return runner.forward(ForwardBatch(new, [SeqSlice(pages, start, stop - start) for _, pages, start, stop in parts]))
