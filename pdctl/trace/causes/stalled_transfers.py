"""Prefill and decode met, but the KV cache came slowly or not at all: one side froze, or the transfer stalled."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from pdctl.engines import message_details
from pdctl.engines.base import Phase, Sign
from pdctl.quick_definitions import NamedTuple
from pdctl.trace.case import MISSES, NEAR, Case, CauseFinding, Proof, misses
from pdctl.trace.causes.dead_processes import decode_gone
from pdctl.trace.room_events import seconds_waited
from pdctl.trace.timeline import transfers_measured

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pdctl.logs.event import Event
    from pdctl.trace.observed_deployment import ObservedInstance

# Codes whose lines mean something only next to other lines; other causes look for them. A code belongs here if
# `cause_logged` must not take such a line as the answer.
ELSEWHERE = frozenset(
    {"PD205", "PD302", "PD303", "PD304", "PD325", "PD706", "PD707", "PD709", "PD714", "PD715", "PD703", "PD704"}
)
BROKEN = "PD409"  # written by the prefill, about its transfer
UNREACHED = "PD210"  # written by the decode, about an address that the prefill gave
SLOW = 1.0  # GB/s; a healthy transfer on any fabric is faster
LONG = 2.0  # seconds; shorter transfers do not matter
STILL = 4.0  # seconds without any line of an instance while a message to it stays unread
BUSY = 1.0  # the same for an instance that had work to do
STOPPED = (
    "ps -eo pid,stat,etime,args | grep -E '^ *[0-9]+ +T'   # on the host of {}: a process in state T is stopped, "
    "kill -CONT PID continues it"
)
CUT_OFF = "ip -s link   # on the host of {} and on those of its peers: errors and drops"


def cause_logged(case: Case) -> CauseFinding | None:
    """A line about this very room names the cause."""
    if case.who.arrived is not None:
        return None
    for event in case.room_events.events:
        if event.row.cause and not event.row.echo and event.row.cause not in ELSEWHERE:
            if event.row.cause == BROKEN and decode_gone(case) is not None:
                continue  # so ends a transfer into a decode that is no more
            owner = event.instance
            if event.row.cause == UNREACHED:
                if hung(case) is not None:
                    continue  # its address was right
                prefill = case.who.contacted or case.who.requested
                owner = prefill.value if prefill is not None else ""
            fills = {
                "instance": owner, "prefill": event.instance, "decode": event.instance,
                "observed": event.values.get("other_room") or event.values.get("addr") or _reason(event),
                "expected": event.values.get("limit", "all"), "other": "", "file": event.place.on_disk,
            }  # fmt: skip
            proof = Proof("its own line names the cause", event)
            side = "prefill" if event.row.cause == UNREACHED else event.role or "prefill"
            return CauseFinding(event.row.cause, side, _reason(event), (proof,), owner, fills)
    return None


def never_completed(case: Case) -> CauseFinding | None:
    """The right prefill had the request and the page list, and the decode timed out."""
    failed, asked, met = case.decode_failed, case.who.requested, case.who.contacted
    if failed is None or asked is None or met is None or asked.value != met.value:
        return None
    if not (seconds_waited(failed) or failed.proves(Sign.GAVE_UP_WAITING)):
        return None
    sent = next((event for event in case.room_events.by("prefill") if event.proves(Sign.CACHE_SENDS)), None)
    seconds = seconds_waited(failed)
    fills = {
        "prefill": asked.value, "decode": failed.instance, "instance": asked.value,
        "observed": f"{failed.instance} waited {seconds:g} s" if seconds else f"{failed.instance} timed out",
    }  # fmt: skip
    why = f"{asked.value} had the request and the page list, and the cache did not reach {failed.instance} in time"
    proofs = [Proof("no cache came until the decode gave up", failed)]
    if sent is not None:
        proofs.insert(0, Proof(f"{asked.value} began to send it", sent))
    return CauseFinding("PD708", "prefill", why, tuple(proofs), asked.value, fills)


def slow(case: Case) -> CauseFinding | None:
    """The transfer took seconds, at a speed slower than any healthy fabric."""
    crawling = [
        (size, seconds, event)
        for size, seconds, event in transfers_measured(case.room_events.events)
        if seconds >= LONG and size / seconds < SLOW * 1e9
    ]
    if not crawling:
        return None
    size, seconds, event = max(crawling, key=lambda one: one[1])
    speed = f"{size / seconds / 1e9:.3g} GB/s"
    observed = f"{speed} for {seconds:.3g} s"
    fills = {"instance": event.instance, "observed": observed, "expected": f"{SLOW:g} GB/s or more"}
    proof = Proof(f"{size / 1e6:.3g} MB took {seconds:.3g} s", event)
    why = f"the KV cache moved at {speed}: {size / 1e6:.3g} MB in {seconds:.3g} s"
    return CauseFinding("PD412", "prefill", why, (proof,), event.instance, fills)


def _reason(event: Event) -> str:
    return (event.values.get("reason") or event.text).strip()[:200]


class Silence(NamedTuple):
    """A period without a line in its log. after, before: the lines around it; before is None at the log's end."""

    since: float
    until: float
    after: Event
    before: Event | None


