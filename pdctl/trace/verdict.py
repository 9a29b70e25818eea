"""The verdict on a case: its cause (by `ORDER`), how it ended, and notes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines import numerals
from pdctl.engines.base import Phase, Sign
from pdctl.quick_definitions import NamedTuple
from pdctl.trace.causes import (
    bootstrap_lookups,
    client_requests,
    dead_processes,
    pairing,
    stalled_transfers,
)
from pdctl.trace.causes.bootstrap_lookups import MOST_NAMED, destinations
from pdctl.trace.observed_deployment import on_hosts_of_their_own, sends_its_list
from pdctl.trace.room import Cause, RoomOutcome
from pdctl.trace.room_events import PATIENCE, is_canary, step_reached

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pdctl.logs.event import Event
    from pdctl.trace.case import Case, CauseFinding
    from pdctl.trace.joins import JoinableRoom

# In causal order: earlier causes bring about later ones. The first that fits is the cause.
ORDER: tuple[Callable[[Case], CauseFinding | None], ...] = (
    client_requests.turned_away,
    client_requests.sampled,
    client_requests.reused,
    client_requests.zero,
    bootstrap_lookups.crossed,
    bootstrap_lookups.unreachable,
    pairing.mismatch_logged,
    stalled_transfers.cause_logged,
    dead_processes.router_gone,
    dead_processes.decode_gone,
    dead_processes.prefill_gone,
    stalled_transfers.hung,
    bootstrap_lookups.misdirected,
    bootstrap_lookups.null_ports,
    bootstrap_lookups.unclaimed,
    dead_processes.crashed,
    pairing.attention_tp,
    pairing.full,
    pairing.leg_missing,
    client_requests.shared,
    client_requests.client_left,
    stalled_transfers.slow,
    stalled_transfers.never_completed,
    pairing.unannounced,
    dead_processes.first_request,
    client_requests.outlasted,
    client_requests.refused,
)
# Those that follow from what a log does not say, so not from a log that lacks lines.
FROM_SILENCE = frozenset(
    {
        pairing.full, pairing.leg_missing, pairing.unannounced, stalled_transfers.hung,
        stalled_transfers.never_completed,
    }
)  # fmt: skip
# Those that leave a room without a complete answer, so not to be asked of one that has it.
UNANSWERED = frozenset(
    {
        bootstrap_lookups.crossed, bootstrap_lookups.unreachable, bootstrap_lookups.misdirected,
        bootstrap_lookups.null_ports, bootstrap_lookups.unclaimed, client_requests.zero, client_requests.client_left,
        dead_processes.router_gone, dead_processes.decode_gone, dead_processes.prefill_gone, dead_processes.crashed,
        dead_processes.first_request, pairing.mismatch_logged, pairing.attention_tp, pairing.full, pairing.leg_missing,
        pairing.unannounced, stalled_transfers.hung, stalled_transfers.never_completed,
    }
)  # fmt: skip
# Causes that end a room even if no line about it says so: a process that had it died or crashed, or prefill and decode
# do not fit. A code belongs here if a room with this cause and without an end has failed, and does not hang.
FATAL = frozenset({"PD704", "PD705", "PD720", "PD707", "PD709", "PD302", "PD303", "PD304", "PD306", "PD308"})
CLIENT_LEFT = "PD706"
SEVERAL = {
    "requested": "lines of several prefills say they had the request",
    "contacted": "the page list went to several prefills",
    "decode": "lines of several decodes name the room",
}


class Verdict(NamedTuple):
    cause: Cause | None
    finding: CauseFinding | None
    consequences: tuple[str, ...]
    fix: str


def judge_room(case: Case) -> Verdict:
    if case.warm_up:
        return Verdict(None, None, (), "")
    found = [finding for check in _checks(case) if (finding := check(case)) is not None]
    if not found:
        return Verdict(None, None, (), "")
    from pdctl.catalogue.book import entry  # imported late: most rooms go well
    from pdctl.catalogue.entry import fill, fill_fix

    first, *rest = found
    seen = {first.code}
    consequences = []
    for finding in rest:
        if finding.code not in seen:
            seen.add(finding.code)
            consequences.append(f"{finding.code} {entry(finding.code).slug}: {finding.why}")
    known = entry(first.code)
    cause = Cause(
        first.code, known.slug, fill(known.headline, first.fills), first.why, _evident_side(case, first), first.instance
    )  # fmt: skip
    return Verdict(cause, first, tuple(consequences), first.fix or fill_fix(known.fix, first.fills))


def _evident_side(case: Case, finding: CauseFinding) -> str:
    """The side that the cause blames, "" if no line of that side was read: then it may have been another's doing."""
    read = {proof.event.role for proof in finding.proofs}
    if finding.side == "router":
        tried = any(one.lines and not one.lost for one in case.joined.attempts)
        return finding.side if tried or case.room_events.by("router") or "router" in read else ""
    if finding.side in ("prefill", "decode"):
        instances = case.deployment.prefills if finding.side == "prefill" else case.deployment.decodes
        return finding.side if instances or finding.side in read else ""
    return finding.side


