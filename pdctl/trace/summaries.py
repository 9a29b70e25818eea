"""All rooms of the logs, one summary each; rooms chosen by a property; and the notes such a list needs."""

from __future__ import annotations

from math import isfinite
from types import MappingProxyType
from typing import TYPE_CHECKING

from pdctl.engines.base import Level, Sign
from pdctl.errors import NotFoundError
from pdctl.logs.event import Event, Place
from pdctl.quick_definitions import NamedTuple
from pdctl.trace.attribution import attribute
from pdctl.trace.case import Case
from pdctl.trace.causes import bootstrap_lookups, client_requests
from pdctl.trace.deployment_report import SourceKind, kind_of
from pdctl.trace.joins import NO_ATTEMPT
from pdctl.trace.proven_deaths import proven_deaths, shows_death
from pdctl.trace.room import BROKEN, RoomOutcome, RoomSummary
from pdctl.trace.room_events import RoomEvents, is_canary, left_on_purpose, lost_lines, rid_of, rooms_of
from pdctl.trace.tracer import LOG_REQUESTS, TIME_STATS, WHOLE, Tracer
from pdctl.trace.verdict import CLIENT_LEFT, open_until, outcome, phase_reached

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pdctl.engines.base import Phase, Row
    from pdctl.logs import all_rooms
    from pdctl.logs.library import Library
    from pdctl.trace.observed_deployment import ObservedDeployment
    from pdctl.trace.room import Room
    from pdctl.trace.room_events import LostLines

TRACED = 200  # rooms traced in full if the logs are small; a few milliseconds each
# The outcomes a list is read for come first.
URGENT = (
    RoomOutcome.FAILED, RoomOutcome.HUNG, RoomOutcome.INCOMPLETE, RoomOutcome.UNKNOWN, RoomOutcome.RETRIED,
    RoomOutcome.ABORTED, RoomOutcome.REFUSED, RoomOutcome.OK,
)  # fmt: skip
# Causes that need only the room's own lines and the start lines; the others depend on what happened around it.
CAUSES_BY_KINDS = (client_requests.reused, bootstrap_lookups.crossed)
LIST = "`pdctl rooms` with the same paths lists the rooms there are"
NO_ROOM = "PD712"
SEARCHED_FOR_DEATHS = 1 << 28  # bytes of logs up to which all of them are searched for deaths
DIAGNOSE = "`pdctl diagnose` with the same paths says what happened"


def room_summaries(tracer: Tracer) -> tuple[RoomSummary, ...]:
    """Every room a line names, without warm-ups and health checks, in the order of their first lines.

    One pass over the logs gives what each room's own lines prove. If the logs have at most 8 MiB, the 200 rooms that
    most need it (those that broke, then the latest) are traced in full, so that a row says what `trace` says.
    """
    library = tracer.library
    known_kinds: dict[
        int, tuple[all_rooms.LineKinds, KindsSummary]
    ] = {}  # keeps the object, so that its id is not reused
    found: dict[int, RoomSummary] = {}
    lost: tuple[LostLines, ...] | None = None
    for seen in library.rooms():
        if lost is None:  # all logs have just been read: losses need no second look
            lost = lost_lines(library, library.losses)
        if seen.room in tracer.deployment.warm_ups:
            continue
        known = known_kinds.get(id(seen.line_kinds))
        if known is None:
            known = known_kinds[id(seen.line_kinds)] = (seen.line_kinds, _known_of(seen.line_kinds, tracer))
        found[seen.room] = _listed(seen, known[1], lost)
    if sum(log.size for log in library.logs) <= WHOLE:
        for summary in _urgent(found.values()):
            room = tracer.trace(summary.room)
            if room.warm_up:
                del found[summary.room]
            else:
                found[summary.room] = _traced(room, summary)
    return tuple(sorted(found.values(), key=lambda one: (one.first_seen is None, one.first_seen or 0.0, one.room)))


def _known_of(told: all_rooms.LineKinds, tracer: Tracer) -> KindsSummary:
    """What the kinds of lines tell; nothing if a log holds lines of several processes that cannot be told apart."""
    if any(seen.instance in tracer.mixed for seen in told.seen):
        return KindsSummary(None, None, None, RoomOutcome.UNKNOWN, "")
    return summary_of_kinds(told, tracer.deployment)


def _listed(seen: all_rooms.RoomSeen, known: KindsSummary, lost: Iterable[LostLines]) -> RoomSummary:
    timed = isfinite(seen.first) and isfinite(seen.last)
    lacking = known.outcome is RoomOutcome.UNKNOWN and any(one.may_name(seen.first, seen.last) for one in lost)
    ended = RoomOutcome.INCOMPLETE if lacking else known.outcome
    last = seen.last if known.open_until is None else max(seen.last, known.open_until)
    return RoomSummary(
        seen.room, known.prefill, known.decode, known.phase, last - seen.first if timed else None, ended,
        known.code, seen.first if timed else None, seen.lines, known.canary, known.open_until is not None,
    )  # fmt: skip


