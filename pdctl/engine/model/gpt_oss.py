"""What only gpt-oss has: experts with biases, one tensor for all of them, and a SwiGLU that is clamped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pdctl.engine.model.linear import make_linear

if TYPE_CHECKING:
    from pdctl.engine.config.mixture import Clamped
    from pdctl.engine.model.linear import Linear
    from pdctl.engine.model.shards import Shard


class ClampedMlp:
    """This rank's columns of one expert: (up + 1) * gate * sigmoid(alpha * gate), with gate and up kept in bounds."""

    def __init__(self, gate_up: Linear, down: Linear, clamped: Clamped) -> None:
        """`gate_up` [2 * width, hidden] holds both matrices and the norm before them; `down` is [hidden, width]."""
        self._gate_up = gate_up
        self._down = down
        self._alpha, self._limit = clamped

    @classmethod
    def load(cls, shard: Shard, prefix: str, norm: str, number: int, columns: range, clamped: Clamped) -> ClampedMlp:
        """`columns` of expert `number` of the experts `prefix`; the first columns bring the bias of `down` along."""
        name = prefix + "gate_up_proj"
        # [hidden, 2 * intermediate] and its bias: gate and up in turns.
        pairs = shard.rows(name, number, 1)[0][:, 2 * columns.start : 2 * columns.stop].t()
        bias = shard.rows(name + "_bias", number, 1)[0][2 * columns.start : 2 * columns.stop]
        gate_up = shard.folded(torch.cat((pairs[::2], pairs[1::2])), norm, torch.cat((bias[::2], bias[1::2])))
        down = shard.rows(prefix + "down_proj", number, 1)[0][columns.start : columns.stop].t()
        out = None if columns.start else shard.rows(prefix + "down_proj_bias", number, 1)[0]
        return cls(gate_up, make_linear(down, shard.dtype, shard.device, out), clamped)

    def partial(self, unit: torch.Tensor, count: int) -> torch.Tensor:
        """This rank's part of the sum over ranks, [rows, hidden]; `unit` is in unit rows (rows.py)."""
        gate, up = self._gate_up.product(unit).chunk(2, dim=-1)
        gate.clamp_(max=self._limit)
        up.clamp_(-self._limit, self._limit).add_(1).mul_(gate)
        # In place, row by row: the same bits however many rows there are (rows.py, sigmoid).
        return self._down.product(up.mul_(gate.mul_(self._alpha).sigmoid_()))