def _checks(case: Case) -> Sequence[Callable[[Case], CauseFinding | None]]:
    """The causes that are possible at all: few of a room that was answered, one of a room that no line names."""
    if not case.room_events.events:
        return (dead_processes.first_request,)
    senseless = (UNANSWERED if case.done is not None else frozenset()) | (FROM_SILENCE if case.lost else frozenset())
    return [check for check in ORDER if check not in senseless]


def outcome(
    case: Case, rooms: Mapping[int, JoinableRoom], finding: CauseFinding | None
) -> tuple[RoomOutcome, Event | None]:
    """The outcome, and the line that shows it, if one does."""
    if case.warm_up:
        return RoomOutcome.UNKNOWN, None
    turned_away = next((event for event in case.room_events.by("router") if event.row.phase is Phase.REFUSED), None)
    if turned_away is not None:
        return RoomOutcome.REFUSED, turned_away
    ends_badly = (Phase.FAILED, Phase.ABORTED)
    refused = next((event for event in case.room_events.by("router") if event.row.phase in ends_badly), None)
    if refused is not None and refused.row.phase is Phase.ABORTED and case.done is not None:
        refused = None  # the client left after its answer was complete
    if finding is not None and finding.code == CLIENT_LEFT:
        return RoomOutcome.ABORTED, case.decode_failed or case.prefill_failed or refused
    broken = case.decode_failed or case.prefill_failed or refused
    if broken is not None:
        return RoomOutcome.FAILED if answered_as(case) is None else RoomOutcome.RETRIED, broken
    if case.done is not None:
        return RoomOutcome.OK, case.done
    if finding is not None and finding.code in FATAL and case.room_events.events:
        return RoomOutcome.FAILED if answered_as(case) is None else RoomOutcome.RETRIED, None
    pending = _pending(case, rooms)
    if pending is not None:
        return RoomOutcome.HUNG, pending
    lacking = _log_ends_early(case) or bool(case.lost and case.room_events.events)
    return (RoomOutcome.INCOMPLETE if lacking else RoomOutcome.UNKNOWN), None


def goes_on(case: Case, ended: RoomOutcome) -> bool:
    """Whether it began and lacks a final line it should have: it hung, a log stops, or a request has no answer."""
    if ended in (RoomOutcome.HUNG, RoomOutcome.INCOMPLETE):
        return bool(case.room_events.events)
    if ended is not RoomOutcome.UNKNOWN or case.warm_up:
        return False
    events = case.room_events.events
    came = {one.instance for one in events if one.proves(Sign.REQUEST_ARRIVED) or _is_dispatch(one)}
    over = {one.instance for one in events if one.row.phase is not None and one.row.phase.ends}
    return not came <= over


def _is_dispatch(event: Event) -> bool:
    return event.row.phase is Phase.DISPATCHED and not event.proves(Sign.CANARY)


def open_until(case: Case, ended: RoomOutcome) -> float | None:
    """If the room goes on, the time of the last line of the logs it appears in (epoch seconds), else None."""
    if not goes_on(case, ended):
        return None
    names = {event.instance for event in case.room_events.events}
    lasts = [one.last for name in names if (one := case.deployment.instances.get(name)) and one.last is not None]
    return max(lasts, default=None)


