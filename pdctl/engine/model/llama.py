"""The arithmetic of a dense Llama, Qwen2 or Qwen3 decoder on one rank: token ids in, logits out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from pdctl.engine.model.linear import FEWEST_ROWS

if TYPE_CHECKING:
    from pdctl.engine.model.attention import Step
    from pdctl.engine.model.config import ModelConfig
    from pdctl.engine.model.linear import Linear
    from pdctl.engine.model.parallel import Group, Groups
    from pdctl.engine.model.shards import LayerWeights, ModelWeights


class Decoder:
    """Holds one rank's rearranged weights (shards.py); keeps no state between steps."""

    def __init__(self, config: ModelConfig, weights: ModelWeights, rotations: torch.Tensor, groups: Groups) -> None:
        self.vocab = config.vocab
        self.head_dim = config.head_dim
        self.heads = config.heads // groups.attn_tp.size
        self.kv_heads = config.rank_kv_heads(groups.attn_tp.size)
        self.weights = weights
        self.rotations = rotations  # [positions, head_dim / 2] complex
        self.groups = groups
        device = rotations.device
        self.hidden_floor = torch.tensor((config.hidden * config.rms_eps) ** 0.5, device=device)
        self.head_floor = torch.tensor((config.head_dim * config.rms_eps) ** 0.5, device=device)

    def forward(self, token_ids: torch.Tensor, step: Step) -> torch.Tensor:
        """Logits after the last new token of each sequence: float32 [seqs, vocab]."""
        x = _padded(F.embedding(token_ids, self.weights.embedding))
        rotation = self.rotations[step.positions].unsqueeze(1)
        last = len(self.weights.layers) - 1
        for index, layer in enumerate(self.weights.layers):
            query = self._query(index, layer, x, rotation, step)
            if index == last and not step.decode_only:
                # Nothing but the cache follows from the other tokens: their share of this layer's MLP is not computed.
                rows = step.last_tokens
                x, attended = _padded(x[rows]), step.attend_last(index, query[rows])
            else:
                attended = step.attend(index, query)
            x = _add_product(x, _padded(attended.flatten(1)), layer.out, self.groups.attn_tp)
            x = self._mlp(layer, x)
        logits = self.weights.lm_head.product(_unit_rows(x, self.hidden_floor))
        return self.groups.attn_tp.all_gather_last(logits)[: step.num_seqs, : self.vocab].float()

    def _query(
        self, index: int, layer: LayerWeights, x: torch.Tensor, rotation: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """Project, normalise and rotate; store K and V; return the queries [tokens, heads, head_dim]."""
        tokens = rotation.shape[0]
        qkv = layer.qkv.product(_unit_rows(x, self.hidden_floor))[:tokens]
        heads = qkv.view(tokens, -1, self.head_dim)
        rotated = heads[:, : self.heads + self.kv_heads]
        if layer.qk_norm is not None:
            rotated.copy_(_unit_rows(rotated.float(), self.head_floor) * layer.qk_norm)
        _rotate_(rotated, rotation)
        step.writer.write(index, heads[:, self.heads :].reshape(tokens, 2, -1))
        return heads[:, : self.heads]

    def _mlp(self, layer: LayerWeights, x: torch.Tensor) -> torch.Tensor:
        gate, up = layer.gate_up.product(_unit_rows(x, self.hidden_floor)).chunk(2, dim=-1)
        return _add_product(x, F.silu(gate).mul_(up), layer.down, self.groups.tp)


def _add_product(residual: torch.Tensor, rows: torch.Tensor, linear: Linear, group: Group) -> torch.Tensor:
    """residual + product, where each rank of `group` holds some of the columns that are summed over."""
    if group.size == 1:
        return linear.add_product(residual, rows)
    return group.all_reduce(linear.product(rows)).add_(residual)


def _padded(rows: torch.Tensor) -> torch.Tensor:
    """At least FEWEST_ROWS rows; those that are added mean nothing and are cut off at the end."""
    missing = FEWEST_ROWS - rows.shape[0]
    return torch.constant_pad_nd(rows, (0, 0, 0, missing)) if missing > 0 else rows


def _unit_rows(x: torch.Tensor, floor: torch.Tensor) -> torch.Tensor:
    """x / hypot(|x|, floor) per row: an RMS norm whose scale lives in the next matrix. Float32 inside."""
    wide = x.float()
    return wide.div(torch.linalg.vector_norm(wide, dim=-1, keepdim=True).hypot_(floor)).to(x.dtype)


def _rotate_(heads: torch.Tensor, rotation: torch.Tensor) -> None:
    """Rotate each adjacent pair in place (rope.py)."""
    pairs = heads.float().view(*heads.shape[:-1], -1, 2)
    torch.view_as_complex(pairs).mul_(rotation)
    if heads.dtype != torch.float32:
        heads.copy_(pairs.flatten(-2))
