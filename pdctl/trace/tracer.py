"""Trace rooms: from a library of logs to everything they tell about each."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from pdctl.engines import message_details
from pdctl.engines.base import Level, Phase, Sign
from pdctl.engines.row_matching import adapter
from pdctl.quick_definitions import NamedTuple
from pdctl.trace.attribution import Attribution, attribute
from pdctl.trace.case import NEAR, Case, SurroundingLines, warm_up
from pdctl.trace.joins import NO_ATTEMPT, Joins, RequestCounts, cut_answers, joinable_rooms
from pdctl.trace.observed_deployment import PLACEHOLDER, SEPARATE, ObservedDeployment, mixed_logs, parse_address
from pdctl.trace.room import HOW_IT_ENDED, Evidence, Lane, MissingEvidence, Room, RoomOutcome, RoomStep, WrongPrefill
from pdctl.trace.room_events import (
    PATIENCE,
    gather_room_events,
    in_file_order,
    in_time_order,
    is_abort_notice,
    is_canary,
    lost_lines,
    step_reached,
)
from pdctl.trace.router_attempts import first_stamp, possible_attempts
from pdctl.trace.timeline import RoomClock, at_router, durations, longest_gap, offsets
from pdctl.trace.verdict import (
    answered_as,
    judge_room,
    open_until,
    outcome,
    phase_reached,
    queues_behind,
    room_notes,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pdctl.logs.event import Event
    from pdctl.logs.library import Library
    from pdctl.trace.joins import CutAnswer, JoinableRoom
    from pdctl.trace.observed_deployment import ObservedInstance
    from pdctl.trace.room_events import Conclusion, LostLines, RoomEvents
    from pdctl.trace.verdict import Verdict

WHOLE = 8 << 20  # bytes of logs up to which all of them is examined; above, only what lies around the room
AFTER = 90.0  # seconds after a room's last line: a router's health check notices a dead worker within a minute
CLOCKS_APART = 2.0  # seconds by which clocks of different hosts are assumed to differ at most
ROLES = ("router", "prefill", "decode", "")

LOG_REQUESTS = "--log-requests --log-requests-level 0"
TIME_STATS = "--enable-request-time-stats-logging"
DEBUG = "--log-level debug"
NO_LOG = "give the missing log to trace-room as well"


class Surroundings(NamedTuple):
    """What a stretch of the logs holds besides the room: known lines, other rooms, and what follows for all of them."""

    lines: SurroundingLines
    rooms: Mapping[int, JoinableRoom]
    joins: Joins
    counts: RequestCounts | None
    cut_answers: tuple[CutAnswer, ...]
    lost: tuple[LostLines, ...]


class Tracer:
    """Trace rooms of one library; what concerns all of them is read once."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.deployment = ObservedDeployment.of(library)
        self.mixed = mixed_logs(library)
        self._whole: Surroundings | None = None
        self._routers = tuple(log for log in library.logs if library.identity(log).role == "router")
        self._begins = {log.instance: first_stamp(library, log) for log in self._routers}

    @cached_property
    def _incomplete(self) -> frozenset[str]:
        """Routers whose logs have truncated lines; asked for by no list of the rooms of large logs."""
        return frozenset(log.instance for log in self._routers if self.library.has_incomplete_lines(log))

    def trace(self, room: int) -> Room:
        """What the logs tell about `room`. If no line names it, it has no events, and nothing about it is known."""
        room_events = gather_room_events(self.library, room)
        around = self._surroundings(room_events)
        joined = around.joins.of(room) if room in around.rooms else NO_ATTEMPT
        settled = around.counts.arrived(room) if around.counts else None
        deployment = self.deployment.at(room_events.span[0] if room_events.span else None)
        who = Attribution()
        if room_events.events and not warm_up(room_events, deployment):
            who = attribute(room_events, deployment, joined, around.lines, around.rooms, settled)
        case = Case(
            room_events, who, deployment, around.lines, joined, around.rooms.get(room), around.cut_answers, around.lost
        )
        verdict = judge_room(case)
        if verdict.finding is not None and verdict.finding.asked is not None:
            case = case.with_requested(verdict.finding.asked)
        ended, shown = outcome(case, around.rooms, verdict.finding)
        told = room_report(case, ended, shown, verdict, find_missing_evidence(case, ended, verdict.fix))
        told = told._replace(notes=(*told.notes, *self.library.stream_notes, *self.library.zone_notes))
        unnamed = any(event.instance in self.mixed for event in room_events.events)
        return _without_verdict(told, self.mixed) if unnamed else told

    def _surroundings(self, room_events: RoomEvents) -> Surroundings:
        if sum(log.size for log in self.library.logs) <= WHOLE:
            if self._whole is None:
                self._whole = self._study(self.library.context(float("-inf"), float("inf")), whole=True)
            return self._whole
        span = room_events.span
        if span is None:
            return self._study(self._finals(), whole=False)
        lines = self.library.context(span[0] - PATIENCE, span[1] + AFTER, focus=span)
        return self._study((*self._finals(), *lines), whole=False, complete=not self._cut())

    def _cut(self) -> bool:
        """Whether a router's log was too long to read fully around the room, so the room's attempt may be missing."""
        routers = {one.name for one in self.deployment.instances.values() if one.role == "router"}
        paths = [part.path for log in self.library.logs if log.instance in routers for part in log.parts]
        return any(note.startswith(path) for note in self.library.notes for path in paths)

    def _study(self, lines: Iterable[Event], *, whole: bool, complete: bool = True) -> Surroundings:
        found = SurroundingLines(
            in_file_order({(line.place.file, line.place.offset, line.row.id): line for line in lines}.values())
        )
        rooms = joinable_rooms(found, self.deployment)
        # Counting needs the logs from their beginnings, without a gap.
        lost = lost_lines(self.library, found)
        counted = whole and not lost
        counts = RequestCounts(found, rooms, (one.name for one in self.deployment.decodes)) if counted else None
        lacking = self._incomplete.union(one.instance for one in lost)
        tried = possible_attempts(found, self.deployment, self._begins, lacking, whole=whole) if complete else ()
        joins = Joins(rooms, tried, self.deployment, self._slack())
        return Surroundings(found, rooms, joins, counts, cut_answers(found, self.deployment.decodes), lost)

    def _slack(self) -> float:
        urls = [one.url for starts in self.deployment.history for router in starts for one in router.prefills]
        return (
            0.0
            if all(address.loopback for address in map(parse_address, urls) if address is not None)
            else CLOCKS_APART
        )

    def _finals(self) -> tuple[Event, ...]:
        return tuple(event for one in self.deployment.instances.values() for event in one.final)


