"""Where an answer goes: stdout, or a file that is whole or not there."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from pdctl.errors import UsageError
from pdctl.render.term import Term, out

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def to_file(path: Path | None) -> Iterator[Term]:
    """A terminal or pipe for None; else a stream of UTF-8 that takes the file's place when all is written."""
    if path is None:
        yield out()
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8") as stream:
            yield Term(stream)
        draft.replace(path)
    except OSError as error:
        raise UsageError(
            f"--output-file {path}: {error.strerror}", "name a file in a directory that can be written"
        ) from None
    finally:
        draft.unlink(missing_ok=True)
