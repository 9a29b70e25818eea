"""What the kinds of a room's lines prove by themselves: enough for a list, the same for all rooms with one story."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from pdctl.engines.sign import Sign
from pdctl.logs.event import Event, Place
from pdctl.trace import canaries
from pdctl.trace.attribution import attribute
from pdctl.trace.case import Case
from pdctl.trace.causes import departures, ends, ports
from pdctl.trace.joins import NOTHING
from pdctl.trace.outcomes import CLIENT_LEFT, outcome, phase_reached
from pdctl.trace.room import Outcome
from pdctl.trace.story import Story

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.engines.row import Row
    from pdctl.engines.sign import Phase
    from pdctl.logs import all_rooms
    from pdctl.trace.deployment import Deployment

# Causes that need no more than the room's own lines and the start lines; the others hang on what happened around it.
CAUSES = (ends.reused, ports.crossed)


class Sketch(NamedTuple):
    prefill: str | None
    decode: str | None
    phase: Phase | None
    outcome: Outcome
    code: str
    canary: bool = False


def sketch(told: all_rooms.LineKinds, deployment: Deployment) -> Sketch:
    """None, "" and UNKNOWN where the kinds of lines alone do not tell; `trace` may know more, and nothing else."""
    story = Story(1, tuple(_lines(told)), {})
    who = attribute(story, deployment, NOTHING, (), {}, None)
    case = Case(story, who, deployment, (), NOTHING)
    ended, _ = outcome(case, {}, None)
    found = next((finding for check in CAUSES if (finding := check(case)) is not None), None)
    if found is None and ended is Outcome.FAILED and departures.only_aborted(case):
        return Sketch(
            who.requested.value if who.requested else None, who.decode.value if who.decode else None,
            phase_reached(case, Outcome.ABORTED), Outcome.ABORTED, CLIENT_LEFT, canaries.ours(story),
        )  # fmt: skip
    return Sketch(
        who.requested.value if who.requested else None, who.decode.value if who.decode else None,
        phase_reached(case, ended), ended, found.code if found else "",
        canaries.ours(story),
    )  # fmt: skip


def _lines(told: all_rooms.LineKinds) -> Iterator[Event]:
    """One line of each kind, of a room called 1, without a time."""
    for seen in told.seen:
        for at, row in enumerate(seen.rows):
            place = Place(seen.instance, at + 1, at)
            yield Event(seen.instance, seen.role, "", row, _values(row), None, 0.0, place, "")


def _values(row: Row) -> MappingProxyType[str, str]:
    values = {"room": "1"}
    if "(?P<rid>" in row.pattern:
        values["rid"] = "1"
    if Sign.REQUEST_FINISHED in row.proves:
        values["finish"] = "'length'"  # a request that was cut short has a row of its own
    return MappingProxyType(values)