QUEUES = ("bootstrap", "inflight", "prealloc", "transfer")  # values of a batch line that count waiting rooms


def queues_behind(case: Case) -> Iterator[tuple[str, Event]]:
    """For each engine that had the room, its last batch line after the room's lines, if it counts waiting rooms."""
    for name in (*case.room_events.instances("prefill"), *case.room_events.instances("decode")):
        since = max((one.t for one in case.room_events.events if one.instance == name and one.t), default=0.0)
        batches = [
            event
            for event in case.around.once("batches", lambda: _batches(case.around))
            if event.instance == name and (event.t or 0.0) >= since
        ]
        held = [
            f"{batches[-1].values[each]} in its {each} queue"
            for each in QUEUES
            if batches and _count(batches[-1], each)
        ]
        if held:
            yield f"{name} still counts rooms that wait: {', '.join(held)}", batches[-1]


def _batches(lines: Iterable[Event]) -> list[Event]:
    return [event for event in lines if not event.values.keys().isdisjoint(QUEUES)]


def _count(event: Event, queue: str) -> int:
    return numerals.whole(event.values.get(queue)) or 0


def _pending(case: Case, rooms: Mapping[int, JoinableRoom]) -> Event | None:
    """The shutdown line that reports the room's request as pending: by its id, or because it can mean no other."""
    for name in {event.instance for event in case.room_events.events if event.role in ("prefill", "decode")}:
        for event in case.around.proving(Sign.DRAINED):
            if event.instance != name:
                continue
            left = event.values.get("left", "0")
            if any(rid in event.values.get("rids", "") for rid in case.room_events.rids.get(name, ())):
                return event
            if case.lost:
                continue
            open_rooms = [one.room for one in rooms.values() if one.decode == name and not (one.done or one.failed)]
            if left.isdigit() and left == str(len(open_rooms)) and case.room_events.room in open_rooms:
                return event
    return None


def _log_ends_early(case: Case) -> bool:
    """Whether the log of its decode ends right after the room's last line, without an order to end."""
    span, decode = case.room_events.span, case.decode
    if span is None or decode is None or decode.clean or not case.room_events.by("decode"):
        return False
    return decode.ends_behind(span[1])


def phase_reached(case: Case, ended: RoomOutcome) -> Phase | None:
    """The furthest step any line proves. A failure is not a step; success is the last one."""
    if ended is RoomOutcome.OK:
        return Phase.FINISHED
    found = [phase for event in case.room_events.events if (phase := step_reached(event)) is not None]
    if case.who.requested is not None:
        found.append(Phase.RECEIVED)
    if case.who.contacted is not None:
        found.append(Phase.HANDSHAKE)
    if case.who.arrived is not None:
        found.append(Phase.DECODE)
    if case.joined.attempts:
        found.append(Phase.DISPATCHED)
    steps = [phase for phase in found if not phase.ends]
    return max(steps, key=lambda phase: phase.order, default=None)


def room_notes(case: Case, verdict: Verdict, ended: RoomOutcome) -> tuple[str, ...]:
    return tuple(_room_notes(case, verdict, ended))


def _room_notes(case: Case, verdict: Verdict, ended: RoomOutcome) -> Iterator[str]:
    if case.warm_up:
        yield (
            f"PD716 room-zero: room {case.room_events.room} is no user's: engines and probes send it with a peer that "
            "is not there, for warm-up and health; no KV cache moves, and it says nothing about any pair"
        )
        return
    if is_canary(case.room_events):
        yield "the room is a canary, not a user's request: pdctl doctor or the router sent it to try the pair"
    if not case.room_events.events:
        yield f"no line of these logs names room {case.room_events.room}; it may have been sent elsewhere"
    for name in case.who.several:
        yield f"{SEVERAL[name]}: the room was sent twice, or used for two requests"
    for name, rids in case.room_events.rids.items():
        if len(rids) > 1:
            yield f"{name} had the room for {len(rids)} requests: {', '.join(rids)}"
    url = case.who.url
    if url is not None and case.deployment.at_url(url) is None:
        yield f"the router sent the request to {url}; none of these logs is its"
    until, span = open_until(case, ended), case.room_events.span
    if until is not None and span is not None and until > span[0]:
        yield f"no line ends it: it had lasted {until - span[0]:.3g} s at least when the last of its logs stops"
    if verdict.cause is None:
        yield from _looked_up(case)
    if ended is not RoomOutcome.OK:
        yield from _nulls(case, verdict)
        yield from _given_up(case)
    yield from _retries(case)


