"""In which releases something is: the spans of one item of the tables that were read from wheels."""

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
    """Spans in order; those that touch or overlap are one."""
    out: list[Span] = []
    for one in sorted(spans, key=lambda span: span.since):
        last = out[-1] if out else None
        if last is None or (last.until is not None and last.until < one.since):
            out.append(one)
        elif last.until is not None:
            out[-1] = Span(last.since, None if one.until is None else max(last.until, one.until))
    return out


def spans(kind: str, *cells: str, package: str = "sglang") -> tuple[Span, ...]:
    """The spans of the item whose first cells are these, the oldest first; () for one that no release has."""
    return _index(kind, len(cells), package).get(cells, ())


def span(kind: str, *cells: str) -> Span:
    """Its latest span; KeyError for an item that no release has."""
    found = spans(kind, *cells)
    if not found:
        raise KeyError(f"no release that was read has {' '.join(cells)} ({kind})")
    return found[-1]


def has(version: Version, kind: str, *cells: str) -> bool:
    return any(one.holds(version) for one in spans(kind, *cells))


def names(kind: str, version: Version, *cells: str, package: str = "sglang") -> tuple[str, ...]:
    """The next cell of every item of this release that begins with these cells, sorted."""
    width = len(cells)
    return tuple(
        sorted({
            name[width] for name, held in _index(kind, width + 1, package).items()
            if name[:width] == cells and any(one.holds(version) for one in held)
        })
    )  # fmt: skip
