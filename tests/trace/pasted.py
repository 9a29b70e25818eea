"""Logs a test writes down itself."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from pdctl.logs.library import Library
from pdctl.logs.source import open_logs
from pdctl.trace.tracer import Tracer

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pdctl.trace.room import Room


def library(folder: Path, **files: Iterable[str] | bytes) -> Library:
    """One log of each name."""
    paths = []
    folder.mkdir(exist_ok=True)
    for name, lines in files.items():
        path = folder / f"{name}.log"
        path.write_bytes(lines if isinstance(lines, bytes) else "".join(f"{line}\n" for line in lines).encode())
        paths.append(str(path))
    return Library(open_logs(paths), tz=dt.timezone.utc, index=False)


def room(folder: Path, number: int, **files: Iterable[str] | bytes) -> Room:
    return Tracer(library(folder, **files)).trace(number)
