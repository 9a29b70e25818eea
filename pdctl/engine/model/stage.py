"""The weights of one pipeline stage on one rank: attention cut over attn_tp, the MLP over tp, layers over pp."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from pdctl.engine.model.experts import Experts
from pdctl.engine.model.gqa import GroupedQuery
from pdctl.engine.model.mla import LatentAttention
from pdctl.engine.model.mlp import GatedMlp
from pdctl.layout.shape import stage_layers

if TYPE_CHECKING:
    from pdctl.engine.model.linear import Linear
    from pdctl.engine.model.shards import Shard

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


def load(shard: Shard) -> ModelWeights:
    """Read what the rank of `shard` holds; the checkpoint is not needed afterwards."""
    config, groups = shard.config, shard.groups
    numbers = stage_layers(config.layers, groups.pp.size, groups.pp.rank)
    return ModelWeights(
        _embedding(shard) if groups.first_stage else None,
        tuple(_layer(shard, index, number) for index, number in enumerate(numbers)),
        _lm_head(shard) if groups.last_stage else None,
    )


def _layer(shard: Shard, index: int, number: int) -> Layer:
    """`index` counts within the stage, `number` within the model."""
    latent, prefix = shard.config.latent, f"model.layers.{number}."
    attention = LatentAttention(shard, index, prefix, latent) if latent else GroupedQuery(shard, index, prefix)
    return Layer(attention, _mlp(shard, number, prefix + "mlp.", prefix + "post_attention_layernorm.weight"))


def _mlp(shard: Shard, number: int, prefix: str, norm: str) -> GatedMlp | Experts:
    config, tp = shard.config, shard.groups.tp
    if config.mixture and config.sparse[number]:
        return Experts.load(shard, config.mixture, prefix, norm)
    return GatedMlp.load(shard, prefix, norm, config.intermediate, tp.rank, tp.size)


def _embedding(shard: Shard) -> torch.Tensor:
    # A copy: what safetensors hands out is the file itself, which somebody may overwrite while we serve.
    return shard.checkpoint.tensor(EMBEDDING).to(device=shard.device, dtype=shard.dtype, copy=True)


def _lm_head(shard: Shard) -> Linear:
    attn_tp, vocab = shard.groups.attn_tp, shard.config.vocab
    # Equal on every rank (an all-gather needs that); the last rank pads with zeros.
    count = -(-vocab // attn_tp.size)
    start = attn_tp.rank * count
    rows = shard.checkpoint.part(
        EMBEDDING if shard.config.tie_embeddings else "lm_head.weight", 0, start, min(start + count, vocab)
    )
    padding = count - rows.shape[0]
    if padding:
        rows = torch.cat((rows, rows.new_zeros(padding, rows.shape[1])))
    return shard.folded(rows, "model.norm.weight")