class Suspect(NamedTuple):
    """An instance that may have frozen.

    missed: other processes' lines that it did not answer. silence: its longest silence while this room waited for it.

    late: it read messages sent to it meanwhile only after that silence. overdue: its own timeout line, due during
    that silence, came after it. Either one shows that the process was frozen.
    """

    instance: ObservedInstance
    missed: tuple[Event, ...]
    silence: Silence | None
    late: bool
    overdue: Event | None

    @property
    def stood_still(self) -> bool:
        return self.late or self.overdue is not None


def hung(case: Case) -> CauseFinding | None:
    """One of the two sides froze: others say that it did not answer, or it read this room's message too late."""
    span = case.room_events.span
    ends = [case.decode_failed, case.prefill_failed]
    ends += [event for event in case.room_events.by("router") if event.row.phase is Phase.FAILED][:1]
    stamps = [event.t for event in ends if event is not None and event.t is not None]
    if span is None or not stamps or case.done is not None:
        return None
    began, ended = span[0], min(stamps)
    suspects = [found for one in _met(case) if (found := _suspect(case, one, began, ended)) is not None]
    suspects = [one for one in map(partial(_believed, suspects), suspects) if one.missed or one.stood_still]
    missed = [one for one in suspects if one.missed]
    silent = [one for one in missed or suspects if one.silence is not None]
    chosen = silent if len(silent) == 1 else missed or suspects
    if len(chosen) != 1:
        return None
    return _finding(chosen[0], next(event for event in ends if event is not None))


def _met(case: Case) -> Iterator[ObservedInstance]:
    """The engines that had this room, or to which it was sent."""
    names = [known.value for known in (case.who.contacted, case.who.requested) if known is not None]
    names += [one.name for one in (case.prefill, case.decode) if one is not None]
    handed_over = _handed_over(case)
    found = case.dialled(case.decode_failed) if case.decode_failed is not None else None
    owner = found and case.deployment.bootstrap_owner(found[0])
    names += [owner.name] if owner else []
    for name in dict.fromkeys(names):
        instance = case.deployment.instances.get(name)
        if instance is not None and not (handed_over and instance.role == "prefill"):
            yield instance


def _handed_over(case: Case) -> bool:
    """Whether the decode had the KV cache before the room ended, and the router awaited no answer of the prefill."""
    arrived = any(event.proves(Sign.CACHE_ARRIVED) for event in case.room_events.by("decode"))
    overdue = [leg for event in case.room_events.by("router") if (leg := message_details.overdue_leg(event.text))]
    return arrived and not any(one.leg == "prefill" for one in overdue)


def _suspect(case: Case, one: ObservedInstance, began: float, ended: float) -> Suspect | None:
    missed = tuple(event for event in case.around.proving(*MISSES) if _unanswered(event, one, case, began, ended))
    death = case.deaths.get(one.name)
    if death is not None and death.since <= ended + 1.0:
        return None  # it died; other causes cover that
    if case.lines(one.name, (Sign.SLOTS_HELD,), began, ended + NEAR):
        return None  # it says what it waits for
    silence = _silence(case, one, began, ended)
    late = silence is not None and _unread(case, one, silence, ended)
    overdue = _overdue(case, one, silence) if silence is not None else None
    if silence is not None:
        missed += tuple(event for event in case.room_events.events if _unregistered(event, one, case))
    if not missed and not late and overdue is None:
        return None
    return Suspect(one, missed, silence, late, overdue)


def _believed(suspects: Sequence[Suspect], one: Suspect) -> Suspect:
    """The suspect without lines others wrote after their own freeze: a frozen process finds every answer overdue."""
    behind = {
        each.instance.name: each.silence.until
        for each in suspects
        if each.stood_still and each.silence is not None and each is not one
    }
    kept = tuple(event for event in one.missed if (event.t or 0.0) < behind.get(event.instance, math.inf))
    return one._replace(missed=kept)


