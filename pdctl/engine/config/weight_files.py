"""A checkpoint's safetensors files: which file has each tensor, and whether the files are whole. No torch, no numpy.

A file consists of the header's length (8 bytes, little-endian), the header (JSON: name → dtype, shape, start and end of
the data) and the tensors. Truncated downloads, and pointers in place of files, are found before a rank is started.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pdctl.engine.config.checkpoint_config import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
LENGTH = 8  # bytes
LONGEST_HEADER = 100_000_000  # bytes, the format's own limit


def index(directory: Path) -> dict[str, str]:
    """Return tensor name → file name; empty if all are in `SINGLE`. Raise CheckpointError naming what is missing."""
    path = directory / INDEX
    if not path.is_file():
        if not (directory / SINGLE).is_file():
            message = f"{directory}: neither {SINGLE} nor {INDEX} is there"
            raise CheckpointError(message, "convert the weights to safetensors")
        return {}
    try:
        names = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        if names:
            return {str(name): str(file) for name, file in names.items()}
        raise ValueError("it names no tensor")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{path}: no index of safetensors files ({reason})", "download it again") from None


def check(directory: Path) -> None:
    """Check the header of every file. Raise CheckpointError naming the first file that is missing or not whole."""
    for name in sorted(set(index(directory).values())) or [SINGLE]:
        problem = _problem(directory / name)
        if problem:
            raise CheckpointError(
                f"{directory / name}: not a readable safetensors file: {problem}", "download it again"
            )


def _problem(path: Path) -> str:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(LENGTH), "little")
            if not 0 < length <= min(LONGEST_HEADER, size - LENGTH):
                return f"{size} bytes that do not begin with a header"
            whole = LENGTH + length + _tensors(json.loads(file.read(length)))
    except OSError as error:
        return str(error.strerror)
    except (ValueError, AttributeError, KeyError, TypeError, IndexError):
        return "its header does not say where the tensors lie"
    return "" if whole == size else f"{size} bytes, its header tells of {whole}"


def _tensors(header: dict[str, Any]) -> int:
    """Return the size of all tensors in bytes, according to the header."""
    return max((int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"), default=0)
