"""Whether two engines compute the same KV cache from the same tokens: a name both sides of a pair compare."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from typing import TYPE_CHECKING

import torch

from pdctl.engine.model.weights import Checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from pdctl.engine.config.checkpoint_config import ModelConfig

# Fields that may differ between two servers of one model: limits, and how the checkpoint happens to be stored.
APART = ("max_position", "eos_token_ids", "bos_token_id", "dtype")
PROJECTIONS = ("k_proj", "kv_a_proj_with_mqa")
ROWS = 2


def model_identity(config: ModelConfig, path: str | Path) -> str:
    """`<architecture>-<12 digits>`: a digest of the config, and of a few rows of what makes the first and last keys.

    A fine-tuned model differs from its base there in a config that is the same. Reads some KiB of the checkpoint.
    """
    shape = {name: value for name, value in asdict(config).items() if name not in APART}
    digest = hashlib.sha256(repr(sorted(shape.items())).encode())
    with Checkpoint(path) as weights:
        for layer in {0, config.layers - 1}:
            for projection in PROJECTIONS:
                name = f"model.layers.{layer}.self_attn.{projection}.weight"
                if name in weights:
                    digest.update(_rows(weights, name))
    return f"{config.architecture}-{digest.hexdigest()[:12]}"


def _rows(weights: Checkpoint, name: str) -> bytes:
    rows: bytes = weights.part(name, 0, 0, ROWS).to(torch.float32).contiguous().numpy().tobytes()
    return rows