def _urgent(found: Iterable[RoomSummary]) -> Iterator[RoomSummary]:
    ranked = sorted(found, key=lambda one: (URGENT.index(one.outcome), -(one.first_seen or 0.0)))
    return iter(ranked[:TRACED])


def _traced(room: Room, listed: RoomSummary) -> RoomSummary:
    """The summary of a traced room, which began before its first line if a timeout line reports a wait before it."""
    seconds, began = listed.seconds, room.began
    if began is not None and room.ended is not None:
        waited = min((one.start for one in room.durations if one.start is not None), default=0.0)
        began += min(0.0, waited)
        seconds = max(room.ended, room.open_until or room.ended) - began
    return RoomSummary(
        room.room, room.prefill_requested, room.decode, room.phase_reached, seconds, room.outcome,
        room.cause.code if room.cause else "", began, listed.lines, room.canary, room.open_until is not None,
    )  # fmt: skip


class KindsSummary(NamedTuple):
    prefill: str | None
    decode: str | None
    phase: Phase | None
    outcome: RoomOutcome
    code: str
    canary: bool = False
    open_until: float | None = None


def summary_of_kinds(told: all_rooms.LineKinds, deployment: ObservedDeployment) -> KindsSummary:
    """None, "" and UNKNOWN where the kinds of lines alone do not tell; `trace` may say more, never otherwise."""
    room_events = RoomEvents(1, tuple(_one_line_of_each(told)), {})
    who = attribute(room_events, deployment, NO_ATTEMPT, (), {}, None)
    case = Case(room_events, who, deployment, (), NO_ATTEMPT)
    ended, _ = outcome(case, {}, None)
    decode = who.decode or who.sent_decode
    found = next((finding for check in CAUSES_BY_KINDS if (finding := check(case)) is not None), None)
    if found is None and ended is RoomOutcome.FAILED and client_requests.only_aborted(case):
        return KindsSummary(
            who.requested.value if who.requested else None, decode.value if decode else None,
            phase_reached(case, RoomOutcome.ABORTED), RoomOutcome.ABORTED, CLIENT_LEFT, is_canary(room_events),
        )  # fmt: skip
    return KindsSummary(
        who.requested.value if who.requested else None, decode.value if decode else None,
        phase_reached(case, ended), ended, found.code if found else "",
        is_canary(room_events), open_until(case, ended) if found is None else None,
    )  # fmt: skip


def _one_line_of_each(told: all_rooms.LineKinds) -> Iterator[Event]:
    """One line of each kind, about a room numbered 1, without a time."""
    for seen in told.seen:
        for at, row in enumerate(seen.rows):
            place = Place(seen.instance, at + 1, at)
            yield Event(seen.instance, seen.role, "", row, _values(row), None, 0.0, place, "")


def _values(row: Row) -> MappingProxyType[str, str]:
    values = {"room": "1"}
    if "(?P<rid>" in row.pattern:
        values["rid"] = "1"
    if Sign.REQUEST_FINISHED in row.proves:
        values["finish"] = "'length'"  # a request that was cut short has its own row
    return MappingProxyType(values)


def by_rid(library: Library, rid: str) -> int:
    """The room of the request with this id on any instance; the last one if it had several (a router's retry).

    Raise NotFoundError if no line names the request, or none of those lines names a room.
    """
    events = library.of_rid(rid)
    named = [(event, room) for event in events for room in _rooms_of_request(event, rid) if room]
    if named:
        return max(named, key=lambda pair: _when(pair[0]))[1]
    if not events:
        where = "these logs" if library.limits is None else "that time"
        raise NotFoundError(f"no line of {where} names request {rid}", LIST)
    if any(event.row.cause == NO_ROOM for event in events):
        fix = "send it through the router, or with a bootstrap_room of its own"
        raise NotFoundError(f"request {rid} came without a room ({NO_ROOM}), so there is none to trace", fix)
    flags = f"`{LOG_REQUESTS}` or `{TIME_STATS}` on the engines writes request and room into one line"
    raise NotFoundError(f"no line of these logs says which room request {rid} had", flags)


def last_failed(tracer: Tracer) -> int:
    """The room that failed last: a user's before a canary, never a canary left on purpose. NotFoundError if none."""
    broken = [one for one in room_summaries(tracer) if one.outcome in BROKEN]
    broken.sort(key=lambda one: (one.first_seen or 0.0) + (one.seconds or 0.0), reverse=True)
    spare = None
    for one in broken:
        room = tracer.trace(one.room)  # in large logs a summary does not tell whose request it was
        if room.outcome not in BROKEN:
            continue
        if not room.canary:
            return one.room
        if spare is None and not left_on_purpose(room):
            spare = one.room
    if spare is not None:
        return spare
    raise _nothing_failed(tracer)