def _unregistered(event: Event, one: ObservedInstance, case: Case) -> bool:
    """Whether the decode could connect to one of its ranks but got no answer."""
    if event.row.cause != "PD210" or message_details.NO_ANSWER not in event.text:
        return False
    prefill = case.who.contacted or case.who.requested
    return prefill is not None and prefill.value == one.name


def _unanswered(event: Event, one: ObservedInstance, case: Case, began: float, ended: float) -> bool:
    """Whether another process called it while the room waited and got no answer; a refused connection is an answer.

    A line that names another room is evidence for that room only: its trouble may have begun long before this one.
    """
    if event.room not in (None, case.room_events.room):
        return False
    if event.t is None or event.t < began - NEAR or event.instance == one.name or message_details.REFUSED in event.text:
        return False
    if not misses(event, one, case.deployment):
        return False
    first = event.t - (message_details.failed_checks(event.text) or 0) * message_details.HEARTBEAT_INTERVAL
    if event.proves(Sign.HEARTBEATS_LOST):
        first = _first_miss(event, event.t, case)
    return first <= ended + NEAR


def _first_miss(event: Event, t: float, case: Case) -> float:
    """When a decode that gave up a prefill first missed a heartbeat; the line's own time if a connection broke."""
    return min(
        other.t
        for other in (event, *case.around.proving(Sign.HEARTBEAT_MISSED))
        if other.t is not None
        and (other is event or other.instance == event.instance)
        and (other is event or other.values.get("addr") == event.values.get("addr"))
        and t - 2 * message_details.HEARTBEAT_TRIES * message_details.HEARTBEAT_INTERVAL <= other.t <= t
    )


def _silence(case: Case, one: ObservedInstance, began: float, ended: float) -> Silence | None:
    """The longest stretch without a line from it that overlaps the room's wait and lasts until the wait's end."""
    found = case.around.once(("silences", one.name), lambda: _silences(case.around, one))
    held = [each for each in found if each.since < ended and each.until >= ended - 1.0 and each.until > began]
    longest = max(held, key=lambda each: each.until - each.since, default=None)
    return longest if longest is not None and longest.until - max(longest.since, began) >= STILL else None


def _silences(lines: Iterable[Event], one: ObservedInstance) -> list[Silence]:
    """Between any two lines of it that follow each other, and after its last one."""
    timed = [(event.t, event) for event in lines if event.t is not None]
    own = sorted(((t, event) for t, event in timed if event.instance == one.name), key=lambda each: each[0])
    found = [Silence(since, until, after, before) for (since, after), (until, before) in pairwise(own)]
    if own and one.last is not None and one.last <= own[-1][0]:
        found.append(Silence(own[-1][0], max(t for t, _ in timed), own[-1][1], None))
    return found


def _unread(case: Case, one: ObservedInstance, silence: Silence, ended: float) -> bool:
    """Whether it read a message about this room only after the silence, when the room was over.

    A clock that is ahead looks the same, so messages of other rooms must have arrived sooner. A decode that was running
    the room had work to do during the silence, so a shorter lag suffices.
    """
    if silence.before is None or silence.until < ended - 1.0:
        return False
    lag, error = _lag(case.room_events.events, one, silence), _clock_error(case, one)
    return lag is not None and error is not None and lag - error >= (BUSY if _ran(case, one) else STILL)


def _ran(case: Case, one: ObservedInstance) -> bool:
    """Whether the room was running there."""
    return any(
        event.instance == one.name and event.proves(Sign.CACHE_ARRIVED) for event in case.room_events.by("decode")
    )


def _overdue(case: Case, one: ObservedInstance, silence: Silence) -> Event | None:
    """Its own timeout of this room after the silence, if it came late and the process ran for little of the limit."""
    for event in case.room_events.events:
        spent = message_details.timed_out(event.text)
        if event.instance != one.name or event.t is None or event.t < silence.until or spent is None:
            continue
        limit = _limit(case, event, spent)
        awake = spent.seconds - (silence.until - max(silence.since, event.t - spent.seconds))
        if limit is not None and spent.seconds - limit >= STILL and awake <= limit / 2:
            return event
    return None


def _limit(case: Case, event: Event, spent: message_details.TimedOut) -> float | None:
    """Seconds after which this process gives up a room: as the line says, or its shortest other timeout; else None.

    SGLang's lines do not name the limit, but none of them is written before it has passed.
    """
    if spent.limit is not None:
        return spent.limit
    others = (message_details.timed_out(other.text) for other in case.around if other.instance == event.instance)
    return min(
        (other.seconds for other in others if other and other.seconds and other.state == spent.state), default=None
    )


