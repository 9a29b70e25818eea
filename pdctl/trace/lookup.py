"""Which room is meant: that of a request, the last one that failed, the slowest ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.errors import NotFoundError
from pdctl.trace import signs
from pdctl.trace.assemble import Tracer
from pdctl.trace.canaries import left_on_purpose
from pdctl.trace.hints import DIAGNOSE, Hints
from pdctl.trace.missing import LOG_REQUESTS, TIME_STATS
from pdctl.trace.room import Outcome
from pdctl.trace.summary import summaries

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdctl.logs.event import Event
    from pdctl.logs.library import Library

LIST = "`pdctl rooms` with the same paths lists the rooms there are"
BROKEN = (Outcome.FAILED, Outcome.HUNG)
NO_ROOM = "PD712"


def by_rid(library: Library, rid: str) -> int:
    """The room of the request with this id on any instance; the last one when it had several (a router's retry).

    NotFoundError when no line names the request, or none of them a room.
    """
    events = library.of_rid(rid)
    named = [(event, room) for event in events for room in _rooms(event, rid) if room]
    if named:
        return max(named, key=lambda pair: _when(pair[0]))[1]
    if not events:
        raise NotFoundError(f"no line of these logs names request {rid}", LIST)
    if any(event.row.cause == NO_ROOM for event in events):
        fix = "send it through the router, or with a bootstrap_room of its own"
        raise NotFoundError(f"request {rid} came without a room ({NO_ROOM}), so there is none to trace", fix)
    flags = f"`{LOG_REQUESTS}` or `{TIME_STATS}` on the engines writes request and room into one line"
    raise NotFoundError(f"no line of these logs says which room request {rid} had", flags)


def last_failed(library: Library) -> int:
    """A user's before a canary, and never a canary that was left on purpose; NotFoundError when no room failed."""
    broken = [one for one in summaries(library) if one.outcome in BROKEN]
    broken.sort(key=lambda one: (one.first_seen or 0.0) + (one.seconds or 0.0), reverse=True)
    tracer, spare = Tracer(library), None
    for one in broken:
        room = tracer.trace(one.room)  # a row of a large log does not tell whose request it was
        if room.outcome not in BROKEN:
            continue
        if not room.canary:
            return one.room
        if spare is None and not left_on_purpose(room):
            spare = one.room
    if spare is not None:
        return spare
    raise _nothing_failed(library)


def _nothing_failed(library: Library) -> NotFoundError:
    """That no line names a room that failed is no good news where an instance died or no line was understood."""
    hints = Hints(library)
    if hints.died:
        names = ", ".join(hints.died)
        return NotFoundError(f"no line names a room that failed, but {names} died", DIAGNOSE)
    if hints.strange:
        return NotFoundError(f"no line names a room that failed; {'; '.join(hints.strange)}", DIAGNOSE)
    return NotFoundError("no room failed in these logs", LIST)


def slowest(library: Library, n: int) -> tuple[int, ...]:
    """At most n rooms, slowest first: by the time from first to last line, or what a time-out says it waited.

    NotFoundError when no line has a room and a time.
    """
    timed = [one for one in summaries(library) if one.seconds is not None]
    if not timed:
        raise NotFoundError("no room in these logs has a time", LIST)
    return tuple(one.room for one in sorted(timed, key=lambda one: -(one.seconds or 0.0))[:n])


def _rooms(event: Event, rid: str) -> Iterable[int]:
    """Of a batch the room that goes with this id."""
    if rid in (event.rid, event.values.get("request_id")) and event.room is not None:
        return (event.room,)
    return [room for room in signs.rooms(event) if signs.rid(event, room) == rid]


def _when(event: Event) -> tuple[float, str, int]:
    """Later lines win; where a line has no time, the place in its file counts."""
    return (event.t if event.t is not None else float("-inf"), event.place.file, event.place.offset)
