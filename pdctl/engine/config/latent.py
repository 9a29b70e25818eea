"""What config.json says about multi-head latent attention (MLA): the widths of its projections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

ARCHITECTURES = ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM")


class Latent(NamedTuple):
    """Widths in numbers. The cache holds one vector per token for all heads: `kv_rank` + `rope_dim` numbers."""

    q_rank: int  # 0: queries come from the hidden states in one step
    kv_rank: int
    nope_dim: int  # of a query or key head, without position
    rope_dim: int  # of a query head, and of the key part all heads share
    v_dim: int
    adjacent: bool  # whether checkpoints hold the pairs that rotate together side by side

    @property
    def qk_dim(self) -> int:
        return self.nope_dim + self.rope_dim

    @property
    def cached_dim(self) -> int:
        return self.kv_rank + self.rope_dim


def latent(raw: Mapping[str, Any], architecture: str) -> Latent | None:
    """None for models with heads of K and V. Raises KeyError for what is missing, ValueError for odd widths."""
    if architecture not in ARCHITECTURES:
        return None
    found = Latent(
        q_rank=int(raw.get("q_lora_rank") or 0),
        kv_rank=int(raw["kv_lora_rank"]),
        nope_dim=int(raw["qk_nope_head_dim"]),
        rope_dim=int(raw["qk_rope_head_dim"]),
        v_dim=int(raw["v_head_dim"]),
        adjacent=architecture == "DeepseekV2ForCausalLM" or bool(raw.get("rope_interleave", True)),
    )
    for key, width in (
        ("kv_lora_rank", found.kv_rank),
        ("qk_nope_head_dim", found.nope_dim),
        ("qk_rope_head_dim", found.rope_dim),
        ("q_lora_rank", found.q_rank),
    ):
        if width % 2:  # rotation takes two numbers as a complex one, which must stand at even places
            raise ValueError(f"{key} = {width}; supported: even widths")
    return found
