"""Rotary embedding as one complex multiplication per layer.

Checkpoints rotate element i of a head with element i + head_dim / 2. Here the columns of the query and key
projections are reordered at load so that each such pair is adjacent: a head is then head_dim / 2 complex numbers.
Scores do not change (both sides are reordered alike); K in the cache is in this order.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from pdctl.engine.config.checkpoint_config import Rope


def pair_order(head_dim: int) -> torch.Tensor:
    """Positions of a checkpoint head's elements in our order: 0, d/2, 1, d/2 + 1, …"""
    half = head_dim // 2
    return torch.arange(head_dim).view(2, half).t().reshape(-1)


def rotation_table(rope: Rope, head_dim: int, positions: int, device: torch.device) -> torch.Tensor:
    """[positions, head_dim / 2] complex numbers, all of the same magnitude (1 but for yarn)."""
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), inverse_frequencies(rope, head_dim))
    return torch.polar(torch.full_like(angles, rope.magnitude), angles).to(device)


def inverse_frequencies(rope: Rope, head_dim: int) -> torch.Tensor:
    """[head_dim / 2] radians per token, after scaling."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        return _llama3(rope, frequencies)
    if rope.kind == "yarn":
        return _yarn(rope, frequencies)
    return frequencies


def _llama3(rope: Rope, frequencies: torch.Tensor) -> torch.Tensor:
    """Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, those between blended."""
    wavelengths = 2 * math.pi / frequencies
    blend = (rope.original_context / wavelengths - rope.low_freq) / (rope.high_freq - rope.low_freq)
    blend = blend.clamp(0.0, 1.0)
    return (1 - blend) * frequencies / rope.factor + blend * frequencies


def _yarn(rope: Rope, frequencies: torch.Tensor) -> torch.Tensor:
    """Pairs that turn often within the original context are kept, slow ones stretched, those between blended.

    As transformers 5 writes it: a pair counts by its place among head_dim / 2, between the two places where a pair
    turns `beta_fast` and `beta_slow` times.
    """
    pairs = len(frequencies)
    first, last = (_turning(rope, turns, pairs) for turns in (rope.beta_fast, rope.beta_slow))
    if rope.whole:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    blend = (torch.arange(pairs, dtype=torch.float32) - first) / (last - first if last != first else 0.001)
    blend = blend.clamp(0.0, 1.0)
    return blend * frequencies / rope.factor + (1 - blend) * frequencies


def _turning(rope: Rope, turns: float, pairs: int) -> float:
    """Place of the pair that turns `turns` times in the original context."""
    return pairs * math.log(rope.original_context / (turns * 2 * math.pi)) / math.log(rope.theta)