def _lag(events: Sequence[Event], one: ObservedInstance, silence: Silence) -> float | None:
    """A lower bound, in seconds, for the longest delay of the messages that arrived after the silence."""
    lags = []
    for sent, came in MESSAGES:
        out = [event for event in events if event.instance != one.name and event.t is not None and sent(event)]
        back = [event.t for event in events if event.instance == one.name and event.t is not None and came(event)]
        if out and back:
            first = min(out, key=lambda event: event.t or 0.0)
            if first.t is not None and min(back) >= silence.until > first.t:
                lags.append(min(back) - first.t - first.uncertainty_s)
    return max(lags, default=None)


def _clock_error(case: Case, one: ObservedInstance) -> float | None:
    """Seconds by which its clock may differ from the others': the shortest delay of other rooms' messages, unsigned.

    None if no message arrived within two seconds, by the two stamps.
    """
    delays = case.around.once(("delays", one.name), lambda: _message_gaps(case.around, one.name))
    shortest = next((seconds for seconds, room in delays if room != case.room_events.room), None)
    return shortest if shortest is not None and shortest <= NEAR else None


def _message_gaps(lines: Iterable[Event], name: str) -> list[tuple[float, int]]:
    """Of the messages to `name`, by kind and room, the unsigned seconds between the two stamps, shortest first."""
    sent: list[dict[int, float]] = [{} for _ in MESSAGES]
    came: list[dict[int, float]] = [{} for _ in MESSAGES]
    for event in lines:
        room, t = event.room, event.t
        if room is None or t is None:
            continue
        for at, (sends, arrives) in enumerate(MESSAGES):
            if event.instance != name and sends(event):
                sent[at].setdefault(room, t)
            elif event.instance == name and arrives(event):
                came[at][room] = t
    pairs = zip(sent, came, strict=True)
    return sorted((abs(back[room] - t), room) for out, back in pairs for room, t in out.items() if room in back)


def _is(sign: Sign) -> Callable[[Event], bool]:
    return lambda event: event.proves(sign)


# The line about a message one side sends, and the line the other side writes when it has arrived.
MESSAGES: tuple[tuple[Callable[[Event], bool], Callable[[Event], bool]], ...] = (
    (_is(Sign.PAGE_LIST_SENDS), _is(Sign.PAGE_LIST_ARRIVES)),
    (_is(Sign.TRANSFER_DONE), _is(Sign.CACHE_ARRIVES)),
    (_is(Sign.ABORT_SENDS), _is(Sign.ABORT_ARRIVES)),
    (lambda event: event.row.phase is Phase.DISPATCHED, _is(Sign.REQUEST_ARRIVED)),
    (  # the router closes this leg's connection when the other leg fails
        lambda event: event.role == "router" and event.row.phase is Phase.FAILED,
        lambda event: event.role != "router" and message_details.CLIENT_CLOSED in event.text,
    ),
)


def _finding(found: Suspect, failed: Event) -> CauseFinding:
    name, silence = found.instance.name, found.silence
    proofs = [Proof(f"{name} did not answer", event) for event in found.missed[:2]]
    told = [_describe_missed(found.missed[0])] if found.missed else []
    if silence is not None:
        seconds = silence.until - silence.since
        told.append(f"no line of its log for {seconds:.0f} s")
        proofs.append(Proof(f"{name}'s last line before {seconds:.0f} s of silence", silence.after))
        proofs += [Proof(f"{name}'s first line after it", silence.before)] if silence.before is not None else []
        if found.overdue is not None:
            spent = message_details.timed_out(found.overdue.text)
            told.append(f"its own time-out came only after {spent.seconds if spent else '?'} s")
        fix = STOPPED.format(name)
        why = f"{name} stood still while the room waited for it: {' and '.join(told)}"
    else:
        fix = CUT_OFF.format(name)
        why = f"{name} was not reached while its own log went on: {' and '.join(told)}"
    proofs.append(Proof("so the room was given up", failed))
    fills = {"instance": name, "observed": " and ".join(told)}
    return CauseFinding("PD717", found.instance.role, why, tuple(proofs), name, fills, fix)


def _describe_missed(event: Event) -> str:
    counted = message_details.failed_heartbeats(event.text)
    if counted is not None:
        return f"{counted} heartbeats of {event.instance} failed"
    return f"{event.instance} says: {event.text.strip()[:100]}"
