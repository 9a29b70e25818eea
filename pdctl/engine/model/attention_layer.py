"""The attention part of a layer: grouped-query (GQA) or latent (MLA, DeepSeek), with rotary embedding.

MLA caches one vector per token, from which every head's K and V follow. There are two ways from the latent to the same
result. *Absorbed*: the query is multiplied by the key matrix, attends to the latents themselves as if they were one KV
head, and the result is multiplied by the value matrix; no K or V is computed, but each score costs `kv_rank` products
instead of `nope_dim`. *Expanded*: K and V of all heads are computed from the latents. Decode absorbs; a prefill of many
new tokens expands.

Rotary embedding is one complex multiplication per layer. Checkpoints rotate element i of a head with element i +
head_dim / 2. Here the columns of the query and key projections are reordered at load so that each such pair is
adjacent: a head is then head_dim / 2 complex numbers. Scores do not change (both sides are reordered alike); K in the
cache is in this order.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from pdctl.engine.config.checkpoint_config import yarn_scale
from pdctl.engine.model.forward_pass import in_place
from pdctl.engine.model.linear import make_linear, norm_floor, padded, rotate_, unit_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.engine.config.checkpoint_config import Latent, ModelConfig, Rope
    from pdctl.engine.model.forward_pass import AttentionStep
    from pdctl.engine.model.linear import Linear
    from pdctl.engine.model.weights import Shard

NORM_EPS = 1e-6  # of the two inner norms, whatever rms_norm_eps says (transformers 5)


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
        # The sum over ranks must include each bias once.
        bias = shard.checkpoint.tensor(attention + "o_proj.bias") if config.out_bias and not attn_tp.rank else None
        self.out = shard.columns(attention + "o_proj.weight", attn_tp.rank * width, width, bias)
        self._sinks = self._own_sinks(shard, attention) if config.sinks else None

    def query(self, x: torch.Tensor, rotation: torch.Tensor, step: AttentionStep) -> torch.Tensor:
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

    def attend(self, query: torch.Tensor, step: AttentionStep) -> torch.Tensor:
        """Return [tokens, heads, head_dim], ready for `out`."""
        return step.attend(self._layer, query, self._sinks)

    def attend_last(self, query: torch.Tensor, step: AttentionStep) -> torch.Tensor:
        """Do the same for the last token of each sequence only: [seqs, heads, head_dim]."""
        return step.attend_last(self._layer, query, self._sinks)

    def _own_sinks(self, shard: Shard, prefix: str) -> torch.Tensor:
        """Return the sink of each query head of this rank (forward_pass.py)."""
        sinks = shard.rows(prefix + "sinks", shard.groups.attn_tp.rank * self._heads, self._heads)
        return sinks.to(device=shard.device, dtype=torch.float32)

    def _stacked(self, shard: Shard, prefix: str, kind: str) -> torch.Tensor:
        """Return q, k and v of this rank, one below the other; q and k in pair order."""
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


class LatentAttention:
    """One layer's attention on one rank: its share of the heads; the latent is whole on every rank."""

    def __init__(self, shard: Shard, layer: int, prefix: str, widths: Latent) -> None:
        """`layer` is the layer's place in this stage's pool; `prefix` is its name in the checkpoint, with a dot."""
        config, attn_tp = shard.config, shard.groups.attn_tp
        self._layer = layer
        self._widths = widths
        self._heads = config.heads // attn_tp.size
        self._first_head = attn_tp.rank * self._heads
        self._scale = softmax_scale(config, widths)
        self._hidden_floor = shard.hidden_floor
        self._query_floor = norm_floor(widths.q_rank, NORM_EPS, shard.device)
        self._latent_floor = norm_floor(widths.kv_rank, NORM_EPS, shard.device)
        # From this many new tokens on, the scores saved outweigh computing K and V of the past.
        saved = max(1, 2 * widths.kv_rank - widths.nope_dim - widths.v_dim)
        self._expand_from = widths.kv_rank * (widths.nope_dim + widths.v_dim) / saved
        self._load(shard, prefix)

    def query(self, x: torch.Tensor, rotation: torch.Tensor, step: AttentionStep) -> torch.Tensor:
        """Project, normalise and rotate; store the latents; return the queries [tokens, heads, nope + rope]."""
        widths, tokens = self._widths, rotation.shape[0]
        down = self._down.product(unit_rows(x, self._hidden_floor))
        query, latent = down.tensor_split((down.shape[1] - widths.cached_dim,), dim=1)
        latent = latent[:tokens]
        cached = torch.cat((unit_rows(latent[:, : widths.kv_rank], self._latent_floor), latent[:, widths.kv_rank :]), 1)
        rotate_(cached[:, None, widths.kv_rank :], rotation)
        step.writer.write(self._layer, cached.unsqueeze(1))
        if self._up is not None:
            query = self._up.product(unit_rows(query, self._query_floor))
        heads = query[:tokens].reshape(tokens, self._heads, widths.qk_dim)
        rotate_(heads[..., widths.nope_dim :], rotation)
        return heads

    def attend(self, query: torch.Tensor, step: AttentionStep) -> torch.Tensor:
        """Return [tokens, heads, v_dim], ready for `out`."""
        if step.decode_only:
            return self.attend_last(query, step)
        parts = []
        for part, (latents, _), mask in step.pieces(self._layer, query):
            if part.shape[0] == 1:  # as in a decode-only step
                parts.append(self._ones(part, [latents]))
            else:
                expand = mask is None or part.shape[0] >= self._expand_from
                parts.append((self._expanded if expand else self._absorbed)(part, latents, mask))
        return torch.cat(parts)

    def attend_last(self, query: torch.Tensor, step: AttentionStep) -> torch.Tensor:
        """Do the same for the last token of each sequence only: [seqs, heads, v_dim]."""
        return self._ones(query, [latents for latents, _ in step.past(self._layer)])

    def _ones(self, query: torch.Tensor, past: Sequence[torch.Tensor]) -> torch.Tensor:
        """Attend with [seqs, heads, nope + rope], each row over all of its latents; return [seqs, heads, v_dim]."""
        rows = torch.split(self._to_latent(query).unsqueeze(1), 1)  # the heads are the rows of one product
        parts = [
            F.scaled_dot_product_attention(in_place(row), latents, latents, scale=self._scale)
            for row, latents in zip(rows, past, strict=True)
        ]
        return self._from_latent(torch.cat(parts)[:, 0])

    def _absorbed(self, query: torch.Tensor, latents: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Return [new, heads, v_dim]. The latents [1, 1, tokens, cached_dim] are K and V of one shared head."""
        rows = in_place(self._to_latent(query).transpose(0, 1).unsqueeze(0))
        mixed = F.scaled_dot_product_attention(
            rows, latents, latents, attn_mask=mask, enable_gqa=True, scale=self._scale
        )
        return self._from_latent(mixed[0].transpose(0, 1))

    def _expanded(self, query: torch.Tensor, latents: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Return [new, heads, v_dim], from K and V computed from the latents [1, 1, tokens, cached_dim]."""
        widths = self._widths
        compressed, rotated = latents[0, 0].tensor_split((widths.kv_rank,), dim=-1)
        keys = torch.matmul(compressed, self._keys.transpose(1, 2))
        keys = torch.cat((keys, rotated.expand(self._heads, -1, -1)), dim=-1)
        # The fused kernel requires V to be as wide as K.
        values = F.pad(torch.matmul(compressed, self._values), (0, max(0, widths.qk_dim - widths.v_dim)))
        rows = in_place(query.transpose(0, 1).unsqueeze(0))
        out = F.scaled_dot_product_attention(
            rows, keys.unsqueeze(0), values.unsqueeze(0), attn_mask=mask, is_causal=mask is None, scale=self._scale
        )
        return out[0].transpose(0, 1)[..., : widths.v_dim]

    def _to_latent(self, query: torch.Tensor) -> torch.Tensor:
        """Multiply [n, heads, nope + rope] by the key matrix; return [n, heads, cached_dim]."""
        nope = self._widths.nope_dim
        absorbed = self._into_latent(query[..., :nope])
        return torch.cat((absorbed, query[..., nope:]), dim=-1)

    def _from_latent(self, mixed: torch.Tensor) -> torch.Tensor:
        """Multiply [n, heads, cached_dim] by the value matrix; return [n, heads, v_dim]."""
        return self._out_of_latent(mixed[..., : self._widths.kv_rank])

    def _load(self, shard: Shard, prefix: str) -> None:
        widths, attention = self._widths, prefix + "self_attn."
        norm = prefix + "input_layernorm.weight"
        latent = shard.checkpoint.tensor(attention + "kv_a_proj_with_mqa.weight")
        self._up: Linear | None = None
        if widths.q_rank:
            query = shard.checkpoint.tensor(attention + "q_a_proj.weight")
            up = self._query_rows(shard, attention + "q_b_proj.weight")
            self._up = shard.folded(up, attention + "q_a_layernorm.weight")
        else:
            query = self._query_rows(shard, attention + "q_proj.weight")
        self._down = shard.folded(torch.cat((query, self._paired(latent, widths.kv_rank))), norm)
        width = widths.nope_dim + widths.v_dim
        rows = shard.rows(attention + "kv_b_proj.weight", self._first_head * width, self._heads * width)
        made = shard.scaled(rows, attention + "kv_a_layernorm.weight").view(self._heads, width, widths.kv_rank)
        made = made.to(device=shard.device, dtype=shard.dtype)
        self._keys = made[:, : widths.nope_dim].contiguous()  # [heads, nope_dim, kv_rank]
        self._values = made[:, widths.nope_dim :].transpose(1, 2).contiguous()  # [heads, kv_rank, v_dim]
        self._into_latent = PerHead(self._keys)
        self._out_of_latent = PerHead(self._values)
        count = self._heads * widths.v_dim
        self.out = shard.columns(attention + "o_proj.weight", self._first_head * widths.v_dim, count)

    def _query_rows(self, shard: Shard, name: str) -> torch.Tensor:
        dim = self._widths.qk_dim
        rows = shard.rows(name, self._first_head * dim, self._heads * dim)
        heads = rows.view(self._heads, dim, -1)
        return torch.cat([self._paired(head, self._widths.nope_dim) for head in heads])

    def _paired(self, rows: torch.Tensor, first: int) -> torch.Tensor:
        """Put the rows from `first` on in the order the rotation needs: pairs side by side."""
        if self._widths.adjacent:
            return rows
        return torch.cat((rows[:first], rows[first:][pair_order(self._widths.rope_dim)]))


class PerHead:
    """Multiplies [n, heads, a] by one matrix [a, b] per head: [n, heads, b]."""

    def __init__(self, matrices: torch.Tensor) -> None:
        """`matrices` is [heads, a, b]."""
        self._matrices = matrices
        # One product over all heads does not keep its rows independent on every CPU (linear.py).
        self._linears = [
            make_linear(matrix.t(), matrix.dtype, matrix.device)
            for matrix in (matrices if matrices.device.type == "cpu" else ())
        ]

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        if not self._linears:
            return torch.bmm(rows.transpose(0, 1), self._matrices).transpose(0, 1)
        wide = padded(rows.flatten(1)).view(-1, *rows.shape[1:])
        heads = [linear.product(head.contiguous()) for linear, head in zip(self._linears, wide.unbind(1), strict=True)]
        return torch.stack(heads, dim=1)[: len(rows)]


def softmax_scale(config: ModelConfig, widths: Latent) -> float:
    """Return the factor for scores: DeepSeek applies yarn's factor here, squared, for whole heads."""
    return yarn_scale(config.rope.factor, config.rope.all_dims) ** 2 / math.sqrt(widths.qk_dim)


def pair_order(head_dim: int) -> torch.Tensor:
    """Return the positions of a checkpoint head's elements in our order: 0, d/2, 1, d/2 + 1, …"""
    half = head_dim // 2
    return torch.arange(head_dim).view(2, half).t().reshape(-1)


def rotation_table(rope: Rope, head_dim: int, positions: int, device: torch.device) -> torch.Tensor:
    """Return [positions, head_dim / 2] complex numbers, all of the same magnitude (1 except for yarn)."""
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), inverse_frequencies(rope, head_dim))
    return torch.polar(torch.full_like(angles, rope.magnitude), angles).to(device)


def inverse_frequencies(rope: Rope, head_dim: int) -> torch.Tensor:
    """Return [head_dim / 2] radians per token, after scaling."""
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
    """Llama 3.1: stretch long wavelengths by `factor`, keep short ones, blend those between."""
    wavelengths = 2 * math.pi / frequencies
    blend = (rope.original_context / wavelengths - rope.low_freq) / (rope.high_freq - rope.low_freq)
    blend = blend.clamp(0.0, 1.0)
    return (1 - blend) * frequencies / rope.factor + blend * frequencies


def _yarn(rope: Rope, frequencies: torch.Tensor) -> torch.Tensor:
    """Keep pairs that turn often within the original context, stretch slow ones, blend those between.

    As in transformers 5: the blend depends on a pair's index among head_dim / 2, between the two indices at which a
    pair turns `beta_fast` and `beta_slow` times.
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
    """Return the index of the pair that turns `turns` times within the original context."""
    return pairs * math.log(rope.original_context / (turns * 2 * math.pi)) / math.log(rope.theta)
