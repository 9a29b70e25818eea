"""What the terminal can do (width, colour, symbols), where answers go (stdout, or a file that is written atomically),
and plain aligned columns: on a narrow terminal cells are folded or rows become lists, and nothing is cut.

Text from outside (logs, servers' answers) must pass `visible` or `as_json`, so that nothing in it can control the
terminal, or hide or reorder text. `Term.write` and `readable` let nothing but our own colours and links reach one.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import time
import unicodedata
from itertools import zip_longest
from typing import IO, TYPE_CHECKING

from pdctl.quick_definitions import compile_late

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


STYLES = {
    "bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35", "cyan": "36",
}  # fmt: skip

OWN_SEQUENCES = compile_late(r"(\x1b\[[0-9;]*m|\x1b\]8;;(?:file:[!-~]*)?\x1b\\)")  # colours, and links to lines of logs
KEPT = "\n\t\u200c\u200d"


class Term:
    """One output stream. Colour is decided per stream: NO_COLOR, then FORCE_COLOR, then whether it is a terminal.

    If the reader of a standard stream leaves (`pdctl … | head`), the rest is dropped, because the verb's exit code must
    still be found; with `follows` BrokenPipeError is raised, also where nothing is written, because the verb would go
    on for nobody.
    """

    def __init__(self, stream: IO[str], follows: bool = False) -> None:
        self.stream = stream
        self.follows = follows
        self.tty = stream.isatty()
        self.moves = self.tty and os.environ.get("TERM") != "dumb"  # the cursor: a line can be written over
        if os.environ.get("NO_COLOR"):
            self.color = False
        elif os.environ.get("FORCE_COLOR") or os.environ.get("CLICOLOR_FORCE"):
            self.color = True
        else:
            self.color = self.moves
        encoding = (getattr(stream, "encoding", "") or "").lower()
        self.unicode = "utf" in encoding

    @property
    def width(self) -> int:
        import shutil  # late: it loads bz2 and lzma

        return shutil.get_terminal_size((100, 24)).columns

    def style(self, text: str, *names: str) -> str:
        """`text` in the named styles (STYLES), or unchanged if colour is off."""
        if not self.color or not names:
            return text
        return f"\x1b[{';'.join(STYLES[name] for name in names)}m{text}\x1b[0m"

    def write(self, text: str = "", end: str = "\n") -> None:
        if self.tty and not text.isprintable():
            text = "".join(
                part if at % 2 else readable(part, self) for at, part in enumerate(OWN_SEQUENCES.split(text))
            )
        with self._errors():
            self.stream.write(text + end)

    def flush(self) -> None:
        with self._errors():
            self.stream.flush()
        self.sleep(0.0)

    def sleep(self, seconds: float) -> None:
        """Wait; with `follows` only as long as somebody reads, else raise BrokenPipeError."""
        if self.follows and _is_left(self.stream, seconds):
            raise BrokenPipeError
        if not self.follows and seconds:
            time.sleep(seconds)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Let an error of a standard stream name it, unless it is that nobody reads any more."""
        try:
            yield
        except OSError as error:
            if self.stream not in (sys.stdout, sys.stderr):
                raise
            if isinstance(error, BrokenPipeError) and not self.follows:
                silence(self.stream)
                return
            if error.filename is None:
                error.filename = "standard output" if self.stream is sys.stdout else "standard error"
            raise

    def symbol(self, fancy: str, plain: str) -> str:
        return fancy if self.unicode else plain


def _is_left(stream: IO[str], seconds: float) -> bool:
    """Whether the reader of a pipe has left, or leaves within `seconds`, which pass if it does not."""
    import select  # late: only a verb that follows waits for a reader

    watched = select.poll()
    with contextlib.suppress(ValueError):  # not a file: nobody can leave
        watched.register(stream, 0)
    return bool(watched.poll(seconds * 1000))


def silence(stream: IO[str]) -> None:
    """Redirect a broken stream to /dev/null, so that the interpreter's exit does not try to write again."""
    with contextlib.suppress(OSError, ValueError):  # standard output may be closed, or not a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def out(follows: bool = False) -> Term:
    """The terminal for answers: stdout. `follows`: as in Term."""
    return Term(sys.stdout, follows)


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
    """Yield stdout for None and `-`, else a UTF-8 stream that replaces the file when complete.

    Raise UsageError if it cannot be written.
    """
    if path is None or str(path) == "-":
        yield out()
        return
    from pdctl import user_files  # late: most answers go to a terminal or a pipe

    try:
        with user_files.replacing(path) as file, io.TextIOWrapper(file, encoding="utf-8") as stream:
            yield Term(stream)
    except OSError as error:
        raise user_files.unwritable(f"--output-file {path}", error) from None


def visible(text: str, term: Term | None = None) -> str:
    """Escape control, bidirectional and other unprintable characters and, with `term`, what it cannot encode."""
    if not text.isprintable():
        text = "".join(letter if letter.isprintable() else escape(letter) for letter in text.replace("\t", "    "))
    if term is not None and not term.unicode:
        return text.encode("ascii", "backslashreplace").decode("ascii")
    return text


