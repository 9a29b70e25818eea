"""How much of a log its dialect explains: lines per row, and the shapes of the lines no row knows."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from pdctl.engines.prefix import split

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdctl.engines.row import Row
    from pdctl.engines.speech import Speech

KEPT = 20_000  # shapes counted apart; the rest of a log that has more is counted together
WIDEST = 120  # characters of a shape
# What differs from line to line of one shape: numbers, ids, addresses, paths, quoted text.
_VARIABLE = re.compile(
    r"https?://[^\s,)\]}'\"]+|'[^']{1,200}'|\"[^\"]{1,200}\"|(?<![\w/])/[\w./-]{2,}|\b[0-9a-f]{8,}(?:-[0-9a-f]{4,}){0,4}\b"
    r"|0x[0-9a-f]+|-?\d+(?:\.\d+)*"
)


class Counted(NamedTuple):
    row: Row
    lines: int


class Shape(NamedTuple):
    """Unknown lines that differ only in numbers, names and addresses; `example` is the first of them."""

    text: str
    lines: int
    example: str


class Survey(NamedTuple):
    """empty: lines with nothing on them; they are neither known nor unknown. rows, shapes: the commonest first."""

    lines: int
    known: int
    empty: int
    rows: tuple[Counted, ...]
    shapes: tuple[Shape, ...]

    @property
    def unknown(self) -> int:
        return self.lines - self.known - self.empty


def survey(lines: Iterable[bytes], speech: Speech) -> Survey:
    """One pass; memory is bounded by KEPT shapes."""
    total = empty = 0
    rows: Counter[str] = Counter()
    known: dict[str, Row] = {}
    shapes: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for raw, said in speech.read(lines):
        total += 1
        if said is not None:
            rows[said.row.id] += 1
            known.setdefault(said.row.id, said.row)
        elif not raw.strip():
            empty += 1
        else:
            _unknown(raw, shapes, examples)
    return Survey(
        total, rows.total(), empty,
        tuple(Counted(known[name], count) for name, count in _ordered(rows)),
        tuple(Shape(text, count, examples.get(text, "")) for text, count in _ordered(shapes)),
    )  # fmt: skip


def _unknown(raw: bytes, shapes: Counter[str], examples: dict[str, str]) -> None:
    message = split(raw[:4096]).message
    text = _VARIABLE.sub("…", message)[:WIDEST].rstrip()
    if text not in examples:
        if len(examples) >= KEPT:
            shapes["(others)"] += 1
            return
        examples[text] = message[:400]
    shapes[text] += 1


def _ordered(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
