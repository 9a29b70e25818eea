"""Makes the small mixture-of-experts checkpoint: `python -m pdctl.checkpoints.make_tiny_moe DIR`, in a second.

Two layers of a Qwen3-MoE with 16 heads and 16 experts: just enough to be cut into TP16, DP8 and EP16, so that a shape
that fills two hosts can be rehearsed on a laptop. Its weights are random and its answers mean nothing; they are the
same on every shape. Tokenizer and chat template are the trained checkpoint's. Needs the `engine` and `test` extras.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

TINY = Path(__file__).parent / "tiny"
BESIDE = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
SEED = 20
SPREAD = 0.3  # of the weights: large enough that the greedy token rarely depends on the order of a sum

SHAPE: dict[str, Any] = {
    "vocab_size": 1280,
    "hidden_size": 32,
    "intermediate_size": 32,
    "moe_intermediate_size": 16,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "norm_topk_prob": True,
    "num_hidden_layers": 2,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 4096,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": [1, 0],
    "pad_token_id": 0,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pdctl.checkpoints.make_tiny_moe", description=__doc__)
    parser.add_argument("directory", type=Path)
    make(parser.parse_args().directory)


def make(directory: Path) -> None:
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    model: Any = Qwen3MoeForCausalLM(Qwen3MoeConfig(**SHAPE))
    model.train(False)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, 1.0 if weight.dim() == 1 else 0.0, SPREAD)
    model.to(torch.bfloat16).save_pretrained(directory)
    for name in BESIDE:
        shutil.copyfile(TINY / name, directory / name)


if __name__ == "__main__":
    main()
