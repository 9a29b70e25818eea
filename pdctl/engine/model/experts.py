"""A mixture of experts on one rank: some experts whole, or a part of each, or both.

Every rank of the TP group sees every token, computes what its experts contribute, and the sum over the group is the
layer's result: with few tokens a step, that moves less than sending each token to its experts would.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pdctl.engine.model.gpt_oss import ClampedMlp
from pdctl.engine.model.mlp import GatedMlp
from pdctl.engine.model.routing import Router
from pdctl.engine.model.rows import padded, sigmoid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.engine.config.mixture import Mixture
    from pdctl.engine.model.shards import Shard


class SharedExpert:
    """The expert every token passes through, cut over the whole TP group; perhaps weighed by a gate of its own."""

    def __init__(self, mlp: GatedMlp, gate: torch.Tensor | None) -> None:
        """`gate` is [1, hidden] in float32, with the norm before it."""
        self._mlp = mlp
        self._gate = gate

    @classmethod
    def load(cls, shard: Shard, mixture: Mixture, prefix: str, norm: str) -> SharedExpert:
        tp = shard.groups.tp
        name = "shared_expert." if mixture.shared_gate else "shared_experts."
        mlp = GatedMlp.load(shard, prefix + name, norm, mixture.shared_intermediate, tp.rank, tp.size)
        if not mixture.shared_gate:
            return cls(mlp, None)
        gate = shard.scaled(shard.checkpoint.tensor(f"{prefix}shared_expert_gate.weight"), norm)
        return cls(mlp, gate.to(shard.device))

    def partial(self, unit: torch.Tensor, count: int) -> torch.Tensor:
        part = self._mlp.partial(unit, count)
        if self._gate is None:
            return part
        return part * sigmoid((unit.float() * self._gate).sum(dim=-1, keepdim=True)).to(part.dtype)


class Experts:
    """One sparse layer: the router, this rank's experts, and its part of the shared one."""

    def __init__(
        self, router: Router, first: int, own: Sequence[GatedMlp | ClampedMlp], shared: SharedExpert | None
    ) -> None:
        """`own` are the experts from number `first` on."""
        self._router = router
        self._first = first
        self._own = tuple(own)
        self._shared = shared

    @classmethod
    def load(cls, shard: Shard, mixture: Mixture, prefix: str, norm: str) -> Experts:
        """`prefix` names the layer's MLP in the checkpoint, `norm` the norm before it."""
        shape, rank = shard.groups.shape, shard.groups.rank
        count = mixture.experts // shape.ep_size
        first = rank.moe_ep_rank * count

        def expert(number: int) -> GatedMlp | ClampedMlp:
            if mixture.clamped:
                width = mixture.intermediate // shape.moe_tp_size
                columns = range(rank.moe_tp_rank * width, (rank.moe_tp_rank + 1) * width)
                return ClampedMlp.load(shard, f"{prefix}experts.", norm, number, columns, mixture.clamped)
            name = f"{prefix}experts.{number}."
            return GatedMlp.load(shard, name, norm, mixture.intermediate, rank.moe_tp_rank, shape.moe_tp_size)

        return cls(
            Router.load(shard, mixture, prefix, norm),
            first,
            [expert(number) for number in range(first, first + count)],
            SharedExpert.load(shard, mixture, prefix, norm) if mixture.shared_intermediate else None,
        )

    def add_to(self, x: torch.Tensor, unit: torch.Tensor, count: int) -> torch.Tensor:
        """x + this layer's result: [rows, hidden], where no other rank has a part."""
        return self.partial(unit, count).add_(x)

    def partial(self, unit: torch.Tensor, count: int) -> torch.Tensor:
        """What this rank's experts contribute to the first `count` of the unit rows (rows.py), [rows, hidden]."""
        experts, weights = self._router.choose(unit, count)
        flat = experts.flatten()
        order = flat.argsort(stable=True)  # all the work of one expert side by side, tokens in order
        tokens = order // experts.shape[1]
        weights = weights.flatten()[order].unsqueeze(1).to(unit.dtype)
        last = self._first + len(self._own)
        ends = torch.searchsorted(flat[order], torch.arange(self._first, last + 1, device=flat.device)).tolist()
        result = torch.zeros_like(unit) if self._shared is None else self._shared.partial(unit, count)
        for expert, start, stop in zip(self._own, ends, ends[1:], strict=False):
            if start < stop:
                chosen = tokens[start:stop]
                part = expert.partial(padded(unit[chosen]), stop - start)[: stop - start]
                result.index_add_(0, chosen, part.mul_(weights[start:stop]))
        return result
