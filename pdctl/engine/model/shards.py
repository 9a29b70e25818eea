"""A checkpoint's tensors rearranged for one rank: norm scales multiplied into the matrices after them, ready to use."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from pdctl.engine.model.experts import Experts
from pdctl.engine.model.gqa import GroupedQuery
from pdctl.engine.model.linear import Linear, make_linear
from pdctl.engine.model.mla import LatentAttention
from pdctl.engine.model.mlp import GatedMlp
from pdctl.engine.model.rows import norm_floor
from pdctl.layout.stages import stage_layers

if TYPE_CHECKING:
    from pdctl.engine.model.config import ModelConfig
    from pdctl.engine.model.parallel import Groups
    from pdctl.engine.model.weights import Checkpoint

EMBEDDING = "model.embed_tokens.weight"


class Layer(NamedTuple):
    attention: GroupedQuery | LatentAttention
    mlp: GatedMlp | Experts


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """One pipeline stage's. The embedding is the first stage's, the head the last one's."""

    embedding: torch.Tensor | None  # [vocab, hidden]: whole on every rank, a lookup needs no sum over ranks
    layers: tuple[Layer, ...]
    lm_head: Linear | None  # [vocabulary rows of this rank, hidden]


class Shard:
    """Cuts and rearranges the tensors of one rank: attention over attn_tp, the MLP over tp, layers over pp."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: ModelConfig,
        groups: Groups,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        config.check_shape(groups.shape)
        self.checkpoint = checkpoint
        self.config = config
        self.groups = groups
        self.dtype = dtype
        self.device = device
        self.hidden_floor = norm_floor(config.hidden, config.rms_eps, device)

    def load(self) -> ModelWeights:
        groups, numbers = self.groups, stage_layers(self.config.layers, self.groups.pp.size, self.groups.pp.rank)
        layers = tuple(self._layer(index, number) for index, number in enumerate(numbers))
        return ModelWeights(
            self._embedding() if groups.first_stage else None,
            layers,
            self._lm_head() if groups.last_stage else None,
        )

    def rows(self, name: str, start: int, count: int) -> torch.Tensor:
        return self.checkpoint.part(name, 0, start, start + count)

    def columns(self, name: str, start: int, count: int, bias: torch.Tensor | None = None) -> Linear:
        return make_linear(self.checkpoint.part(name, 1, start, start + count), self.dtype, self.device, bias)

    def folded(
        self, matrix: torch.Tensor, norm: str, bias: torch.Tensor | None = None, dtype: torch.dtype | None = None
    ) -> Linear:
        """`matrix` with the norm before it multiplied in: in float32, then rounded once."""
        return make_linear(self.scaled(matrix, norm), dtype or self.dtype, self.device, bias)

    def scaled(self, matrix: torch.Tensor, norm: str) -> torch.Tensor:
        """`matrix` in float32 with the norm's scale, times sqrt(width): the norm divides by |x|, not by its mean."""
        scale = self.checkpoint.tensor(norm).float()
        return matrix.float() * (scale * math.sqrt(len(scale)))

    def _layer(self, index: int, number: int) -> Layer:
        """`index` counts within the stage, `number` within the model."""
        config, prefix = self.config, f"model.layers.{number}."
        attention = (
            LatentAttention(self, index, prefix, config.latent) if config.latent else GroupedQuery(self, index, prefix)
        )
        return Layer(attention, self._mlp(number, prefix + "mlp.", prefix + "post_attention_layernorm.weight"))

    def _mlp(self, number: int, prefix: str, norm: str) -> GatedMlp | Experts:
        config, tp = self.config, self.groups.tp
        if config.mixture and config.sparse[number]:
            return Experts.load(self, config.mixture, prefix, norm)
        return GatedMlp.load(self, prefix, norm, config.intermediate, tp.rank, tp.size)

    def _embedding(self) -> torch.Tensor:
        # A copy: what safetensors hands out is the file itself, which somebody may overwrite while we serve.
        return self.checkpoint.tensor(EMBEDDING).to(device=self.device, dtype=self.dtype, copy=True)

    def _lm_head(self) -> Linear:
        attn_tp, vocab = self.groups.attn_tp, self.config.vocab
        # Equal on every rank (an all-gather needs that); the last rank pads with zeros.
        count = -(-vocab // attn_tp.size)
        start = attn_tp.rank * count
        rows = self.checkpoint.part(
            EMBEDDING if self.config.tie_embeddings else "lm_head.weight", 0, start, min(start + count, vocab)
        )
        padding = count - rows.shape[0]
        if padding:
            rows = torch.cat((rows, rows.new_zeros(padding, rows.shape[1])))
        return self.folded(rows, "model.norm.weight")