def _nothing_failed(tracer: Tracer) -> NotFoundError:
    """The error to raise; it says so if an instance died or a log was not understood, as then it is no good news."""
    notes = ListNotes(tracer)
    if notes.died:
        names = ", ".join(notes.died)
        return NotFoundError(f"no line names a room that failed, but {names} died", DIAGNOSE)
    if notes.lost or notes.strange:
        strange = "; ".join((*notes.lost, *notes.strange))
        return NotFoundError(f"no line names a room that failed; {strange}", DIAGNOSE)
    return NotFoundError("no room failed in these logs", LIST)


def slowest(tracer: Tracer, n: int) -> tuple[int, ...]:
    """At most n rooms, slowest first, by the time from first to last line or the wait a timeout line reports.

    Raise NotFoundError if no line has a room and a time.
    """
    timed = [one for one in room_summaries(tracer) if one.seconds is not None]
    if not timed:
        raise NotFoundError("no room in these logs has a time", LIST)
    return tuple(one.room for one in sorted(timed, key=lambda one: -(one.seconds or 0.0))[:n])


def _rooms_of_request(event: Event, rid: str) -> Iterable[int]:
    """The rooms the line gives the request; in a batch, the room at the position of this id."""
    if rid in (event.rid, event.values.get("request_id")) and event.room is not None:
        return (event.room,)
    return [room for room in rooms_of(event) if rid_of(event, room) == rid]


def _when(event: Event) -> tuple[float, str, int]:
    """Sort key: later lines win; lines without a time compare by their place in the file."""
    return (event.t if event.t is not None else float("-inf"), event.place.file, event.place.offset)


class ListNotes:
    """died: instances that ended without being told to. quiet: engines that write no line about a healthy room.

    lost: one sentence on each log whose process could not write all of its lines.
    streams: what is missing of the logs. strange: one sentence on each log that was not understood. zones: on logs that
    are not in this machine's zone.
    whole: the logs are not limited to a window of time.
    known: some log is an engine's or a router's, and a line was written in the requested time window.
    """

    def __init__(self, tracer: Tracer) -> None:
        library, deployment = tracer.library, tracer.deployment
        small = sum(log.size for log in library.logs) <= SEARCHED_FOR_DEATHS
        lines = (
            list(library.said(shows_death)) if small else [x for i in deployment.instances.values() for x in i.final]
        )
        self.died = tuple(dict.fromkeys(each.death.instance.name for each in proven_deaths(library, deployment, lines)))
        engines = (*deployment.prefills, *deployment.decodes)
        self.quiet = tuple(
            one.name
            for one in engines
            if one.identity.level is not Level.DEBUG and not (one.identity.log_requests or one.identity.time_stats)
        )
        self.lost = tuple(map(str, lost_lines(library, library.losses)))
        found = {log: kind_of(library, log) for log in library.logs}
        self.streams = library.stream_notes
        self.strange = tuple(
            f"{log.instance}: {one.said}" for log, one in found.items() if one.said and (log.size or not log.notes)
        )
        self.zones = library.zone_notes
        self.whole = library.limits is None
        empty = not self.whole and library.empty
        self.known = not empty and any(
            one.kind in (SourceKind.ENGINE, SourceKind.ROUTER, SourceKind.MIXED) for one in found.values()
        )

    def lines(self, listed: bool) -> tuple[str, ...]:
        """One sentence each. listed: some room was found, so log levels that hide healthy rooms need no mention."""
        said = [f"{name} died: {DIAGNOSE}" for name in self.died]
        if not listed and self.known and not self.died:
            if self.quiet:
                flags = f"{LOG_REQUESTS} or {TIME_STATS}"
                said.append(
                    f"no line names a room: {', '.join(self.quiet)} write none about a healthy room without {flags}"
                )
            else:
                said.append(f"no line of {'these logs' if self.whole else 'that time'} names a room")
        return (*said, *self.lost, *self.streams, *self.strange, *self.zones)

    def of_one(self) -> tuple[str, ...]:
        """Why a room requested by its number may have left no line, even if other rooms did."""
        said = [f"{name} died: {DIAGNOSE}" for name in self.died]
        if self.quiet and not self.died:
            flags = f"{LOG_REQUESTS} or {TIME_STATS}"
            said.append(f"{', '.join(self.quiet)} write no line about a healthy room without {flags}")
        return (*said, *self.lost, *self.streams, *self.strange)