def room_report(
    case: Case, ended: RoomOutcome, shown: Event | None, verdict: Verdict, missing: tuple[MissingEvidence, ...]
) -> Room:
    who = case.who
    lines = _lines(case)
    lanes = _lanes(case, lines)
    shifts, clocks = offsets(lines, [lane.instance for lane in lanes])
    if verdict.cause is not None and verdict.cause.code == "PD717":  # late messages were left unread: no clock is wrong
        shifts, clocks = {}, ()
    common = RoomClock(lines, shifts)
    began, ended_at = common.began, common.ended
    since_began = common.since_began

    steps = tuple(_sorted(_step(event, since_began(event), common.step_s) for event in lines))
    measured = durations(case.room_events.events, common.exactly)
    if began is not None:
        measured += at_router(case.joined.attempts, began)
    measured = common.started(measured)
    code = verdict.cause.code if verdict.cause else ""
    until = open_until(case, ended)
    return Room(
        case.room_events.room,
        {name: ", ".join(rids) for name, rids in case.room_events.rids.items()},
        ended,
        _value(who.requested),
        _value(who.contacted),
        _value(who.decode or who.sent_decode),
        phase_reached(case, ended),
        verdict.cause,
        steps,
        _evidence(case, verdict, shown, until is not None),
        missing,
        verdict.fix,
        began,
        ended_at,
        lanes,
        measured,
        longest_gap(steps, measured, code),
        clocks,
        _wrong(who.requested, who.contacted),
        verdict.consequences,
        tuple(_evidence_of(event, "an effect, not the cause") for event in lines if event.row.echo),
        {name: known.why for name, known in _attributes(case) if known is not None},
        room_notes(case, verdict, ended),
        case.warm_up,
        is_canary(case.room_events),
        until,
        answered_as(case),
    )


def _lines(case: Case) -> tuple[Event, ...]:
    """The room's own lines, and the router's lines of its attempt if only one is possible."""
    found = list(case.room_events.events)
    listed = [attempt for attempt in case.joined.attempts if attempt.listed]
    if len(case.joined.attempts) == len(listed) == 1:
        seen = {(event.place.file, event.place.offset) for event in found}
        found += [event for event in listed[0].lines if (event.place.file, event.place.offset) not in seen]
    return in_time_order(found)


def _lanes(case: Case, lines: Sequence[Event]) -> tuple[Lane, ...]:
    found: dict[str, Lane] = {}
    for name, known in _attributes(case):
        if known is not None:
            role = "decode" if name == "decode" else "prefill"
            found.setdefault(known.value, Lane(known.value, role, known.why))
    for event in lines:
        found.setdefault(event.instance, Lane(event.instance, event.role, "its lines name the room or its request"))
    return tuple(sorted(found.values(), key=lambda lane: ROLES.index(lane.role) if lane.role in ROLES else len(ROLES)))


