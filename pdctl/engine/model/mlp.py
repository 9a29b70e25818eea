"""The gated MLP: of a dense layer, of one expert, and of the expert every token passes through."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from pdctl.engine.model.linear import Linear
    from pdctl.engine.model.shards import Shard


class GatedMlp:
    """This rank's columns of silu(gate) * up, and what they contribute to the sum."""

    def __init__(self, gate_up: Linear, down: Linear) -> None:
        """`gate_up` [2 * width, hidden] holds both matrices and the norm before them; `down` is [hidden, width]."""
        self._gate_up = gate_up
        self._down = down

    @classmethod
    def load(cls, shard: Shard, prefix: str, norm: str, intermediate: int, rank: int, size: int) -> GatedMlp:
        """Part `rank` of `size` equal parts of the MLP `prefix`, with the norm named `norm` before it."""
        width = intermediate // size
        halves = [shard.rows(f"{prefix}{name}_proj.weight", rank * width, width) for name in ("gate", "up")]
        down = shard.columns(f"{prefix}down_proj.weight", rank * width, width)
        return cls(shard.folded(torch.cat(halves), norm), down)

    def add_to(self, x: torch.Tensor, unit: torch.Tensor, count: int) -> torch.Tensor:
        """x + MLP: [rows, hidden], where no other rank has a part. `unit` is x in unit rows (rows.py)."""
        return self._down.add_product(x, self._hidden(unit))

    def partial(self, unit: torch.Tensor, count: int) -> torch.Tensor:
        """This rank's part of the sum over ranks, [rows, hidden]. Rows from `count` on mean nothing."""
        return self._down.product(self._hidden(unit))

    def _hidden(self, unit: torch.Tensor) -> torch.Tensor:
        gate, up = self._gate_up.product(unit).chunk(2, dim=-1)
        return F.silu(gate).mul_(up)
