"""A checkpoint's tensors rearranged for one rank: norm scales multiplied into the matrices after them, ready to use."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pdctl.engine.model.linear import make_linear
from pdctl.engine.model.rows import norm_floor

if TYPE_CHECKING:
    import torch

    from pdctl.engine.config.checkpoint_config import ModelConfig
    from pdctl.engine.model.linear import Linear
    from pdctl.engine.model.parallel import Groups
    from pdctl.engine.model.weights import Checkpoint


class Shard:
    """Cuts and rearranges the tensors of one rank."""

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
