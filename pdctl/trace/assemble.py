"""`trace`: from a library of logs to everything they tell about one room."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pdctl.trace import mixed
from pdctl.trace.addresses import parse
from pdctl.trace.attribution import Attribution, attribute
from pdctl.trace.case import Case, warm_up
from pdctl.trace.deployment import Deployment
from pdctl.trace.dispatches import dispatched, first
from pdctl.trace.glimpses import glimpses
from pdctl.trace.joins import NOTHING, PATIENCE, Joins
from pdctl.trace.ledger import Ledger
from pdctl.trace.missing import missing
from pdctl.trace.outcomes import outcome
from pdctl.trace.report import report
from pdctl.trace.story import gather, in_files
from pdctl.trace.unfinished import doubts
from pdctl.trace.verdict import judge

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pdctl.logs.event import Event
    from pdctl.logs.library import Library
    from pdctl.trace.glimpses import Glimpse
    from pdctl.trace.room import Room
    from pdctl.trace.story import Story
    from pdctl.trace.unfinished import Doubt

WHOLE = 8 << 20  # bytes of logs that are looked at from end to end; of more, only what lies around the room
AFTER = 90.0  # seconds behind a room's last line: a router's health check misses a dead worker within a minute
APART = 2.0  # seconds the clocks of different hosts are taken to differ by at most


def trace(library: Library, room: int) -> Room:
    """What the logs tell about `room`. A room no line names comes back with no events and nothing known."""
    return Tracer(library).trace(room)


class Surroundings(NamedTuple):
    """What a stretch of the logs holds beside the room: known lines, other rooms, and what follows for all of them."""

    lines: tuple[Event, ...]
    rooms: Mapping[int, Glimpse]
    joins: Joins
    ledger: Ledger | None
    doubts: tuple[Doubt, ...]


class Tracer:
    """Traces rooms of one library; what concerns all of them is read once."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self.deployment = Deployment.of(library)
        self.mixed = mixed.names(library)
        self._whole: Surroundings | None = None
        routers = [log for log in library.logs if library.identity(log).role == "router"]
        self._begins = {log.instance: first(library, log) for log in routers}
        self._torn = frozenset(log.instance for log in routers if library.has_incomplete_lines(log))

    def trace(self, room: int) -> Room:
        story = gather(self._library, room)
        around = self._surroundings(story)
        joined = around.joins.of(room) if room in around.rooms else NOTHING
        settled = around.ledger.arrived(room) if around.ledger else None
        deployment = self.deployment.at(story.span[0] if story.span else None)
        who = Attribution()
        if not warm_up(story, deployment):
            who = attribute(story, deployment, joined, around.lines, around.rooms, settled)
        case = Case(story, who, deployment, around.lines, joined, around.rooms.get(room), around.doubts)
        verdict = judge(case)
        if verdict.finding is not None and verdict.finding.asked is not None:
            case = case.with_requested(verdict.finding.asked)
        ended, shown = outcome(case, around.rooms, verdict.finding)
        told = report(case, ended, shown, verdict, missing(case, ended, verdict.fix))
        unnamed = any(event.instance in self.mixed for event in story.events)
        return mixed.refused(told, self.mixed) if unnamed else told

    def _surroundings(self, story: Story) -> Surroundings:
        if sum(log.size for log in self._library.logs) <= WHOLE:
            if self._whole is None:
                self._whole = self._study(self._library.context(float("-inf"), float("inf")), whole=True)
            return self._whole
        span = story.span
        if span is None:
            return self._study(self._finals(), whole=False)
        lines = self._library.context(span[0] - PATIENCE, span[1] + AFTER, focus=span)
        return self._study((*self._finals(), *lines), whole=False, complete=not self._cut())

    def _cut(self) -> bool:
        """Whether a router's log was too long to be read around the room: an attempt left out could be the room's."""
        routers = {one.name for one in self.deployment.instances.values() if one.role == "router"}
        paths = [part.path for log in self._library.logs if log.instance in routers for part in log.parts]
        return any(note.startswith(path) for note in self._library.notes for path in paths)

    def _study(self, lines: Iterable[Event], *, whole: bool, complete: bool = True) -> Surroundings:
        found = in_files({(line.place.file, line.place.offset, line.row.id): line for line in lines}.values())
        rooms = glimpses(found, self.deployment)
        # Counting needs the logs from their starts on.
        ledger = Ledger(found, rooms, (one.name for one in self.deployment.decodes)) if whole else None
        tried = dispatched(found, self.deployment, self._begins, self._torn, whole=whole) if complete else ()
        joins = Joins(rooms, tried, self.deployment, self._slack())
        return Surroundings(found, rooms, joins, ledger, doubts(found, self.deployment.decodes))

    def _slack(self) -> float:
        urls = [one.url for starts in self.deployment.history for router in starts for one in router.prefills]
        return 0.0 if all(address.loopback for address in map(parse, urls) if address is not None) else APART

    def _finals(self) -> tuple[Event, ...]:
        return tuple(event for one in self.deployment.instances.values() for event in one.final)
