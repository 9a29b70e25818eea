"""Which experts a token goes to, and how much each of them counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from pdctl.engine.model.rows import sigmoid

if TYPE_CHECKING:
    from pdctl.engine.config.mixture import Mixture
    from pdctl.engine.model.linear import Linear
    from pdctl.engine.model.shards import Shard

LEAST_SUM = 1e-20  # keeps the weights finite where every sigmoid of a token is 0


class Choice(NamedTuple):
    """Both [tokens, active]; weights in float32."""

    experts: torch.Tensor
    weights: torch.Tensor


class Router:
    """Scores of all experts, on every rank alike, in float32: a rank must know what the others leave to it."""

    def __init__(self, mixture: Mixture, gate: Linear, bias: torch.Tensor | None = None) -> None:
        """`gate` is a float32 [experts, hidden] with the norm before it; `bias` [experts] only chooses."""
        self._mixture = mixture
        self._gate = gate
        self._bias = bias

    @classmethod
    def load(cls, shard: Shard, mixture: Mixture, prefix: str, norm: str) -> Router:
        name = prefix + ("router" if mixture.router_bias else "gate")
        added = shard.checkpoint.tensor(f"{name}.bias") if mixture.router_bias else None
        gate = shard.folded(shard.checkpoint.tensor(f"{name}.weight"), norm, added, dtype=torch.float32)
        if not mixture.choice_bias:
            return cls(mixture, gate)
        bias = shard.checkpoint.tensor(f"{prefix}gate.e_score_correction_bias")
        return cls(mixture, gate, bias.to(device=shard.device, dtype=torch.float32))

    def choose(self, unit: torch.Tensor, count: int) -> Choice:
        """For the first `count` of the unit rows (rows.py) [rows, hidden]."""
        mixture = self._mixture
        scores = self._gate.product(unit.float())[:count]
        scores = sigmoid(scores) if mixture.sigmoid else scores.softmax(dim=-1)
        wanted = scores if self._bias is None else scores + self._bias
        if mixture.active_groups < mixture.groups:
            wanted = self._within_groups(wanted)
        experts = wanted.topk(mixture.active, dim=-1).indices
        weights = scores.gather(1, experts)
        if mixture.normalise:
            weights = weights / (weights.sum(dim=-1, keepdim=True) + LEAST_SUM)
        return Choice(experts, weights * mixture.scale)

    def _within_groups(self, wanted: torch.Tensor) -> torch.Tensor:
        """The same scores, with those outside a token's best groups out of reach."""
        mixture = self._mixture
        grouped = wanted.view(len(wanted), mixture.groups, -1)
        quality = grouped.topk(mixture.group_members, dim=-1).values.sum(dim=-1)
        best = quality.topk(mixture.active_groups, dim=-1).indices
        closed = torch.ones_like(quality, dtype=torch.bool).scatter_(1, best, value=False)
        return grouped.masked_fill(closed.unsqueeze(-1), float("-inf")).flatten(1)
