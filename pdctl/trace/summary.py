"""All rooms of the logs, each in a line: for `pdctl rooms`."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from pdctl.trace.assemble import WHOLE, Tracer
from pdctl.trace.room import Outcome, Summary
from pdctl.trace.sketch import Sketch, sketch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pdctl.logs import all_rooms
    from pdctl.logs.library import Library
    from pdctl.trace.room import Room

TRACED = 200  # rooms that are traced in full where the logs are small; a few milliseconds each
# What a list is read for comes first.
URGENT = (
    Outcome.FAILED, Outcome.HUNG, Outcome.INCOMPLETE, Outcome.UNKNOWN, Outcome.ABORTED, Outcome.REFUSED, Outcome.OK,
)  # fmt: skip


def summaries(library: Library) -> tuple[Summary, ...]:
    """Every room a line names, warm-ups and health checks left out, in the order of their first lines.

    One pass over the logs. Of each room what its own lines prove; where the logs have at most 8 MiB, the 200 rooms that
    most need it (those that broke, then the latest) are traced in full, so that a row says what `trace` says.
    """
    tracer = Tracer(library)
    sketches: dict[int, tuple[all_rooms.LineKinds, Sketch]] = {}  # the story is kept, so that its id stays its own
    found: dict[int, Summary] = {}
    for seen in library.rooms():
        if seen.room in tracer.deployment.warm_ups:
            continue
        known = sketches.get(id(seen.story))
        if known is None:
            known = sketches[id(seen.story)] = (seen.story, _sketch(seen.story, tracer))
        found[seen.room] = _sketched(seen, known[1])
    if sum(log.size for log in library.logs) <= WHOLE:
        for summary in _urgent(found.values()):
            room = tracer.trace(summary.room)
            if room.warm_up:
                del found[summary.room]
            else:
                found[summary.room] = _traced(room, summary)
    return tuple(sorted(found.values(), key=lambda one: (one.first_seen is None, one.first_seen or 0.0, one.room)))


def _sketch(told: all_rooms.LineKinds, tracer: Tracer) -> Sketch:
    """Nothing, where a log holds lines of several processes that nobody can tell apart."""
    if any(seen.instance in tracer.mixed for seen in told.seen):
        return Sketch(None, None, None, Outcome.UNKNOWN, "")
    return sketch(told, tracer.deployment)


def _sketched(seen: all_rooms.RoomSeen, known: Sketch) -> Summary:
    timed = isfinite(seen.first) and isfinite(seen.last)
    return Summary(
        seen.room, known.prefill, known.decode, known.phase, seen.last - seen.first if timed else None, known.outcome,
        known.code, seen.first if timed else None, seen.lines, known.canary,
    )  # fmt: skip


def _urgent(found: Iterable[Summary]) -> Iterator[Summary]:
    ranked = sorted(found, key=lambda one: (URGENT.index(one.outcome), -(one.first_seen or 0.0)))
    return iter(ranked[:TRACED])


def _traced(room: Room, sketched: Summary) -> Summary:
    """seconds: what a time-out says it waited before the first line counts."""
    seconds = sketched.seconds
    if room.began is not None and room.ended is not None:
        waited = min((one.start for one in room.durations if one.start is not None), default=0.0)
        seconds = room.ended - room.began - min(0.0, waited)
    return Summary(
        room.room, room.prefill_requested, room.decode, room.phase_reached, seconds, room.outcome,
        room.cause.code if room.cause else "", room.began, sketched.lines, room.canary,
    )  # fmt: skip
