"""The diff of one release against the previous one, for the person who reviews it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tools.read_release.tables import Change, Row
    from tools.read_release.wheel import Wheel

WIDEST = 150


def review(wheel: Wheel, versions: list[str], changes: list[Change], doubts: list[str], quiet: bool) -> None:
    """Print what was added, removed and changed, kind by kind, and what could not be determined."""
    at = versions.index(wheel.version)
    before = versions[at - 1] if at else ""
    print(f"{wheel.package} {wheel.version} ({wheel.name}, sha256 {wheel.sha256[:12]}…) against {before or 'nothing'}")
    for change in changes:
        print(f"  {change.kind}: {len(change.added)} came, {len(change.removed)} went")
        if quiet or not before:
            continue
        removed = {row[0]: row for row in change.removed}
        for row in change.added:
            old = removed.get(row[0]) if change.kind in ("flags", "environment", "metrics") else None
            print(_cut(f"    ~ {_told(old)} → {_told(row[1:])}" if old else f"    + {_told(row)}"))
        came = {row[0] for row in change.added} if change.kind in ("flags", "environment", "metrics") else set()
        for row in change.removed:
            if row[0] not in came:
                print(_cut(f"    - {_told(row)}"))
    for doubt in doubts:
        print(f"  not told by the source: {doubt}")


def _told(row: Row) -> str:
    return " · ".join(cell.replace("\n", "\\n") for cell in row if cell)


def _cut(text: str) -> str:
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"
