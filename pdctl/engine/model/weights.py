"""A checkpoint's tensors as one rank uses them: read whole or in slices, rearranged, and identified."""

from __future__ import annotations

import hashlib
import math
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open

from pdctl.engine.config.checkpoint_config import SINGLE, CheckpointError, weight_index
from pdctl.engine.model.linear import make_linear, norm_floor

if TYPE_CHECKING:
    from types import TracebackType

    from pdctl.engine.config.checkpoint_config import ModelConfig
    from pdctl.engine.model.linear import Linear
    from pdctl.engine.model.parallel import Groups

# Fields that may differ between two servers of one model: limits, and how the checkpoint is stored.
APART = ("max_position", "eos_token_ids", "bos_token_id", "dtype")
PROJECTIONS = ("k_proj", "kv_a_proj_with_mqa")
ROWS = 2


class Checkpoint:
    """Open safetensors files, memory-mapped: only the slices asked for are read. Use as a context manager."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._files: dict[str, Any] = {}
        self._where = self._index()
        self._open = ExitStack()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.clear()
        self._open.close()

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def tensor(self, name: str) -> torch.Tensor:
        """The whole tensor in the checkpoint's dtype."""
        tensor: torch.Tensor = self._file(name).get_tensor(name)
        return tensor

    def part(self, name: str, dim: int, start: int, stop: int) -> torch.Tensor:
        """Return rows (dim 0) or columns (dim 1) [start, stop) of a tensor."""
        view = self._file(name).get_slice(name)
        length = view.get_shape()[dim]
        if stop > length:
            raise CheckpointError(f"{self.path}: {name} has {length} along dim {dim}, config.json implies {stop}")
        tensor: torch.Tensor = view[start:stop] if dim == 0 else view[:, start:stop]
        return tensor

    def _index(self) -> dict[str, str]:
        """Return tensor name → file name."""
        names = weight_index(self.path)
        if names:
            return names
        file = self.path / SINGLE
        try:
            with safe_open(file, framework="pt") as opened:
                return dict.fromkeys(opened.keys(), SINGLE)
        except SafetensorError as error:
            raise CheckpointError(f"{file}: not a readable safetensors file: {error}") from None

    def _file(self, name: str) -> Any:  # noqa: ANN401 (safetensors ships no types)
        if name not in self._where:
            raise CheckpointError(f"{self.path}: the weights hold no {name}")
        file = self._where[name]
        if file not in self._files:
            try:
                self._files[file] = self._open.enter_context(safe_open(self.path / file, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{self.path / file}: not a readable safetensors file: {error}") from None
        return self._files[file]


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
        """Return `matrix` with the preceding norm multiplied in: in float32, then rounded once."""
        return make_linear(self.scaled(matrix, norm), dtype or self.dtype, self.device, bias)

    def scaled(self, matrix: torch.Tensor, norm: str) -> torch.Tensor:
        """Return `matrix` in float32, times the norm's scale and sqrt(width): the norm divides by |x|, not its mean."""
        scale = self.checkpoint.tensor(norm).float()
        return matrix.float() * (scale * math.sqrt(len(scale)))


def model_identity(config: ModelConfig, path: str | Path) -> str:
    """Return `<architecture>-<12 digits>`: a digest of the config and of some rows of the outer layers' key weights.

    The rows are of the key projections of the first and the last layer: there a fine-tuned model differs from its base,
    while its config is the same. Reads some KiB of the checkpoint.
    """
    shape = {name: value for name, value in asdict(config).items() if name not in APART}
    digest = hashlib.sha256(repr(sorted(shape.items())).encode())
    with Checkpoint(path) as weights:
        for layer in {0, config.layers - 1}:
            for projection in PROJECTIONS:
                name = f"model.layers.{layer}.self_attn.{projection}.weight"
                if name in weights:
                    digest.update(_rows(weights, name))
    return f"{config.architecture}-{digest.hexdigest()[:12]}"


def _rows(weights: Checkpoint, name: str) -> bytes:
    rows: bytes = weights.part(name, 0, 0, ROWS).to(torch.float32).contiguous().numpy().tobytes()
    return rows
