"""Plain aligned columns without boxes; on a narrow terminal cells are folded, or rows become lists. Nothing is cut."""

from __future__ import annotations

import re
import textwrap
from itertools import zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.render.term import Term

GAP = "  "
NARROWEST = 12  # no column is folded below this
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


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
            first, *more = textwrap.wrap(
                lead + uncoloured(cell),
                max(term.width, len(lead) + 1),
                subsequent_indent="    ",
                break_on_hyphens=False,
            )
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
            lines += textwrap.wrap(
                lead + cell, max(term.width, len(lead) + 1), subsequent_indent=indent * 2, break_on_hyphens=False
            )
    return lines


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
    return textwrap.wrap(cell, width, break_on_hyphens=False)
