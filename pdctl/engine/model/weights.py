"""Reads tensors, whole or one rank's slice of them, from the safetensors files of a checkpoint."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from pdctl.engine.config import weight_files
from pdctl.engine.config.checkpoint_config import CheckpointError
from pdctl.engine.config.weight_files import SINGLE

if TYPE_CHECKING:
    from types import TracebackType

    import torch


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
        """Rows (dim 0) or columns (dim 1) [start, stop) of a tensor."""
        view = self._file(name).get_slice(name)
        length = view.get_shape()[dim]
        if stop > length:
            raise CheckpointError(f"{self.path}: {name} has {length} along dim {dim}, config.json implies {stop}")
        tensor: torch.Tensor = view[start:stop] if dim == 0 else view[:, start:stop]
        return tensor

    def _index(self) -> dict[str, str]:
        """Tensor name → file name."""
        names = weight_files.index(self.path)
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
