"""The tables of all releases read so far: add or replace a release, and report its changes to the previous one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pdctl import engines
from pdctl.engines.versions import lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tools.read_release.wheel import Wheel

# The columns after since and until in each table. Logs are for tests and reviews: they are not shipped.
KINDS: dict[str, str] = {
    "flags": "name takes type choices default",
    "environment": "name kind default declared",
    "routes": "server path method",
    "metrics": "name type",
    "records": "record field frame",
    "logs": "template level function",
}
FOLDER = Path(engines.__file__).with_name("releases")
LOGS = Path(__file__).with_name("logs")
Row = tuple[str, ...]


class Change(NamedTuple):
    """The items of one kind that were added or removed since the previous release."""

    kind: str
    added: tuple[Row, ...]
    removed: tuple[Row, ...]


def order(version: str) -> tuple[int, ...]:
    """A sort key for releases: 0.5.9 < 0.5.10 < 0.5.10.post1 < 0.5.11."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def path_of(package: str, kind: str) -> Path:
    return (LOGS / f"{package}.tsv") if kind == "logs" else FOLDER / package / f"{kind}.tsv"


def versions_of(package: str) -> list[str]:
    return sorted((cells[0] for cells in lines(FOLDER / package / "releases.tsv")), key=order)


def contents(package: str, kind: str, versions: list[str]) -> dict[str, set[Row]]:
    """Release → its items, from the since and until columns of the table."""
    found: dict[str, set[Row]] = {version: set() for version in versions}
    for since, until, *cells in lines(path_of(package, kind)):
        for version in versions[versions.index(since) : versions.index(until) if until else None]:
            found[version].add(tuple(unescape(cell) for cell in cells))
    return found


def merge(wheel: Wheel, read: Mapping[str, Iterable[Row]]) -> list[Change]:
    """Put one release into the tables. `read`: kind → items. Return the changes to the previous release."""
    before = versions_of(wheel.package)
    every = sorted({*before, wheel.version}, key=order)
    at = every.index(wheel.version)
    changes = []
    for kind, rows in read.items():
        held = contents(wheel.package, kind, before)
        new = {tuple(map(str, row)) for row in rows}
        old = held.get(every[at - 1], set()) if at else set()
        changes.append(Change(kind, tuple(sorted(new - old)), tuple(sorted(old - new))))
        held[wheel.version] = new
        _write(wheel.package, kind, every, held)
    _write_sources(wheel)
    return changes


def _write(package: str, kind: str, versions: list[str], held: Mapping[str, set[Row]]) -> None:
    spans: list[tuple[Row, int, int]] = []
    for row in set().union(*held.values()):
        has = [index for index, version in enumerate(versions) if row in held[version]]
        begin = has[0]
        for here, following in zip(has, [*has[1:], -1], strict=True):
            if following != here + 1:
                spans.append((row, begin, here + 1))
                begin = following
    spans.sort()
    path = path_of(package, kind)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="\n") as out:
        out.write(f"# {kind} of {package}, written by tools/read_release: since until {KINDS[kind]}\n")
        for row, begin, end in spans:
            until = versions[end] if end < len(versions) else ""
            out.write("\t".join((versions[begin], until, *map(_escape, row))) + "\n")


def _write_sources(wheel: Wheel) -> None:
    path = FOLDER / wheel.package / "releases.tsv"
    rows = {cells[0]: cells for cells in lines(path)}
    rows[wheel.version] = [wheel.version, wheel.name, wheel.sha256]
    text = "".join("\t".join(rows[version]) + "\n" for version in sorted(rows, key=order))
    path.write_text(f"# releases of {wheel.package} that were read: version wheel sha256\n{text}", encoding="utf-8")


def _escape(cell: str) -> str:
    return cell.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


def unescape(cell: str) -> str:
    if "\\" not in cell:
        return cell
    return re.sub(r"\\(.)", lambda found: {"t": "\t", "n": "\n", "r": "\r"}.get(found[1], found[1]), cell)
