"""One rank's tensor-parallel group: sums, gathers and agreement over torch.distributed; nothing at all for one rank."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Sequence

JOIN_TIMEOUT = 120.0  # seconds until every rank must have called
STEP_TIMEOUT = 300.0  # seconds one collective may take before the group is given up


class TensorParallel:
    """Every rank calls the same methods in the same order. With `size` 1 each method returns its argument."""

    def __init__(
        self,
        rank: int,
        size: int,
        device: torch.device | str = "cpu",
        init_method: str = "",
        join_timeout: float = JOIN_TIMEOUT,
    ) -> None:
        self.rank = rank
        self.size = size
        self.device = torch.device(device)
        self._tensors: dist.ProcessGroup | None = None
        self._control: dist.ProcessGroup | None = None
        if size == 1:
            return
        on_gpu = self.device.type == "cuda"
        try:
            dist.init_process_group(
                "nccl" if on_gpu else "gloo",
                init_method=init_method,
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=join_timeout),
            )
        except (dist.DistError, RuntimeError) as error:
            raise TimeoutError(
                f"rank {rank} of {size} waited {join_timeout:g} s for the others at {init_method}: {error}"
            ) from error
        # Small ints go over gloo on every device: a poll must not synchronise the GPU.
        self._control = dist.new_group(backend="gloo", timeout=timedelta(seconds=STEP_TIMEOUT))
        self._tensors = dist.group.WORLD if on_gpu else self._control

    @classmethod
    def single(cls, device: torch.device | str = "cpu") -> TensorParallel:
        return cls(0, 1, device)

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over the ranks, in place; the same bits on every rank."""
        if self.size > 1:
            dist.all_reduce(tensor, group=self._tensors)
        return tensor

    def all_gather_last(self, tensor: torch.Tensor) -> torch.Tensor:
        """[…, n] of every rank, side by side in rank order: […, n * size]."""
        if self.size == 1:
            return tensor
        parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(self.size)]
        dist.all_gather(parts, tensor.contiguous(), group=self._tensors)
        return torch.cat(parts, dim=-1)

    def min_ints(self, values: Sequence[int]) -> list[int]:
        """Element-wise minimum over the ranks: how all of them agree on the slowest one's state."""
        if self.size == 1 or not values:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MIN, group=self._control)
        return [int(value) for value in tensor.tolist()]

    def barrier(self) -> None:
        """Return when every rank is here."""
        if self.size > 1:
            dist.barrier(group=self._control)

    def close(self) -> None:
        """Leave the group. Safe to call twice; other ranks' pending calls fail."""
        if self._control is not None:
            self._control = self._tensors = None
            dist.destroy_process_group()
