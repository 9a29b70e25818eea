"""The MLP part of a layer: one gated MLP, or a mixture of experts from which each token selects some.

A rank has some experts whole, or a part of each, or both. Every rank of the TP group sees every token and computes what
its experts contribute; the sum over the group is the layer's result. With few tokens per step, that moves less data
than sending each token to its experts would.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from pdctl.engine.model.linear import make_linear, padded, sigmoid
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.engine.config.layer_kinds import Clamped, Mixture
    from pdctl.engine.model.linear import Linear
    from pdctl.engine.model.weights import Shard

LEAST_SUM = 1e-20  # keeps the weights finite if every sigmoid of a token is 0


class GatedMlp:
    """This rank's columns of silu(gate) * up, and what they contribute to the sum."""

    def __init__(self, gate_up: Linear, down: Linear) -> None:
        """`gate_up` [2 * width, hidden] holds both matrices and the norm before them; `down` is [hidden, width]."""
        self._gate_up = gate_up
        self._down = down

    @classmethod
    def load(cls, shard: Shard, prefix: str, norm: str, intermediate: int, rank: int, size: int) -> GatedMlp:
        """Load part `rank` of `size` equal parts of the MLP `prefix`, with the norm named `norm` before it."""
        width = intermediate // size
        halves = [shard.rows(f"{prefix}{name}_proj.weight", rank * width, width) for name in ("gate", "up")]
        down = shard.columns(f"{prefix}down_proj.weight", rank * width, width)
        return cls(shard.folded(torch.cat(halves), norm), down)

    def add_to(self, x: torch.Tensor, unit: torch.Tensor, count: int) -> torch.Tensor:
        """Return x + MLP, [rows, hidden], when no other rank has a part. `unit` is x in unit rows (linear.py)."""
        return self._down.add_product(x, self._hidden(unit))

    def partial(self, unit: torch.Tensor, count: int) -> torch.Tensor:
        """Return this rank's part of the sum over ranks, [rows, hidden]. Rows from `count` on mean nothing."""
        return self._down.product(self._hidden(unit))

    def _hidden(self, unit: torch.Tensor) -> torch.Tensor:
        gate, up = self._gate_up.product(unit).chunk(2, dim=-1)
        return F.silu(gate).mul_(up)


class SharedExpert:
    """The expert every token passes through, split over the whole TP group; it may be weighted by a gate of its own."""

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
        self, router: ExpertRouter, first: int, own: Sequence[GatedMlp | ClampedMlp], shared: SharedExpert | None
    ) -> None:
        """`own` are the experts from index `first` on."""
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
            ExpertRouter.load(shard, mixture, prefix, norm),
            first,
            [expert(number) for number in range(first, first + count)],
            SharedExpert.load(shard, mixture, prefix, norm) if mixture.shared_intermediate else None,
        )

    def add_to(self, x: torch.Tensor, unit: torch.Tensor, count: int) -> torch.Tensor:
        """Return x + this layer's result, [rows, hidden], when no other rank has a part."""
        return self.partial(unit, count).add_(x)

    def partial(self, unit: torch.Tensor, count: int) -> torch.Tensor:
        """Return what this rank's experts contribute to the first `count` unit rows (linear.py), [rows, hidden]."""
        experts, weights = self._router.choose(unit, count)
        flat = experts.flatten()
        order = flat.argsort(stable=True)  # group the work of each expert, with tokens in order
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


class Choice(NamedTuple):
    """Both [tokens, active]; weights in float32."""

    experts: torch.Tensor
    weights: torch.Tensor


class ExpertRouter:
    """Scores of all experts, in float32 and alike on every rank, so that the ranks agree on who computes what."""

    def __init__(self, mixture: Mixture, gate: Linear, bias: torch.Tensor | None = None) -> None:
        """`gate` is a float32 [experts, hidden] with the norm before it; `bias` [experts] affects only the choice."""
        self._mixture = mixture
        self._gate = gate
        self._bias = bias

    @classmethod
    def load(cls, shard: Shard, mixture: Mixture, prefix: str, norm: str) -> ExpertRouter:
        name = prefix + ("router" if mixture.router_bias else "gate")
        added = shard.checkpoint.tensor(f"{name}.bias") if mixture.router_bias else None
        gate = shard.folded(shard.checkpoint.tensor(f"{name}.weight"), norm, added, dtype=torch.float32)
        if not mixture.choice_bias:
            return cls(mixture, gate)
        bias = shard.checkpoint.tensor(f"{prefix}gate.e_score_correction_bias")
        return cls(mixture, gate, bias.to(device=shard.device, dtype=torch.float32))

    def choose(self, unit: torch.Tensor, count: int) -> Choice:
        """Choose experts for the first `count` of the unit rows (linear.py) [rows, hidden]."""
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
        """Return the same scores, with those outside a token's best groups set to -inf."""
        mixture = self._mixture
        grouped = wanted.view(len(wanted), mixture.groups, -1)
        quality = grouped.topk(mixture.group_members, dim=-1).values.sum(dim=-1)
        best = quality.topk(mixture.active_groups, dim=-1).indices
        closed = torch.ones_like(quality, dtype=torch.bool).scatter_(1, best, value=False)
        return grouped.masked_fill(closed.unsqueeze(-1), float("-inf")).flatten(1)


class ClampedMlp:
    """This rank's columns of one expert: (up + 1) * gate * sigmoid(alpha * gate), with gate and up clamped."""

    def __init__(self, gate_up: Linear, down: Linear, clamped: Clamped) -> None:
        """`gate_up` [2 * width, hidden] holds both matrices and the norm before them; `down` is [hidden, width]."""
        self._gate_up = gate_up
        self._down = down
        self._alpha, self._limit = clamped

    @classmethod
    def load(cls, shard: Shard, prefix: str, norm: str, number: int, columns: range, clamped: Clamped) -> ClampedMlp:
        """Load `columns` of expert `number` under `prefix`; with the first columns, also the bias of `down`."""
        name = prefix + "gate_up_proj"
        # [hidden, 2 * intermediate] and its bias, with gate and up interleaved.
        pairs = shard.rows(name, number, 1)[0][:, 2 * columns.start : 2 * columns.stop].t()
        bias = shard.rows(name + "_bias", number, 1)[0][2 * columns.start : 2 * columns.stop]
        gate_up = shard.folded(torch.cat((pairs[::2], pairs[1::2])), norm, torch.cat((bias[::2], bias[1::2])))
        down = shard.rows(prefix + "down_proj", number, 1)[0][columns.start : columns.stop].t()
        out = None if columns.start else shard.rows(prefix + "down_proj_bias", number, 1)[0]
        return cls(gate_up, make_linear(down, shard.dtype, shard.device, out), clamped)

    def partial(self, unit: torch.Tensor, count: int) -> torch.Tensor:
        """Return this rank's part of the sum over ranks, [rows, hidden]; `unit` is in unit rows (linear.py)."""
        gate, up = self._gate_up.product(unit).chunk(2, dim=-1)
        gate.clamp_(max=self._limit)
        up.clamp_(-self._limit, self._limit).add_(1).mul_(gate)
        # In place, row by row: the same bits however many rows there are (linear.py, sigmoid).
        return self._down.product(up.mul_(gate.mul_(self._alpha).sigmoid_()))
