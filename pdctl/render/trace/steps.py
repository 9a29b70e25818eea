"""The steps of a room as rows, the lanes of their instances, and the longest gap between them."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from pdctl.quick_definitions import NamedTuple, compile_late
from pdctl.render.term import NARROWEST, cells, fitted, padded, spans
from pdctl.render.trace import wording
from pdctl.render.trace.wording import COARSE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pdctl.render.term import Term
    from pdctl.trace.room import LongestGap, Room, RoomStep


ORDER = ("router", "prefill", "decode", "")
HUES = {"router": "magenta", "prefill": "blue", "decode": "green"}


class RoomLane(NamedTuple):
    instance: str
    role: str
    why: str
    styles: tuple[str, ...]


class Lanes:
    """The lanes as columns, each two wide: `│ ● │ │`."""

    def __init__(self, room: Room, term: Term) -> None:
        self._term = term
        self.lanes = lanes(room)
        self._line, self._quiet = term.symbol("│", "|"), term.symbol("┊", ":")

    @property
    def width(self) -> int:
        return 2 * len(self.lanes)

    def legend(self, margin: int) -> list[str]:
        """One row per lane, with its name and why it is there."""
        style, corner = self._term.style, self._term.symbol("╭", ",")
        names = [lane.instance for lane in self.lanes]
        widest = max(map(cells, names), default=0)
        rows = []
        for at, (lane, name) in enumerate(zip(self.lanes, names, strict=True)):
            width = widest + 2 * (len(self.lanes) - 1 - at)
            stem = "".join(style(self._line, *each.styles) + " " for each in self.lanes[:at])
            head = style(corner, *lane.styles) + " " + style(padded(name, width), *lane.styles, "bold")
            left = self._term.width - margin - self.width - widest - 2 if self._term.tty else len(lane.why) * 6
            why = fitted(lane.why, max(left, NARROWEST))
            rows.append(f"{' ' * margin}{stem}{head}  {style(why, 'dim')}".rstrip())
        return rows

    def marked(self, instance: str, mark: str, *styles: str) -> str:
        """Every lane, with `mark` on that of `instance`."""
        return "".join(
            (
                self._term.style(mark, *(styles or lane.styles))
                if lane.instance == instance
                else self._term.style(self._line, *lane.styles)
            )
            + " "
            for lane in self.lanes
        )

    def silent(self) -> str:
        """Every lane while nothing happens."""
        return "".join(self._term.style(self._quiet, "dim") + " " for _ in self.lanes)

    def styles(self, instance: str) -> tuple[str, ...]:
        return next((lane.styles for lane in self.lanes if lane.instance == instance), ())


def lanes(room: Room) -> list[RoomLane]:
    """Router, prefills (the requested one first), decodes; neighbours of one role differ in weight."""
    known = {lane.instance: (lane.role, lane.why) for lane in room.lanes}
    for step in room.events:
        known.setdefault(step.instance, (step.role, ""))
    ordered = sorted(known.items(), key=lambda item: (_lane_order(item[1][0]), item[0] != room.prefill_requested))
    found: list[RoomLane] = []
    for instance, (role, why) in ordered:
        same = sum(1 for lane in found if lane.role == role)
        hue: Sequence[str] = (HUES[role],) if role in HUES else ()
        found.append(RoomLane(instance, role, _why(room, instance) or why, (*hue, "bold") if same % 2 else tuple(hue)))
    return found


def _why(room: Room, instance: str) -> str:
    asked, contacted = instance == room.prefill_requested, instance == room.prefill_contacted
    if asked and room.prefill_contacted and not contacted:
        left = room.wrong_prefill is not None and room.wrong_prefill.by_elimination
        return f"got the request{' (by elimination)' if left else ''}, but no TransferInfo"
    if contacted and room.prefill_requested and not asked:
        return "got decode's TransferInfo, but no request"
    if asked:
        return "got the request"
    return "got decode's TransferInfo" if contacted else ""


def _lane_order(role: str) -> int:
    return ORDER.index(role) if role in ORDER else len(ORDER)


LAST = 99
NUMBER = compile_late(r"\d+")


class StepRow(NamedTuple):
    """step: the first of the joined lines; ranks: those of all of them, in order."""

    step: RoomStep
    ranks: tuple[str, ...]


def collapsed(steps: Iterable[RoomStep]) -> list[StepRow]:
    """Join equal lines of different ranks that their clock cannot tell apart, each rank only once."""
    groups: list[list[RoomStep]] = []
    same: dict[tuple[object, ...], list[RoomStep]] = {}
    last: float | None = None
    for step in in_order(steps):
        if step.t != last:
            same, last = {}, step.t
        key = (step.instance, step.phase, step.row or NUMBER.sub("#", step.text))
        group = same.get(key)
        if group is not None and step.rank and step.rank not in {other.rank for other in group}:
            group.append(step)
        else:
            same[key] = group = [step]
            groups.append(group)
    return [StepRow(group[0], tuple(step.rank for step in group if step.rank)) for group in groups]


def in_order(steps: Iterable[RoomStep]) -> list[RoomStep]:
    """Put lines of the same second in the order of a room's life; lines of one file keep their order."""
    ordered: list[RoomStep] = []
    for (_, doubt), second in groupby(steps, key=lambda step: (step.delta_s, step.uncertainty_s)):
        lines = list(second)
        ordered += _merged(lines) if doubt >= COARSE else lines
    return ordered


def _merged(steps: Iterable[RoomStep]) -> Iterator[RoomStep]:
    """Merge files: of their next lines, take the one with the earliest phase; among equals, the router's."""
    files: dict[str, list[RoomStep]] = {}
    for step in steps:
        files.setdefault(step.file, []).append(step)
    while files:
        first = min(files, key=lambda file: (_order(files[file][0]), files[file][0].role != "router"))
        yield files[first].pop(0)
        if not files[first]:
            del files[first]


def _order(step: RoomStep) -> int:
    """Sort key. A line that proves no phase comes last."""
    return step.phase.order if step.phase else LAST


def named(ranks: Sequence[str], times: str = "×") -> str:
    """`TP0-7 ×8`, `DP1 TP3`; ranks that differ in more than one number are only counted."""
    if len(ranks) < 2:
        return "".join(ranks)
    numbers = [NUMBER.findall(rank) for rank in ranks]
    shapes = {NUMBER.sub("#", rank) for rank in ranks}
    varying = [at for at, column in enumerate(zip(*numbers, strict=False)) if len(set(column)) > 1]
    if len(shapes) > 1 or len(varying) != 1:
        return f"{len(ranks)} ranks"
    run = spans([int(number[varying[0]]) for number in numbers])
    parts = iter(run if at == varying[0] else number for at, number in enumerate(numbers[0]))
    return NUMBER.sub(lambda _: next(parts), ranks[0]) + f" {times}{len(ranks)}"


def gap_row(rows: Sequence[StepRow], gap: LongestGap | None) -> int:
    """Index of the first row after the gap; `len(rows)` if nothing follows it, -1 without a gap."""
    if gap is None:
        return -1
    early = [at for at, row in enumerate(rows) if row.step.delta_s is not None and row.step.delta_s <= gap.start]
    return early[-1] + 1 if early else 0


def gap_name(room: Room, rows: Sequence[StepRow]) -> str:
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
    return f"{wording.took(gap.seconds, gap.uncertainty_s)} {between}" + (f": {gap.code}" if gap.code else "")


def _named(row: StepRow, otherwise: str) -> str:
    phase = row.step.phase
    return f"{phase.value.replace('_', ' ')} at {row.step.instance}" if phase else otherwise
