"""Random small checkpoints, and what transformers computes with them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from pdctl.engine.config.checkpoint_config import ModelConfig
from pdctl.engine.kvcache.kv_pool import KVPool
from pdctl.engine.model.forward_pass import ForwardBatch, SeqSlice
from pdctl.engine.model.model_runner import ModelRunner
from pdctl.engine.model.parallel import Groups

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# What transformers calls the family: NameConfig and NameForCausalLM.
FAMILIES = {
    "llama": "Llama",
    "gpt-oss": "GptOss",
    "mistral": "Mistral",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "qwen2-moe": "Qwen2Moe",
    "qwen3-moe": "Qwen3Moe",
    "deepseek2": "DeepseekV2",
    "deepseek3": "DeepseekV3",
}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 32,
    "beta_fast": 32, "beta_slow": 1,
}  # fmt: skip
DEEPSEEK_YARN = YARN | {"factor": 4.0, "original_max_position_embeddings": 64, "mscale": 0.7, "mscale_all_dim": 1.2}
# MLA; one dense layer, two with 12 experts, 3 of which see a token.
DEEPSEEK = {
    "kv_lora_rank": 24, "q_lora_rank": 20, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 12,
    "first_k_dense_replace": 1, "moe_intermediate_size": 20, "n_routed_experts": 12, "num_experts_per_tok": 3,
    "n_shared_experts": 2, "routed_scaling_factor": 1.7,
}  # fmt: skip
EXPERTS = {"moe_intermediate_size": 20, "num_experts": 6, "num_experts_per_tok": 2}
GPT_OSS_YARN = YARN | {"truncate": False, "rope_theta": 150000.0, "factor": 32.0}
# A bound so low that it matters to random weights.
CLAMPED = {"num_local_experts": 4, "num_experts_per_tok": 2, "swiglu_alpha": 1.3, "swiglu_limit": 0.6}
AFTER_ONE_FULL_LAYER = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}
FULL_LAYER_LAST = {
    "use_sliding_window": True, "sliding_window": 10,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
}  # fmt: skip


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
    window: dict[str, object] = field(default_factory=dict)
    extra: dict[str, object] = field(default_factory=dict)  # more of the family's configuration


CASES = (
    Case("llama-gqa2-tied", "llama", (4, 2), 12, 16, "layer-major", tied=True),
    Case("llama-mha-dim20-page1", "llama", (4, 4), 20, 1, "page-major"),
    Case("llama-mqa-llama3-rope-page64", "llama", (8, 1), 16, 64, "layer-major", rope=LLAMA3),
    Case("llama-linear-rope-page7", "llama", (6, 2), 10, 7, "layer-major", rope=LINEAR),
    Case("qwen2-bias-gqa3", "qwen2", (6, 2), 8, 16, "page-major"),
    Case("qwen2-bias-tied-page5", "qwen2", (4, 1), 16, 5, "layer-major", tied=True),
    Case("qwen3-qk-norm-page64", "qwen3", (4, 2), 24, 64, "page-major", tied=True),
    Case("qwen3-qk-norm-mha-page3", "qwen3", (2, 2), 34, 3, "layer-major"),
    Case("mistral-window-within-a-page", "mistral", (4, 2), 12, 16, "layer-major", window={"sliding_window": 5}),
    Case("mistral-window-over-pages", "mistral", (4, 1), 16, 8, "page-major", window={"sliding_window": 21}),
    Case("mistral-window-beyond-the-prompt", "mistral", (4, 4), 12, 16, "layer-major", window={"sliding_window": 99}),
    Case("qwen2-last-layers-windowed", "qwen2", (4, 2), 16, 16, "layer-major", window=AFTER_ONE_FULL_LAYER),
    Case("qwen3-full-layer-last", "qwen3", (4, 2), 24, 4, "layer-major", window=FULL_LAYER_LAST),
    Case("gpt-oss-window-within-a-page", "gpt-oss", (4, 2), 12, 16, "layer-major", rope=YARN, extra=CLAMPED | {
        "sliding_window": 7, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    }),
    Case("gpt-oss-window-over-pages", "gpt-oss", (6, 2), 10, 4, "page-major", rope=GPT_OSS_YARN, extra=CLAMPED | {
        "sliding_window": 11, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    }),
    Case("llama-yarn-page16", "llama", (4, 2), 12, 16, "layer-major", rope=YARN),
    Case("qwen2-moe-shared-expert-gate", "qwen2-moe", (4, 2), 12, 16, "layer-major", extra=EXPERTS | {
        "shared_expert_intermediate_size": 28, "mlp_only_layers": [1],
    }),
    Case("qwen3-moe-page5", "qwen3-moe", (4, 2), 12, 5, "page-major", extra=EXPERTS | {"norm_topk_prob": True}),
    Case("qwen3-moe-every-second", "qwen3-moe", (4, 4), 12, 64, "layer-major", extra=EXPERTS | {
        "decoder_sparse_step": 2,
    }),
    Case("deepseek2-greedy-page-major", "deepseek2", (4, 4), 12, 16, "page-major", extra=DEEPSEEK),
    Case("deepseek2-groups-yarn", "deepseek2", (6, 6), 8, 7, "layer-major", rope=DEEPSEEK_YARN, extra=DEEPSEEK | {
        "q_lora_rank": None, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2,
    }),
    Case("deepseek3-noaux", "deepseek3", (4, 4), 12, 16, "layer-major", extra=DEEPSEEK | {
        "n_group": 4, "topk_group": 2,
    }),
    Case("deepseek3-yarn-halves", "deepseek3", (2, 2), 24, 64, "page-major", rope=DEEPSEEK_YARN, extra=DEEPSEEK | {
        "n_group": 3, "topk_group": 2, "norm_topk_prob": False, "rope_interleave": False, "v_head_dim": 20,
    }),
)  # fmt: skip


def make_peer(case: Case, directory: Path) -> PreTrainedModel:
    """A random transformers model, saved to `directory`."""
    torch.manual_seed(7)
    # Here, not above: ranks of a group import this module too, each paying the seconds that transformers takes.
    transformers = importlib.import_module("transformers")
    name = FAMILIES[case.family]
    config_class, model_class = (getattr(transformers, name + kind) for kind in ("Config", "ForCausalLM"))
    config = config_class(
        vocab_size=case.vocab,
        hidden_size=48 if case.family != "qwen2" else case.heads[0] * case.head_dim,
        intermediate_size=84,
        num_hidden_layers=3,
        num_attention_heads=case.heads[0],
        num_key_value_heads=case.heads[1],
        **({} if "kv_lora_rank" in case.extra else {"head_dim": case.head_dim}),
        max_position_embeddings=256,
        tie_word_embeddings=case.tied,
        rope_parameters=dict(case.rope),
        rms_norm_eps=1e-5,
        **case.window,
        **case.extra,
    )
    model = model_class(config).eval()
    for weight in model.parameters():
        # Norm weights away from 1 and biases away from 0: a part that is left out must show.
        torch.nn.init.normal_(weight, 1.0 if weight.dim() == 1 else 0.0, 0.2)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            torch.nn.init.normal_(buffer, 0.0, 0.2)
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
