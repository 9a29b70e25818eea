"""Which releases have something: the spans of one item in the tables that were read from wheels."""

from __future__ import annotations

from functools import cache

from pdctl.engines import tables
from pdctl.engines.versions import Span, Version, span_of


@cache
def _index(kind: str, width: int, package: str) -> dict[tuple[str, ...], tuple[Span, ...]]:
    found: dict[tuple[str, ...], list[Span]] = {}
    for item in tables.items(kind, package):
        found.setdefault(item.cells[:width], []).append(span_of(item))
    return {name: tuple(_joined(spans)) for name, spans in found.items()}


def _joined(spans: list[Span]) -> list[Span]:
    """The spans in order; those that touch or overlap are merged."""
    out: list[Span] = []
    for one in sorted(spans, key=lambda span: span.since):
        last = out[-1] if out else None
        if last is None or (last.until is not None and last.until < one.since):
            out.append(one)
        elif last.until is not None:
            out[-1] = Span(last.since, None if one.until is None else max(last.until, one.until))
    return out


def spans(kind: str, *cells: str, package: str = "sglang") -> tuple[Span, ...]:
    """The spans of the item that begins with these cells, oldest first; () if no release has it."""
    return _index(kind, len(cells), package).get(cells, ())


def span(kind: str, *cells: str) -> Span:
    """The item's latest span. Raise KeyError if no release has it."""
    found = spans(kind, *cells)
    if not found:
        raise KeyError(f"no release that was read has {' '.join(cells)} ({kind})")
    return found[-1]


def has(version: Version, kind: str, *cells: str) -> bool:
    return any(one.holds(version) for one in spans(kind, *cells))


def names(kind: str, version: Version, *cells: str, package: str = "sglang") -> tuple[str, ...]:
    """The next cell, sorted, of every item of this release that begins with these cells."""
    width = len(cells)
    return tuple(
        sorted({
            name[width] for name, held in _index(kind, width + 1, package).items()
            if name[:width] == cells and any(one.holds(version) for one in held)
        })
    )  # fmt: skip