def readable(text: str, term: Term | None = None) -> str:
    """Text of several lines, each `visible`. Tabs and the joiners of emoji and of Persian words remain."""
    if text.isprintable():
        return visible(text, term)
    return "".join(part if part in KEPT else visible(part, term) for part in re.split(f"([{KEPT}])", text))


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


GAP = "  "
NARROWEST = 12  # no column is folded below this
ESCAPE = compile_late(r"\x1b\[[0-9;]*m")


def table(term: Term, header: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Lines of a table: numbers to the right, words to the left, the header bold on a terminal."""
    cells = [[str(cell) for cell in row] for row in rows]
    right = [bool(rows) and all(isinstance(row[at], int) for row in rows) for at in range(len(header))]
    widths = [max(len(line[at]) for line in ([*header], *cells)) for at in range(len(header))]
    if term.tty:
        widths = _fitted(widths, right, term.width)
        if _whole(widths) > term.width:
            return listed(term, header, cells)
    head, *more = _lines(list(header), widths, right)
    return [
        *(term.style(line, "bold") for line in (head, *more)),
        *(line for row in cells for line in _lines(row, widths, right)),
    ]


def write_table(head: Sequence[str], rows: Sequence[Sequence[str]], term: Term) -> None:
    """Write rows aligned on a wide enough terminal, as a list on a narrow one, else tab-separated; nothing is cut."""
    if not term.tty:
        for row in (head, *rows):
            term.write("\t".join(row))
        return
    widths = [max(len(uncoloured(row[column])) for row in (head, *rows)) for column in range(len(head))]
    if sum(widths) + 2 * (len(widths) - 1) > term.width:
        _write_listed(head, rows, term)
        return
    for row in (tuple(term.style(word, "dim") for word in head), *rows):
        cells = (cell + " " * (width - len(uncoloured(cell))) for cell, width in zip(row, widths, strict=True))
        term.write("  ".join(cells).rstrip())


def _write_listed(head: Sequence[str], rows: Sequence[Sequence[str]], term: Term) -> None:
    """Row by row, for a terminal that is too narrow for the table; empty cells (`-`) are left out."""
    for name, *cells in rows:
        term.write(name)
        for title, cell in zip(head[1:], cells, strict=True):
            if uncoloured(cell) == "-":
                continue
            lead = f"  {title.lower()} "
            first, *more = _wrapped(lead + uncoloured(cell), max(term.width, len(lead) + 1), "    ")
            term.write(first.replace(uncoloured(cell), cell, 1) if not more else first)
            for line in more:
                term.write(line)


def uncoloured(text: str) -> str:
    """`text` without colour."""
    return ESCAPE.sub("", text)


def listed(term: Term, header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Row by row, one line for each title and cell, for a terminal that is too narrow for the table."""
    indent = "  " if len(header) > 1 else ""
    lines = []
    for row in rows:
        for at, (title, cell) in enumerate(zip(header, row, strict=True)):
            lead = (indent if at else "") + f"{title}: "
            lines += _wrapped(lead + cell, max(term.width, len(lead) + 1), indent * 2)
    return lines


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    import textwrap  # late: few tables are wider than their terminal

    return textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False)


def prose(term: Term, head: str, text: str, *styles: str) -> list[str]:
    """`head` in its styles, then `text`: wrapped between words on a terminal, one line in a pipe."""
    lines = [head]
    for word in text.split():
        if term.tty and len(lines[-1]) + 1 + len(word) > term.width:
            lines.append("  " + word)
        else:
            lines[-1] += f" {word}"
    lines[0] = term.style(head, *styles) + lines[0][len(head) :]
    return lines


def spans(values: Sequence[int]) -> str:
    """`0-7` or `0,2,5-7`: the numbers in order, without repeats."""
    parts: list[str] = []
    ordered = sorted(set(values))
    start = 0
    for at, value in enumerate(ordered):
        if at + 1 == len(ordered) or ordered[at + 1] != value + 1:
            first = ordered[start]
            parts.append(str(first) if first == value else f"{first}-{value}")
            start = at + 1
    return ",".join(parts)


def _fitted(widths: list[int], right: list[bool], limit: int) -> list[int]:
    """Narrow the columns to fit; the widest column of words shrinks first."""
    widths = list(widths)
    while _whole(widths) > limit:
        words = [at for at, number in enumerate(right) if not number and widths[at] > NARROWEST]
        if not words:
            break
        widths[max(words, key=lambda at: widths[at])] -= 1
    return widths


def _whole(widths: list[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _lines(cells: list[str], widths: list[int], right: list[bool]) -> list[str]:
    """The lines of one row: as many as its tallest cell has."""
    folded = [_folded(cell, width) for cell, width in zip(cells, widths, strict=True)]
    return [
        GAP.join(
            part.rjust(width) if number else part.ljust(width)
            for part, width, number in zip(parts, widths, right, strict=True)
        ).rstrip()
        for parts in zip_longest(*folded, fillvalue="")
    ]


def _folded(cell: str, width: int) -> list[str]:
    if len(cell) <= width:
        return [cell]
    return _wrapped(cell, width)