def _looked_up(case: Case) -> Iterator[str]:
    """What the bootstrap server answered to make the decode give the room up."""
    failed = case.decode_failed
    found = case.dialled(failed) if failed is not None and failed.proves(Sign.GAVE_UP_UNMET) else None
    answer = case.answered(failed, found[0]) if failed is not None and found is not None else None
    if answer is not None and found is not None:
        status, line = answer
        yield f"a server is there at {found[0]}, and answered the decode {status} ({line.place}): ask its own log why"


def _nulls(case: Case, verdict: Verdict) -> Iterator[str]:
    """What the router's list would do to some rooms, if nothing shows that it did so to this one."""
    router = case.router
    if verdict.cause is not None or router is None or router.start is None:
        return
    if not sends_its_list(router, case.deployment):
        return
    nulls = [one for one in router.prefills if one.port is None]
    several = len(nulls) > 1 and not on_hosts_of_their_own(nulls)
    if not (several or (nulls and router.cut)) or all(one.home for one in destinations(case, router)):
        return
    urls = list(dict.fromkeys(one.url for one in nulls))
    names = " and ".join(urls[:MOST_NAMED]) + (" and others" if router.cut or len(urls) > MOST_NAMED else "")
    yield (
        f"PD201 bootstrap-port-null: {router.name} sends no bootstrap port for {names}; a decode puts in its own, "
        "which is one prefill's at most: requests to the others hang. No line shows whether this room is one of them"
    )


def _given_up(case: Case) -> Iterator[str]:
    """A request given up in a bootstrap queue that may have had this room; no line says which room it had."""
    asked, met, span = case.who.requested, case.who.contacted, case.room_events.span
    if met is None or span is None or (asked is not None and not asked.by_elimination):
        return
    named = case.around.once("named", lambda: {event.rid for event in case.around if event.rid and event.room})
    for event in case.around.proving(Sign.GAVE_UP_REQUEST):
        late = event.t is not None and span[0] <= event.t <= span[0] + PATIENCE
        if late and event.instance != met.value and event.rid not in named:
            assert event.t is not None
            yield (
                f"a hint, no proof: {event.instance} gave up request {event.rid} in its bootstrap queue "
                f"{event.t - span[0]:g} s after this room began ({event.place}), and no line says which room that had"
            )
            return


def answered_as(case: Case) -> int | None:
    """The room of a later attempt at the same request that the router answered; None if none of its lines says so."""
    tried = _dispatched(case)
    if tried is None:
        return None
    for event in case.around:
        same = event.instance == tried.instance and event.values.get("request_id") == tried.values["request_id"]
        if same and event.row.phase is Phase.FINISHED and _attempt(event) > _attempt(tried):
            return event.room
    return None


def _dispatched(case: Case) -> Event | None:
    """The router's line that it sent the room, if it names the request and the attempt."""
    sent = (event for event in case.room_events.by("router") if event.row.phase is Phase.DISPATCHED)
    return next((event for event in sent if event.values.get("request_id") and event.values.get("attempt")), None)


def _attempt(event: Event) -> int:
    return numerals.whole(event.values.get("attempt")) or 0


def _retries(case: Case) -> Iterator[str]:
    again = answered_as(case)
    if again is not None:
        yield f"PD715 router-retried: the router tried the request again, and answered it under room {again}"
    tried = _dispatched(case)
    if tried is not None and _attempt(tried) > 1:
        yield f"PD715 router-retried: this was attempt {_attempt(tried)} of request {tried.values['request_id']}"
    listed = [attempt for attempt in case.joined.attempts if attempt.listed]
    if len(case.joined.attempts) != 1 or not listed:
        return
    one = listed[0]
    if one.number:
        yield f"PD715 router-retried: this was attempt {one.number} of {one.request}, under a room of its own"
    elif any(event.proves(Sign.RETRIED) for event in one.lines):
        yield f"PD715 router-retried: {one.request} was tried again, under another room"
