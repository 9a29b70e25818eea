"""What was read from released wheels: one table per kind, each line an item with the releases that have it.

`python -m tools.read_release VERSION` writes the tables (docs/new-release.md). Every release in a package's
`releases.tsv` was read from the wheel named there, so `since` and `until` are exact among these releases; an item of
the oldest may be older. A line: since, until (exclusive; empty: the newest has it), name, and columns of the kind.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from pdctl.package_data import data

if TYPE_CHECKING:
    from pdctl.package_data import Data

FOLDER = data("engines/releases")


class Source(NamedTuple):
    """One release that was read, and the wheel it was read from, as the package index names it."""

    version: str
    wheel: str
    sha256: str


class Item(NamedTuple):
    """`since` inclusive and `until` exclusive, as written; `until` "": still in the newest release that was read."""

    since: str
    until: str
    cells: tuple[str, ...]


def lines(path: Data) -> list[list[str]]:
    """The cells of each line except comments; [] if there is no such file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [line.split("\t") for line in text.split("\n") if line and not line.startswith("#")]


@cache
def sources(package: str = "sglang") -> tuple[Source, ...]:
    """The releases of `package` that were read, oldest first."""
    return tuple(Source(*cells[:3]) for cells in lines(FOLDER / package / "releases.tsv"))


@cache
def items(kind: str, package: str = "sglang") -> tuple[Item, ...]:
    """One table; `kind` is `flags`, `environment`, `routes`, `metrics` or `records`."""
    return tuple(Item(cells[0], cells[1], tuple(cells[2:])) for cells in lines(FOLDER / package / f"{kind}.tsv"))
