"""Attention in which groups of query heads share a KV head: what Llama, Qwen and their mixtures of experts have."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from pdctl.engine.model.rope import pair_order
from pdctl.engine.model.rows import norm_floor, rotate_, unit_rows

if TYPE_CHECKING:
    from pdctl.engine.model.attention import Step
    from pdctl.engine.model.shards import Shard


class GroupedQuery:
    """One layer's attention on one rank: its share of the heads."""

    def __init__(self, shard: Shard, layer: int, prefix: str) -> None:
        """`layer` is the layer's place in this stage's pool; `prefix` is its name in the checkpoint, with a dot."""
        config = shard.config
        attention = prefix + "self_attn."
        attn_tp = shard.groups.attn_tp
        self._layer = layer
        self._head_dim = config.head_dim
        self._heads = config.heads // attn_tp.size
        self._kv_heads = config.rank_kv_heads(attn_tp.size)
        self._first_kv_head = attn_tp.rank * config.kv_heads // attn_tp.size
        self._hidden_floor = shard.hidden_floor
        self._head_floor = norm_floor(config.head_dim, config.rms_eps, shard.device)
        width = self._heads * config.head_dim
        self._qkv = shard.folded(
            self._stacked(shard, attention, "weight"),
            prefix + "input_layernorm.weight",
            self._stacked(shard, attention, "bias") if config.qkv_bias else None,
        )
        self._norm = self._norm_rows(shard, attention) if config.qk_norm else None
        # The sum over ranks takes each bias once.
        bias = shard.checkpoint.tensor(attention + "o_proj.bias") if config.out_bias and not attn_tp.rank else None
        self.out = shard.columns(attention + "o_proj.weight", attn_tp.rank * width, width, bias)
        self._sinks = self._own_sinks(shard, attention) if config.sinks else None

    def query(self, x: torch.Tensor, rotation: torch.Tensor, step: Step) -> torch.Tensor:
        """Project, normalise and rotate; store K and V; return the queries [tokens, heads, head_dim]."""
        tokens = rotation.shape[0]
        qkv = self._qkv.product(unit_rows(x, self._hidden_floor))[:tokens]
        heads = qkv.view(tokens, -1, self._head_dim)
        rotated = heads[:, : self._heads + self._kv_heads]
        if self._norm is not None:
            rotated.copy_(unit_rows(rotated.float(), self._head_floor) * self._norm)
        rotate_(rotated, rotation)
        step.writer.write(self._layer, heads[:, self._heads :].reshape(tokens, 2, -1))
        return heads[:, : self._heads]

    def attend(self, query: torch.Tensor, step: Step) -> torch.Tensor:
        """[tokens, heads, head_dim], ready for `out`."""
        return step.attend(self._layer, query, self._sinks)

    def attend_last(self, query: torch.Tensor, step: Step) -> torch.Tensor:
        """The same for the last token of each sequence only: [seqs, heads, head_dim]."""
        return step.attend_last(self._layer, query, self._sinks)

    def _own_sinks(self, shard: Shard, prefix: str) -> torch.Tensor:
        """One for each query head of this rank (sinks.py)."""
        sinks = shard.rows(prefix + "sinks", shard.groups.attn_tp.rank * self._heads, self._heads)
        return sinks.to(device=shard.device, dtype=torch.float32)

    def _stacked(self, shard: Shard, prefix: str, kind: str) -> torch.Tensor:
        """q, k and v of this rank, one below the other; q and k in pair order (rope.py)."""
        dim, rank = self._head_dim, shard.groups.attn_tp.rank
        order = pair_order(dim)
        first, count = self._first_kv_head * dim, self._kv_heads * dim
        query = shard.rows(f"{prefix}q_proj.{kind}", rank * self._heads * dim, self._heads * dim)
        key = shard.rows(f"{prefix}k_proj.{kind}", first, count)
        value = shard.rows(f"{prefix}v_proj.{kind}", first, count)
        query, key = (part.view(-1, dim, *part.shape[1:])[:, order].reshape(part.shape) for part in (query, key))
        return torch.cat((query, key, value))

    def _norm_rows(self, shard: Shard, prefix: str) -> torch.Tensor:
        """One row per head, query heads first, times sqrt(head_dim): the norm divides by |x|, not by its mean."""
        order = pair_order(self._head_dim)
        query, key = (shard.checkpoint.tensor(f"{prefix}{name}_norm.weight").float()[order] for name in "qk")
        rows = torch.cat((query.expand(self._heads, -1), key.expand(self._kv_heads, -1)))
        return (rows * math.sqrt(self._head_dim)).to(shard.device)
