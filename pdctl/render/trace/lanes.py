"""The lanes of a timeline: a line for each instance, router first, and what each is to the room."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pdctl.render.columns import NARROWEST
from pdctl.render.visible import cells, fitted, padded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.render.term import Term
    from pdctl.trace.room import Room

ORDER = ("router", "prefill", "decode", "")
HUES = {"router": "magenta", "prefill": "blue", "decode": "green"}


class Lane(NamedTuple):
    instance: str
    role: str
    why: str
    styles: tuple[str, ...]


class Lanes:
    """Columns two wide: `│ ● │ │`."""

    def __init__(self, room: Room, term: Term) -> None:
        self._term = term
        self.lanes = lanes(room)
        self._line, self._quiet = term.symbol("│", "|"), term.symbol("┊", ":")

    @property
    def width(self) -> int:
        return 2 * len(self.lanes)

    def legend(self, margin: int) -> list[str]:
        """A row for each lane, which hangs from it."""
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


def lanes(room: Room) -> list[Lane]:
    """Router, prefills (the one that was asked first), decodes; neighbours of one role differ in weight."""
    known = {lane.instance: (lane.role, lane.why) for lane in room.lanes}
    for step in room.events:
        known.setdefault(step.instance, (step.role, ""))
    ordered = sorted(known.items(), key=lambda item: (_order(item[1][0]), item[0] != room.prefill_requested))
    found: list[Lane] = []
    for instance, (role, why) in ordered:
        same = sum(1 for lane in found if lane.role == role)
        hue: Sequence[str] = (HUES[role],) if role in HUES else ()
        found.append(Lane(instance, role, _why(room, instance) or why, (*hue, "bold") if same % 2 else tuple(hue)))
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


def _order(role: str) -> int:
    return ORDER.index(role) if role in ORDER else len(ORDER)
