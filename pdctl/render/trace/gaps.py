"""The gap of a room: where among its rows it lies, and its name in a few words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.render.trace import measures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.render.trace.rows import Row
    from pdctl.trace.room import Gap, Room


def gap_row(rows: Sequence[Row], gap: Gap | None) -> int:
    """Index of the first row behind the gap; `len(rows)` when nothing follows it, -1 without one."""
    if gap is None:
        return -1
    early = [at for at, row in enumerate(rows) if row.step.delta_s is not None and row.step.delta_s <= gap.start]
    return early[-1] + 1 if early else 0


def gap_name(room: Room, rows: Sequence[Row]) -> str:
    """`20 s between handshake at prefill-0 and timed out at decode-0: PD201`; a line without a phase by its text."""
    gap = room.gap
    if gap is None:
        return ""
    at = gap_row(rows, gap)
    after = _named(rows[at - 1], gap.after) if at > 0 else gap.after
    behind = [row for row in rows[at:] if row.step.delta_s == gap.end]
    told = next((row for row in behind if row.step.phase), None)
    before = _named(told, gap.before) if gap.before and told else gap.before
    between = f"between {after} and {before}" if before else f"after {after}, and nothing more"
    return f"{measures.took(gap.seconds, gap.uncertainty_s)} {between}" + (f": {gap.code}" if gap.code else "")


def _named(row: Row, otherwise: str) -> str:
    phase = row.step.phase
    return f"{phase.value.replace('_', ' ')} at {row.step.instance}" if phase else otherwise
