"""Multi-head latent attention (DeepSeek): the cache holds one vector per token, from which every head's K and V follow.

Two ways lead from the latent to the same result. *Absorbed*: the query goes through the key matrix instead of the
keys, attends to the latents themselves as if they were one KV head, and what comes out goes through the value matrix;
no K or V is made, but each score costs `kv_rank` products instead of `nope_dim`. *Expanded*: K and V of all heads are
made from the latents. Decode absorbs; a prefill of many new tokens expands.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from pdctl.engine.config.checkpoint_config import yarn_scale
from pdctl.engine.model.linear import make_linear
from pdctl.engine.model.placement import in_place
from pdctl.engine.model.rope import pair_order
from pdctl.engine.model.rows import norm_floor, padded, rotate_, unit_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.engine.config.checkpoint_config import ModelConfig
    from pdctl.engine.config.latent import Latent
    from pdctl.engine.model.attention import Step
    from pdctl.engine.model.linear import Linear
    from pdctl.engine.model.shards import Shard

NORM_EPS = 1e-6  # of the two norms inside, whatever rms_norm_eps says (transformers 5)


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
        # From so many new tokens on, the scores saved are worth more than making K and V of the past.
        saved = max(1, 2 * widths.kv_rank - widths.nope_dim - widths.v_dim)
        self._expand_from = widths.kv_rank * (widths.nope_dim + widths.v_dim) / saved
        self._load(shard, prefix)

    def query(self, x: torch.Tensor, rotation: torch.Tensor, step: Step) -> torch.Tensor:
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

    def attend(self, query: torch.Tensor, step: Step) -> torch.Tensor:
        """[tokens, heads, v_dim], ready for `out`."""
        if step.decode_only:
            return self.attend_last(query, step)
        parts = []
        for part, (latents, _), mask in step.pieces(self._layer, query):
            if part.shape[0] == 1:  # as in a step that only decodes
                parts.append(self._ones(part, [latents]))
            else:
                expand = mask is None or part.shape[0] >= self._expand_from
                parts.append((self._expanded if expand else self._absorbed)(part, latents, mask))
        return torch.cat(parts)

    def attend_last(self, query: torch.Tensor, step: Step) -> torch.Tensor:
        """The same for the last token of each sequence only: [seqs, heads, v_dim]."""
        return self._ones(query, [latents for latents, _ in step.past(self._layer)])

    def _ones(self, query: torch.Tensor, past: Sequence[torch.Tensor]) -> torch.Tensor:
        """[seqs, heads, nope + rope], each over all of its latents: [seqs, heads, v_dim]."""
        rows = torch.split(self._to_latent(query).unsqueeze(1), 1)  # the heads are the rows of one product
        parts = [
            F.scaled_dot_product_attention(in_place(row), latents, latents, scale=self._scale)
            for row, latents in zip(rows, past, strict=True)
        ]
        return self._from_latent(torch.cat(parts)[:, 0])

    def _absorbed(self, query: torch.Tensor, latents: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """[new, heads, v_dim]; the latents [1, 1, tokens, cached_dim] are K and V of one head all queries share."""
        rows = in_place(self._to_latent(query).transpose(0, 1).unsqueeze(0))
        mixed = F.scaled_dot_product_attention(
            rows, latents, latents, attn_mask=mask, enable_gqa=True, scale=self._scale
        )
        return self._from_latent(mixed[0].transpose(0, 1))

    def _expanded(self, query: torch.Tensor, latents: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """[new, heads, v_dim] over K and V made from the latents [1, 1, tokens, cached_dim]."""
        widths = self._widths
        compressed, rotated = latents[0, 0].tensor_split((widths.kv_rank,), dim=-1)
        keys = torch.matmul(compressed, self._keys.transpose(1, 2))
        keys = torch.cat((keys, rotated.expand(self._heads, -1, -1)), dim=-1)
        # The fused kernel wants V as wide as K.
        values = F.pad(torch.matmul(compressed, self._values), (0, max(0, widths.qk_dim - widths.v_dim)))
        rows = in_place(query.transpose(0, 1).unsqueeze(0))
        out = F.scaled_dot_product_attention(
            rows, keys.unsqueeze(0), values.unsqueeze(0), attn_mask=mask, is_causal=mask is None, scale=self._scale
        )
        return out[0].transpose(0, 1)[..., : widths.v_dim]

    def _to_latent(self, query: torch.Tensor) -> torch.Tensor:
        """[n, heads, nope + rope] through the key matrix: [n, heads, cached_dim]."""
        nope = self._widths.nope_dim
        absorbed = self._into_latent(query[..., :nope])
        return torch.cat((absorbed, query[..., nope:]), dim=-1)

    def _from_latent(self, mixed: torch.Tensor) -> torch.Tensor:
        """[n, heads, cached_dim] through the value matrix: [n, heads, v_dim]."""
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
        """Rows from `first` on in the order rope.py wants them: pairs side by side."""
        if self._widths.adjacent:
            return rows
        return torch.cat((rows[:first], rows[first:][pair_order(self._widths.rope_dim)]))


class PerHead:
    """[n, heads, a] times a matrix [a, b] of each head: [n, heads, b]."""

    def __init__(self, matrices: torch.Tensor) -> None:
        """`matrices` is [heads, a, b]."""
        self._matrices = matrices
        # One product for all heads does not keep its rows apart on every CPU (linear.py).
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
    """What scores are multiplied with: DeepSeek applies yarn's factor for whole heads here, squared."""
    return yarn_scale(config.rope.factor, config.rope.all_dims) ** 2 / math.sqrt(widths.qk_dim)