def _attributes(case: Case) -> tuple[tuple[str, Conclusion | None], ...]:
    who = case.who
    decode = who.decode or who.sent_decode
    return (("prefill_requested", who.requested), ("prefill_contacted", who.contacted), ("decode", decode))


def _evidence(case: Case, verdict: Verdict, shown: Event | None, open_: bool) -> tuple[Evidence, ...]:
    """The lines the verdict rests on, then those the attributes rest on, each once. open_: no line ends the room."""
    found: dict[tuple[str, int], Evidence] = {}
    proofs = list(verdict.finding.proofs) if verdict.finding else []
    said = [(proof.says, proof.event) for proof in proofs]
    for name, known in _attributes(case):
        if known is not None:
            said += [(f"{name} is {known.value}: {known.why}", event) for event in known.events]
    if case.who.arrived is not None:
        said += [(f"the KV cache reached it: {case.who.arrived.why}", event) for event in case.who.arrived.events]
    if shown is not None:
        said.append((HOW_IT_ENDED, shown))
    if open_:
        said += queues_behind(case)
    for says, event in said:
        found.setdefault((event.place.file, event.place.offset), _evidence_of(event, says))
    return tuple(found.values())


def _evidence_of(event: Event, says: str) -> Evidence:
    return Evidence(event.instance, event.place.path, event.place.line, event.text, says)


def _step(event: Event, delta: float | None, step_s: float) -> RoomStep:
    return RoomStep(
        event.instance, event.role, event.rank, event.phase, event.t, delta, max(event.uncertainty_s, step_s),
        event.place.path,
        event.place.line, event.place.offset, event.text, event.row.id, event.rid or "",
        event.row.echo or is_abort_notice(event),
    )  # fmt: skip


def _sorted(steps: Iterable[RoomStep]) -> list[RoomStep]:
    """Sort by time on the common clock; a line without a time stays after the line above it.

    Lines of different files with the same time are put in the order a room usually takes.
    """
    keyed: list[tuple[float, int, int, RoomStep]] = []
    seen: dict[str, tuple[float, int]] = {}
    for at, step in enumerate(steps):
        before, reached = seen.get(step.file, (float("-inf"), 0))
        moment = step.delta_s if step.delta_s is not None else before
        usual = _usual(step) if moment > before else max(_usual(step), reached)
        seen[step.file] = (moment, usual)
        keyed.append((moment, usual, at, step))
    return [step for *_, step in sorted(keyed, key=lambda key: key[:3])]


def _usual(step: RoomStep) -> int:
    """The usual order of steps: final steps last, the router's after those it waits for."""
    if step.phase is None:
        return 0
    return step.phase.order + (100 if step.role == "router" and step.phase.ends else 0)


def _wrong(asked: Conclusion | None, met: Conclusion | None) -> WrongPrefill | None:
    if asked is None or met is None or asked.value == met.value:
        return None
    return WrongPrefill(asked.value, met.value, asked.by_elimination)


def _value(known: Conclusion | None) -> str | None:
    return known.value if known else None


def _without_verdict(room: Room, among: Iterable[str]) -> Room:
    """The room without anything that depends on who wrote a line; only a failure that a line states remains."""
    several = ", ".join(sorted({step.instance for step in room.events} & set(among)))
    what = f"which process wrote which line: {several} holds lines of several processes, and none names its own"
    stated = room.outcome in (RoomOutcome.FAILED, RoomOutcome.RETRIED)
    return room._replace(
        outcome=room.outcome if stated else RoomOutcome.UNKNOWN, prefill_requested=None,
        prefill_contacted=None, decode=None, cause=None, wrong_prefill=None, consequences=(), fix="", gap=None,
        evidence=(), known={}, missing_evidence=(MissingEvidence(what, SEPARATE),),
        notes=(f"no verdict: {what}",),
    )  # fmt: skip


def find_missing_evidence(case: Case, outcome: RoomOutcome, fix: str) -> tuple[MissingEvidence, ...]:
    """One entry for each thing that stayed unknown, in the order a room goes through them."""
    return () if case.warm_up else tuple(dict.fromkeys(_missing_evidence(case, outcome, fix)))


