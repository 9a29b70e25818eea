"""What the terminal can do: width, colour, symbols; where answers go: stdout, or a file that is whole or not there."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
from typing import IO, TYPE_CHECKING

from pdctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


STYLES = {
    "bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35", "cyan": "36",
}  # fmt: skip


class Term:
    """One output stream. Colour is decided per stream: NO_COLOR beats FORCE_COLOR beats being a terminal."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream
        self.tty = stream.isatty()
        if os.environ.get("NO_COLOR"):
            self.color = False
        elif os.environ.get("FORCE_COLOR") or os.environ.get("CLICOLOR_FORCE"):
            self.color = True
        else:
            self.color = self.tty and os.environ.get("TERM") != "dumb"
        encoding = (getattr(stream, "encoding", "") or "").lower()
        self.unicode = "utf" in encoding

    @property
    def width(self) -> int:
        return shutil.get_terminal_size((100, 24)).columns

    def style(self, text: str, *names: str) -> str:
        """`text` in the named styles (STYLES), or unchanged where colour is off."""
        if not self.color or not names:
            return text
        return f"\x1b[{';'.join(STYLES[name] for name in names)}m{text}\x1b[0m"

    def write(self, text: str = "") -> None:
        self.stream.write(text + "\n")

    def symbol(self, fancy: str, plain: str) -> str:
        return fancy if self.unicode else plain


def out() -> Term:
    """Answers."""
    return Term(sys.stdout)


def document() -> Term:
    """A YAML document: UTF-8 whatever the locale says, for another encoding would write other values."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    return Term(sys.stdout)


def err() -> Term:
    """Progress and problems."""
    return Term(sys.stderr)


@contextlib.contextmanager
def to_file(path: Path | None) -> Iterator[Term]:
    """A terminal or pipe for None; else a stream of UTF-8 that takes the file's place when all is written."""
    if path is None:
        yield out()
        return
    from pdctl import user_files  # late: most answers go to a terminal or a pipe

    try:
        with user_files.replacing(path) as file, io.TextIOWrapper(file, encoding="utf-8") as stream:
            yield Term(stream)
    except OSError as error:
        raise UsageError(
            f"--output-file {path}: {error.strerror}", "name a file in a directory that can be written"
        ) from None
