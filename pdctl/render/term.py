"""What the terminal can do: width, colour, symbols; where answers go: stdout, or a file that is written atomically.

Text from outside (logs, servers' answers) must pass `visible` or `as_json`, so that nothing in it can control the
terminal, or hide or reorder text.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import unicodedata
from typing import IO, TYPE_CHECKING

from pdctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


STYLES = {
    "bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35", "cyan": "36",
}  # fmt: skip


class Term:
    """One output stream. Colour is decided per stream: NO_COLOR, then FORCE_COLOR, then whether it is a terminal."""

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
        """`text` in the named styles (STYLES), or unchanged if colour is off."""
        if not self.color or not names:
            return text
        return f"\x1b[{';'.join(STYLES[name] for name in names)}m{text}\x1b[0m"

    def write(self, text: str = "") -> None:
        with _named(self.stream):
            self.stream.write(text + "\n")

    def flush(self) -> None:
        with _named(self.stream):
            self.stream.flush()

    def symbol(self, fancy: str, plain: str) -> str:
        return fancy if self.unicode else plain


@contextlib.contextmanager
def _named(stream: IO[str]) -> Iterator[None]:
    """Let an error of a standard stream name it."""
    try:
        yield
    except OSError as error:
        if error.filename is None and stream in (sys.stdout, sys.stderr):
            error.filename = "standard output" if stream is sys.stdout else "standard error"
        raise


def silence(stream: IO[str]) -> None:
    """Redirect a broken stream to /dev/null, so that the interpreter's exit does not try to write again."""
    with contextlib.suppress(OSError, ValueError):  # standard output may be closed, or not a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def out() -> Term:
    """The terminal for answers: stdout."""
    return Term(sys.stdout)


def document() -> Term:
    """The terminal for a YAML document: stdout as UTF-8 in any locale, as another encoding would change values."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    return Term(sys.stdout)


def err() -> Term:
    """The terminal for progress and problems: stderr."""
    return Term(sys.stderr)


@contextlib.contextmanager
def to_file(path: Path | None) -> Iterator[Term]:
    """Yield stdout for None, else a UTF-8 stream that replaces the file when complete. UsageError if it cannot."""
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


def visible(text: str, term: Term | None = None) -> str:
    """Escape control, bidirectional and other unprintable characters and, with `term`, what it cannot encode."""
    if not text.isprintable():
        text = "".join(letter if letter.isprintable() else escape(letter) for letter in text.replace("\t", "    "))
    if term is not None and not term.unicode:
        return text.encode("ascii", "backslashreplace").decode("ascii")
    return text


def as_json(value: object, indent: int | None = 2) -> str:
    """A JSON document: text is kept, but control and bidirectional characters and lone surrogates are escaped."""
    import json  # late: a plan's table needs none

    text = json.dumps(value, indent=indent, ensure_ascii=False)
    if text.replace("\n", "").isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter == "\n" else json.dumps(letter)[1:-1] for letter in text)


def escape(letter: str) -> str:
    r"""The escape of a character, as in Python: `\x1b`, `\u202e`; for a non-UTF-8 byte of a file name: `\xff`."""
    code = ord(letter)
    if 0xDC80 <= code <= 0xDCFF:  # PEP 383
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def cells(text: str) -> int:
    """Terminal columns of `text`: East Asian wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def elided(text: str, width: int) -> str:
    """`text` with its middle replaced by dots: the ends distinguish names, paths and addresses."""
    if len(text) <= width:
        return text
    kept = width - 3
    return f"{text[: kept - kept // 2]}...{text[len(text) - kept // 2 :]}"


def fitted(text: str, width: int) -> str:
    """`text` in at most `width` columns, its middle elided; unlike `elided` this counts columns, not characters."""
    if cells(text) <= width:
        return text
    kept = max(width, 4)
    while cells(cut := elided(text, kept)) > width and kept > 4:
        kept -= 1
    return cut


def wrapped(text: str, width: int) -> list[str]:
    """`text` wrapped between words; a word wider than `width` is elided in the middle."""
    lines: list[str] = []
    for word in text.split():
        if lines and cells(lines[-1]) + 1 + cells(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(fitted(word, width))
    return lines


def padded(text: str, width: int) -> str:
    return text + " " * (width - cells(text))