def _missing_evidence(case: Case, outcome: RoomOutcome, fix: str) -> Iterator[MissingEvidence]:
    who, deployment = case.who, case.deployment
    if outcome is not RoomOutcome.OK:
        yield from (one.missing_evidence for one in case.lost)
    for role, instances in (("prefill", deployment.prefills), ("decode", deployment.decodes)):
        if not instances:
            yield MissingEvidence(f"no {role}'s log is here", NO_LOG)
    if who.requested is None or who.requested.by_elimination:
        yield from _missing_request(case)
    if who.contacted is None and not _nobody(case):
        yield MissingEvidence("which prefill got the decode's page list", _contact_flag(case))
    if who.decode is None and who.sent_decode is None and deployment.decodes:
        quiet = [one for one in deployment.decodes if not one.identity.log_requests]
        if quiet:
            yield MissingEvidence("which decode had the room", f"{LOG_REQUESTS} on {_names(quiet)}")
        else:
            yield MissingEvidence("which decode had the room: none of them logged it", _more_logs(case, "decodes"))
    timed = next((event for event in case.room_events.by("decode") if event.proves(Sign.DECODE_TIMES)), None)
    if PLACEHOLDER in fix:
        yield MissingEvidence("the bootstrap ports of the prefills", "give their logs from the start (server_args=…)")
    if outcome in (RoomOutcome.UNKNOWN, RoomOutcome.INCOMPLETE) and timed is not None:
        left = f"how the room ended: {timed.instance} had done its part and logged no answer, as for a client that left"
        yield MissingEvidence(left, "read the log of the router, or ask the client")
    elif outcome in (RoomOutcome.UNKNOWN, RoomOutcome.INCOMPLETE):
        flag = f"{TIME_STATS} on {_names((*deployment.prefills, *deployment.decodes))}"
        yield MissingEvidence("how the room ended: a room that goes well leaves no line", flag)


def _missing_request(case: Case) -> Iterator[MissingEvidence]:
    deployment = case.deployment
    if any(message_details.unreached_leg(event.text) == "prefill" for event in case.room_events.by("router")):
        return  # no prefill got it: the router could not connect
    if case.who.url is not None and deployment.at_url(case.who.url) is None:
        yield MissingEvidence(f"the router sent the request to {case.who.url}, which none of these logs is", NO_LOG)
        return
    quiet = [one for one in deployment.prefills if not one.identity.log_requests]
    if quiet or not deployment.prefills:
        flag = f"{LOG_REQUESTS} on {_names(quiet)}" if quiet else NO_LOG
        yield MissingEvidence("which prefill got the HTTP request", flag)
    elif case.prefill is not None:
        yield MissingEvidence(f"whether {case.prefill.name} still got the HTTP request", "give the rest of its log")
    else:
        what = "which prefill got the HTTP request: none of them logged it"
        yield MissingEvidence(what, _more_logs(case, "prefills"))
    for name, flag in _routers(case):
        yield MissingEvidence(f"which pair {name} chose", flag)


def _more_logs(case: Case, role: str) -> str:
    """The advice to give the logs of all instances of a role, unless all that the routers list have been read."""
    routers = case.deployment.routers
    urls = [url for router in routers for url in (*(target.url for target in router.prefills), *router.decodes)]
    if not urls or any(router.cut for router in routers) or any(case.deployment.at_url(url) is None for url in urls):
        return f"give the logs of all {role}"
    return "check the room's number, or ask the client: the logs of all that the router lists were read"


def _routers(case: Case) -> Iterator[tuple[str, str]]:
    routers = [one for one in case.deployment.instances.values() if one.role == "router"]
    for one in routers:
        # Rust routers log the pair at DEBUG; none of them logs the room.
        known = adapter(one.identity.speaker)
        if known is not None and known.pairs_at_debug and one.identity.level is not Level.DEBUG:
            yield one.name, f"{DEBUG} on {one.name}"


def _nobody(case: Case) -> bool:
    """Whether no page list was sent: the decode gave up or died before, or prefills that log every one got none."""
    failed = case.decode_failed
    if failed is not None and step_reached(failed) is Phase.PREALLOC:
        return True
    prefills = case.deployment.prefills
    told = bool(prefills) and all(one.names_every_room for one in prefills)
    return told or _decode_was_dead(case)


def _decode_was_dead(case: Case) -> bool:
    """Whether the only decode that can have had the room was dead before it began."""
    span, decode = case.room_events.span, case.decode
    death = case.deaths.get(decode.name) if decode is not None and case.who.decode is None else None
    return death is not None and span is not None and death.since <= span[0] + NEAR


def _contact_flag(case: Case) -> str:
    """The flag that reveals the contact: NIXL logs the handshake at DEBUG; mooncake never does, so log the requests."""
    engines = (*case.deployment.prefills, *case.deployment.decodes)
    if any(one.identity.backend == "mooncake" for one in engines):
        return f"{LOG_REQUESTS} on {_names(case.deployment.decodes)} (mooncake logs no handshake at any level)"
    return f"{DEBUG} on {_names(case.deployment.prefills)}"


def _names(instances: Iterable[ObservedInstance]) -> str:
    return ", ".join(one.name for one in instances) or "every engine"
