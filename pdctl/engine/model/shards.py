"""One rank's weights, rearranged once at load for few and fast operations per step.

q, k and v are one matrix, gate and up another. An RMS norm's weight, and the sqrt(hidden) of its mean, are multiplied
into the matrix that follows it, so that the norm at run time is x / hypot(|x|, sqrt(hidden * eps)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from pdctl.engine.model.linear import Linear, make_linear
from pdctl.engine.model.rope import pair_order

if TYPE_CHECKING:
    from pdctl.engine.model.config import ModelConfig
    from pdctl.engine.model.parallel import Groups
    from pdctl.engine.model.weights import Checkpoint


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Sizes are this rank's: [out, in]."""

    qkv: Linear  # [(heads + 2 * kv_heads) * head_dim, hidden]
    qk_norm: torch.Tensor | None  # [heads + kv_heads, head_dim], float32
    out: Linear  # [hidden, heads * head_dim]
    gate_up: Linear  # [2 * intermediate, hidden]
    down: Linear  # [hidden, intermediate]


@dataclass(frozen=True, slots=True)
class ModelWeights:
    embedding: torch.Tensor  # [vocab, hidden]: whole on every rank, a lookup needs no sum over ranks
    layers: tuple[LayerWeights, ...]
    lm_head: Linear  # [vocabulary rows of this rank, hidden]


class Shard:
    """Cuts and rearranges the tensors of one rank: attention over attn_tp, the MLP over tp."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: ModelConfig,
        groups: Groups,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        attn_tp, tp = groups.attn_tp, groups.tp
        config.check_tp(tp.size)
        self.checkpoint = checkpoint
        self.config = config
        self.attn_rank = attn_tp.rank
        self.mlp_rank = tp.rank
        self.dtype = dtype
        self.device = device
        self.heads = config.heads // attn_tp.size
        self.kv_heads = config.rank_kv_heads(attn_tp.size)
        self.first_kv_head = attn_tp.rank * config.kv_heads // attn_tp.size
        self.intermediate = config.intermediate // tp.size
        # Equal on every rank (an all-gather needs that); the last rank pads with zeros.
        self.vocab_rows = -(-config.vocab // attn_tp.size)

    def load(self) -> ModelWeights:
        embedding = self.checkpoint.tensor("model.embed_tokens.weight")
        layers = tuple(self._layer(f"model.layers.{index}.") for index in range(self.config.layers))
        head = self._lm_head(embedding)
        # A copy: what safetensors hands out is the file itself, which somebody may overwrite while we serve.
        table = embedding.to(device=self.device, dtype=self.dtype, copy=True)
        return ModelWeights(table, layers, head)

    def _layer(self, prefix: str) -> LayerWeights:
        attention = prefix + "self_attn."
        width = self.heads * self.config.head_dim
        first = self.mlp_rank * self.intermediate
        mlp = [self._rows(f"{prefix}mlp.{name}_proj.weight", first, self.intermediate) for name in ("gate", "up")]
        bias = self._qkv(attention, "bias") if self.config.qkv_bias else None
        return LayerWeights(
            qkv=self._folded(self._qkv(attention, "weight"), prefix + "input_layernorm.weight", bias),
            qk_norm=self._qk_norm(attention) if self.config.qk_norm else None,
            out=self._columns(attention + "o_proj.weight", self.attn_rank * width, width),
            gate_up=self._folded(torch.cat(mlp), prefix + "post_attention_layernorm.weight"),
            down=self._columns(prefix + "mlp.down_proj.weight", first, self.intermediate),
        )

    def _qkv(self, prefix: str, kind: str) -> torch.Tensor:
        """q, k and v stacked; q and k in pair order (rope.py)."""
        dim = self.config.head_dim
        order = pair_order(dim)
        first, count = self.first_kv_head * dim, self.kv_heads * dim
        query = self._rows(f"{prefix}q_proj.{kind}", self.attn_rank * self.heads * dim, self.heads * dim)
        key = self._rows(f"{prefix}k_proj.{kind}", first, count)
        value = self._rows(f"{prefix}v_proj.{kind}", first, count)
        query, key = (part.view(-1, dim, *part.shape[1:])[:, order].reshape(part.shape) for part in (query, key))
        return torch.cat((query, key, value))

    def _qk_norm(self, prefix: str) -> torch.Tensor:
        """One row per head, query heads first, times sqrt(head_dim): the norm divides by |x|, not by its mean."""
        order = pair_order(self.config.head_dim)
        query, key = (self.checkpoint.tensor(f"{prefix}{name}_norm.weight").float()[order] for name in "qk")
        rows = torch.cat((query.expand(self.heads, -1), key.expand(self.kv_heads, -1)))
        return (rows * math.sqrt(self.config.head_dim)).to(self.device)

    def _lm_head(self, embedding: torch.Tensor) -> Linear:
        start = self.attn_rank * self.vocab_rows
        stop = min(start + self.vocab_rows, self.config.vocab)
        if self.config.tie_embeddings:
            rows = embedding[start:stop]
        else:
            rows = self.checkpoint.part("lm_head.weight", 0, start, stop)
        padding = self.vocab_rows - rows.shape[0]
        if padding:
            rows = torch.cat((rows, rows.new_zeros(padding, rows.shape[1])))
        return self._folded(rows, "model.norm.weight")

    def _rows(self, name: str, start: int, count: int) -> torch.Tensor:
        return self.checkpoint.part(name, 0, start, start + count)

    def _columns(self, name: str, start: int, count: int) -> Linear:
        return make_linear(self.checkpoint.part(name, 1, start, start + count), self.dtype, self.device)

    def _folded(self, matrix: torch.Tensor, norm: str, bias: torch.Tensor | None = None) -> Linear:
        """`matrix` with the norm before it multiplied in: in float32, then rounded once."""
        scale = self.checkpoint.tensor(norm).float() * math.sqrt(self.config.hidden)
        return make_linear(matrix.float() * scale, self.dtype, self.device, bias)
