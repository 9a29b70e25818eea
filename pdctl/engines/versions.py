"""Which releases of an engine the tables know, what each has, and which of them stands in for any other release.

What was read from released wheels is one table per kind, each line an item with the releases that have it.
`python -m tools.read_release VERSION` writes them (docs/new-release.md). Every release in a package's `releases.tsv`
was read from the wheel named there, so `since` and `until` are exact among these releases; an item of the oldest may
be older. A line: since, until (exclusive; empty: the newest has it), name, and columns of the kind.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING

from pdctl.errors import UsageError
from pdctl.package_data import data
from pdctl.quick_definitions import NamedTuple, compile_late

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


# Major, minor, micro, then the number of a post release: 0.5.10 < 0.5.10.post1 < 0.5.11.
Version = tuple[int, ...]

DIGITS = 6  # in one number of a version; more are a build number or garbage
POST = compile_late(rf"[.-]?post(\d{{1,{DIGITS}}})")


def parse(text: str, package: str = "sglang") -> Version:
    """The three leading numbers, and that of a post release; `0.5.18`, `v0.5.18` and `0.5.18rc1` are alike."""
    numbers: list[int] = []
    rest = text.strip().removeprefix("v")
    for part in rest.split(".")[:3]:
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not 0 < len(digits) <= DIGITS:
            break
        numbers.append(int(digits))
    if len(numbers) != 3:
        raise UsageError(f"`{text}` is not an {package} version", f"write it as {newest(package)}")
    post = POST.search(rest) if "post" in rest else None
    return (*numbers, int(post[1])) if post is not None and int(post[1]) else tuple(numbers)


def newest(package: str) -> str:
    """The newest release that was read, as written."""
    return sources(package)[-1].version


def spell(version: Version) -> str:
    return ".".join(map(str, version[:3])) + "".join(f".post{number}" for number in version[3:])


@lru_cache(maxsize=16)
def released(package: str) -> tuple[Version, ...]:
    """The releases of a package whose sources were read, oldest first."""
    return tuple(parse(source.version) for source in sources(package))


# The releases whose sources were read, oldest first (engines/releases/sglang/releases.tsv).
SGLANG: tuple[Version, ...] = released("sglang")
OLDEST, NEWEST = SGLANG[0], SGLANG[-1]

V0_5_3: Version = (0, 5, 3)
V0_5_3_POST2: Version = (0, 5, 3, 2)
V0_5_3_POST3: Version = (0, 5, 3, 3)
V0_5_4: Version = (0, 5, 4)
V0_5_4_POST2: Version = (0, 5, 4, 2)
V0_5_5: Version = (0, 5, 5)
V0_5_5_POST1: Version = (0, 5, 5, 1)
V0_5_5_POST2: Version = (0, 5, 5, 2)
V0_5_5_POST3: Version = (0, 5, 5, 3)
V0_5_6: Version = (0, 5, 6)
V0_5_6_POST1: Version = (0, 5, 6, 1)
V0_5_6_POST2: Version = (0, 5, 6, 2)
V0_5_7: Version = (0, 5, 7)
V0_5_8: Version = (0, 5, 8)
V0_5_9: Version = (0, 5, 9)
V0_5_10: Version = (0, 5, 10)
V0_5_11: Version = (0, 5, 11)
V0_5_12: Version = (0, 5, 12)
V0_5_13: Version = (0, 5, 13)
V0_5_14: Version = (0, 5, 14)
V0_5_15: Version = (0, 5, 15)
V0_5_16: Version = (0, 5, 16)
V0_5_17: Version = (0, 5, 17)
V0_5_18: Version = (0, 5, 18)
V0_5_19: Version = (0, 5, 19)
V0_5_20: Version = (0, 5, 20)
V0_5_21: Version = (0, 5, 21)
V0_5_22: Version = (0, 5, 22)
V0_5_23: Version = (0, 5, 23)


class Release(NamedTuple):
    """`known`: the release whose rows are used; `note`: why, if that is not the one asked for."""

    asked: str
    known: Version
    note: str = ""


class Span(NamedTuple):
    """The releases a row holds for: `since` inclusive, `until` exclusive (None: still true in the newest)."""

    since: Version = V0_5_3
    until: Version | None = None

    def holds(self, version: Version) -> bool:
        return self.since <= version and (self.until is None or version < self.until)


def resolve(text: str | None, package: str = "sglang") -> Release:
    """The release to use for `text` (None: the newest known). Raise UsageError if it is older than all known ones."""
    known = released(package)
    if text is None:
        return Release(spell(known[-1]), known[-1])
    version = parse(text, package)
    if version < known[0]:
        raise UsageError(
            f"{package} {text} is older than {spell(known[0])}, the oldest release pdctl has read",
            f"give {spell(known[0])} or a newer one, up to {spell(known[-1])}",
        )
    nearest = max(candidate for candidate in known if candidate <= version)
    return Release(spell(version), nearest, unread(version, package))


def unread(version: Version, package: str = "sglang") -> str:
    """One sentence about a release that is not in the tables; "" for one that is."""
    known = released(package)
    if version in known:
        return ""
    if version < known[0]:
        return f"{package} {spell(version)} is older than the oldest release pdctl has read ({spell(known[0])})"
    nearest = max(candidate for candidate in known if candidate <= version)
    if nearest == known[-1]:
        what = f"newer than the newest release pdctl has read ({spell(nearest)})"
    else:
        after = known[known.index(nearest) + 1]
        what = f"not among the releases pdctl has read (it lies between {spell(nearest)} and {spell(after)})"
    return f"{package} {spell(version)} is {what}: the rules of {spell(nearest)} are used"


def span_of(item: Item) -> Span:
    """The span of a table's line."""
    return Span(_written(item.since), _written(item.until) if item.until else None)


_WRITTEN = {source.version: version for source, version in zip(sources(), SGLANG, strict=True)}


def _written(text: str) -> Version:
    return _WRITTEN.get(text) or parse(text)


@cache
def _index(kind: str, width: int, package: str) -> dict[tuple[str, ...], tuple[Span, ...]]:
    found: dict[tuple[str, ...], list[Span]] = {}
    for item in items(kind, package):
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
