"""What a cause check looks at (the room's lines, who had it, what happened around it) and what it returns."""

from __future__ import annotations

import math
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar, cast

from pdctl.engines import message_details, numerals
from pdctl.engines.base import Level, Phase, Sign
from pdctl.engines.sglang.behaviour import FAKE_HOST
from pdctl.logs.event import Event
from pdctl.logs.log_sample import is_ordered_end
from pdctl.quick_definitions import NamedTuple
from pdctl.trace.observed_deployment import HostPort, parse_address
from pdctl.trace.room_events import first_failure, is_answer, is_failure, shows_page_list

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from pdctl.trace.attribution import Attribution
    from pdctl.trace.joins import CutAnswer, JoinableRoom, Joined
    from pdctl.trace.observed_deployment import ObservedDeployment, ObservedInstance, RouterWorkers
    from pdctl.trace.room_events import Conclusion, LostLines, RoomEvents

T = TypeVar("T")
NEAR = 2.0  # seconds: lines of one failure on one host, each second rounded down
# Seconds within which a router hands on a complete answer; two hosts' clocks may differ by most of it.
HANDED_ON = 3.0
LAG = 0.5  # seconds by which a busy process may measure or log the end of a request late
# The code of a crash, and the codes of what can cause one: settings that differ, a request without a room. A code
# belongs in MISMATCH if its error line stands in the traceback or near it and names the reason of the crash.
CRASH = "PD709"
MISMATCH = frozenset({"PD302", "PD303", "PD304", "PD306", "PD308", "PD325", "PD712"})
# The codes of what keeps a process from starting. A code belongs here if its error line is followed by the end.
UNABLE = frozenset({"PD218", "PD220", "PD225"})
# Lines in which another process says that this one no longer answers, by the value that holds its address.
MISSED = {Sign.DECODE_LEG_BROKE: "decode", Sign.PREFILL_LEG_BROKE: "prefill", Sign.WORKER_MISSED: "url"}
MISSES = (*MISSED, Sign.BOOTSTRAP_MISSED, Sign.BOOTSTRAP_REFUSED)  # what `misses` looks at
ENDS = (Sign.DIED, Sign.ORDERED_TO_END, Sign.CRASHED, Sign.ENDED_ITSELF)  # what `unordered_ends` looks at
TRACEBACK = 1 << 16  # bytes
QUIET = 3.0  # seconds that other logs must go on for this one to count as stopped


class Proof(NamedTuple):
    """A log line and what it proves."""

    says: str
    event: Event


class CauseFinding(NamedTuple):
    """A cause that fits. fills: values for the placeholders of its catalogue entry. fix "": use the entry's fix.

    asked: the prefill that had the request, by elimination, where this cause leaves only one candidate.
    """

    code: str
    side: str
    why: str
    proofs: tuple[Proof, ...]
    instance: str = ""
    fills: Mapping[str, str] = MappingProxyType({})
    fix: str = ""
    asked: Conclusion | None = None


class SurroundingLines(tuple[Event, ...]):
    """Known lines around rooms. What follows from them for every room is worked out once, and kept beside them."""

    @cached_property
    def _found(self) -> dict[Hashable, object]:
        return {}

    def once(self, key: Hashable, work_out: Callable[[], T]) -> T:
        """What `work_out` returns, which must depend on `key` and these lines alone."""
        if key not in self._found:
            self._found[key] = work_out()
        return cast("T", self._found[key])

    def proving(self, *signs: Sign) -> tuple[Event, ...]:
        """The lines that prove any of these signs."""
        return self.once(signs, lambda: tuple(event for event in self if event.proves(*signs)))


class Case:
    """One room to be judged. around: known lines of every log from the room's beginning to its end, and a little more.

    doubts: when its decode cut answers short and no line says whose they were.
    """

    def __init__(
        self,
        room_events: RoomEvents,
        who: Attribution,
        deployment: ObservedDeployment,
        around: Sequence[Event],
        joined: Joined,
        joinable: JoinableRoom | None = None,
        doubts: Sequence[CutAnswer] = (),
        lost: Sequence[LostLines] = (),
    ) -> None:
        self.room_events = room_events
        self.who = who
        self.deployment = deployment
        self.around = around if isinstance(around, SurroundingLines) else SurroundingLines(around)
        self.joined = joined
        self.warm_up = warm_up(room_events, deployment)
        self.counted = joinable is not None and joinable.done
        self._doubts = doubts
        span = room_events.span
        self.lost = tuple(one for one in lost if span is not None and one.may_name(*span))
        self.decode_failed = first_failure(room_events.events, "decode")
        self.prefill_failed = first_failure(room_events.events, "prefill")

    @cached_property
    def done(self) -> Event | None:
        """The line that shows the answer was complete: the decode's or the router's, or the one that ends a count."""
        said = next((event for event in self.room_events.by("router") if event.row.phase is Phase.FINISHED), None)
        if said is not None or self.failed or self.who.crossed:
            return None if self.failed or self.who.crossed else said
        if self.undelivered is not None or self.answered_nobody is not None:
            return None
        decode = self.room_events.by("decode")
        for event in decode:
            if event.proves(Sign.REQUEST_FINISHED):
                return event if is_answer(event) else None
        if self.who.arrived is None or not self.who.arrived.events:
            return None
        proof = self.who.arrived.events[0]
        if not proof.proves(Sign.CACHE_ARRIVED):
            return proof if (self.counted or self.joined.closed) and not self._doubtful else None
        # The times of a request are logged even if it was cut short; with --log-requests its answer is logged as well.
        instance = self.deployment.instances.get(proof.instance)
        told = bool(instance and instance.identity.log_requests)
        told = told or any(event.proves(Sign.REQUEST_ARRIVED) for event in decode)
        return proof if proof.proves(Sign.DECODE_TIMES) and not told else None

    @cached_property
    def undelivered(self) -> tuple[Event, float] | None:
        """The decode's complete answer, and how many seconds later the router found that its client had left.

        None if it noticed at once: then the client may have left with the whole answer.
        """
        left, answer = self._left_and_answer
        if left is None or answer is None or left.t is None or answer.t is None:
            return None
        late = left.t - answer.t
        return (answer, late) if late > HANDED_ON + max(left.uncertainty_s, answer.uncertainty_s) else None

    @cached_property
    def answered_nobody(self) -> tuple[Event, str] | None:
        """The decode's complete answer, and why the client, which had left the router, cannot have had it.

        None if it may have left with the whole answer.
        """
        left, answer = self._left_and_answer
        if left is None or answer is None:
            return None
        # The two durations need no common clock: the router's began first.
        waited, took = numerals.real(left.values.get("total_ms")), message_details.end_to_end(answer.text)
        late = took - waited / 1000 if waited is not None and took is not None else 0.0
        if late <= LAG:
            apart = answer.t - left.t if left.t is not None and answer.t is not None else 0.0
            late = apart if apart > HANDED_ON + max(left.uncertainty_s, answer.uncertainty_s) else 0.0
        if late:
            return answer, f"{late:.3g} s before {answer.instance} finished the answer"
        return (answer, "before it was sent a byte of the answer") if left.values.get("first_ms") == "-" else None

    @cached_property
    def _left_and_answer(self) -> tuple[Event | None, Event | None]:
        """The router's line that the client left, and the line of the decode's complete answer."""
        left = next((event for event in self.room_events.by("router") if event.proves(Sign.CLIENT_LEFT)), None)
        return left, next((event for event in self.room_events.by("decode") if is_answer(event)), None)

    @property
    def _doubtful(self) -> bool:
        """Whether this room's answer may be the one that was cut short."""
        span, decode = self.room_events.span, self.who.decode
        if span is None or decode is None:
            return False
        mine = [doubt for doubt in self._doubts if doubt.decode == decode.value]
        return any(doubt.since <= span[1] and span[0] <= doubt.until for doubt in mine)

    @property
    def failed(self) -> bool:
        return self.decode_failed is not None or self.prefill_failed is not None

    @cached_property
    def deaths(self) -> Mapping[str, DeathProof]:
        return deaths_in(self.deployment, self.around, self.room_events.span[1] if self.room_events.span else None)

    @cached_property
    def decode(self) -> ObservedInstance | None:
        """The decode that had the room, or the only one that can have had it."""
        if self.who.decode is not None:
            return self.deployment.instances.get(self.who.decode.value)
        url = self.joined.decode
        if url is not None:
            return self.deployment.at_url(url)
        decodes, routers = self.deployment.decodes, self.deployment.routers
        if len(decodes) != 1 or any(len(router.decodes) != 1 for router in routers):
            return None
        # Without a router's list there may be other decodes; a crash in the log of the only one here still counts.
        return decodes[0] if routers or any(map(is_crash, decodes[0].final)) else None

    @cached_property
    def prefill(self) -> ObservedInstance | None:
        """The prefill that had the request, or the one the router sent it to."""
        if self.who.requested is not None:
            return self.deployment.instances.get(self.who.requested.value)
        if self.who.url is not None:
            return self.deployment.at_url(self.who.url)
        return None

    @property
    def router(self) -> RouterWorkers | None:
        return self.deployment.routers[0] if len(self.deployment.routers) == 1 else None

    @property
    def routed(self) -> bool:
        """Whether a router's line names the room, or is about an attempt that can be the room."""
        attempts = any(one.lines and not one.lost for one in self.joined.attempts)
        return bool(self.room_events.by("router")) or attempts or self.who.url is not None

    def with_requested(self, asked: Conclusion) -> Case:
        """The same case, with `asked` as the prefill that had the request."""
        who = self.who._replace(requested=asked)
        case = Case(self.room_events, who, self.deployment, self.around, self.joined, None, self._doubts, self.lost)
        case.counted = self.counted
        return case

    def lines(self, instance: str, signs: Iterable[Sign], since: float, until: float) -> list[Event]:
        """Known lines of one instance in [since, until] that prove any of these signs."""
        return [
            event
            for event in self.around.proving(*signs)
            if event.instance == instance and event.t is not None and since <= event.t <= until
        ]

    def dialled(self, failed: Event) -> tuple[HostPort, Event] | None:
        """The address the decode could not reach while the room waited, and its line; None unless lines name one.

        Of a log without times, only the failure's own line counts: which others belong to the wait, nothing tells.
        """
        own = parse_address(failed.values.get("addr", "") or message_details.looked_up(failed.text) or "")
        if own is not None and failed.row.cause == "PD210":
            return None  # a rank's own port, which the bootstrap server gave
        if own is not None:
            return own, failed
        if failed.t is None:
            return None
        span = self.room_events.span
        since = (span[0] if span else failed.t) - NEAR
        lines = self.lines(failed.instance, (Sign.BOOTSTRAP_DIALLED,), since, failed.t)
        own = self._given()
        found: dict[HostPort, Event] = {}
        for event in sorted(lines, key=lambda line: line.place.offset):
            if event.place.file == failed.place.file and event.place.offset > failed.place.offset and found:
                break
            address = _dialled_address(event)
            if address is not None and own in (None, address):  # other rooms' look-ups say nothing about this one
                found[address] = event
        return next(iter(found.items())) if len(found) == 1 else None

    def _given(self) -> HostPort | None:
        """The bootstrap server that this room's own lines name with its port; None without one."""
        for event in self.room_events.events:
            if event.proves(Sign.BOOTSTRAP_GIVEN):
                return parse_address(event.values.get("addr", ""))
            if event.proves(Sign.REQUEST_ARRIVED) and event.role == "decode" and event.values.get("port"):
                return _host_and_port(event)
        return None

    def answered(self, failed: Event, address: HostPort) -> tuple[str, Event] | None:
        """What the server at `address` answered the decode while the room waited, a status or words, and its line."""
        status = (
            message_details.lookup_answer(failed.text) if message_details.looked_up(failed.text) == str(address) else ""
        )
        if status:
            return status, failed
        if failed.t is None:
            return None
        span = self.room_events.span
        since = (span[0] if span else failed.t) - NEAR
        refused = self.lines(failed.instance, (Sign.BOOTSTRAP_REFUSED,), since, failed.t)
        if any(_host_and_port(event) in (None, address) for event in refused):
            return None
        dialled = self.lines(failed.instance, (Sign.BOOTSTRAP_DIALLED,), since, failed.t)
        if any(_dialled_address(event) not in (None, address) for event in dialled):
            return None  # an answer names no server, so it may be another one's
        said = self.lines(failed.instance, (Sign.BOOTSTRAP_ANSWERED,), since, failed.t)
        return (said[-1].values["status"], said[-1]) if said else None

    @property
    def unequal_attention_tp(self) -> tuple[int, int] | None:
        """Attention TP of the contacted prefill and of the decode if both are known and differ, else None."""
        met = self.who.contacted
        prefill = self.deployment.instances.get(met.value) if met else None
        if prefill is None or self.decode is None:
            return None
        one, other = _attention_tp(prefill.identity.facts), _attention_tp(self.decode.identity.facts)
        return None if one is None or other is None or one == other else (one, other)


def warm_up(room_events: RoomEvents, deployment: ObservedDeployment) -> bool:
    """Whether the room belongs to an engine's own request or a probe, with a fake peer; no line shows a real one."""
    hosts = {
        event.values["host"]
        for event in room_events.events
        if event.proves(Sign.REQUEST_ARRIVED) and "host" in event.values
    }
    if room_events.room not in deployment.warm_ups and FAKE_HOST not in hosts:
        return False
    real = (
        event.proves(Sign.PAGE_LIST_SENDS) or shows_page_list(event) or (is_failure(event) and event.room is not None)
        for event in room_events.events
    )
    return hosts <= {FAKE_HOST} and not any(real)


class DeathProof(NamedTuple):
    """at: when the line that proves the death was written. of: the line that gives the reason, if there is one.

    evidence: the lines that show it. since: the last sign of life, after which it may have died.
    """

    instance: ObservedInstance
    at: float
    of: Event | None
    evidence: tuple[Event, ...]
    since: float


def death_of(
    instance: ObservedInstance,
    deployment: ObservedDeployment,
    around: SurroundingLines,
    until: float | None = None,
    since: float = -math.inf,
) -> DeathProof | None:
    """The death the logs prove. None: it lived to the end of its log, was told to stop, or nothing shows otherwise.

    until: if several generations were killed, the last one before this time counts; without it, the first one that was
    killed at `since` or later.
    """
    killed = [
        end
        for end in unordered_ends(instance, around.proving(*ENDS))
        if since == -math.inf or (end.seen.t or 0.0) >= since
    ]
    before = [end for end in killed if until is not None and end.seen.t is not None and end.seen.t <= until + 1.0]
    if killed:
        return proof_of_end(instance, before[-1] if before else killed[0], (*instance.final, *around))
    crash = crash_lines(instance.final)
    if crash:
        return _proof_of_crash(instance, crash[0], (*instance.final, *around))
    if instance.clean or instance.last is None:
        return None
    others = [one.last for one in deployment.instances.values() if one is not instance and one.last is not None]
    if not others or max(others) < instance.last + QUIET:
        return None
    missed = [event for event in around.proving(*MISSES) if _missed(event, instance, deployment)]
    # Its launcher logs its end, but a moment later; a stopped process (SIGSTOP) accepts connections and closes none.
    if instance.watched and not any(
        word in event.text for event in missed for word in message_details.CLOSED_BY_KERNEL
    ):
        return None
    if not missed:
        return None
    first = min(missed, key=lambda event: event.t or 0.0)
    return DeathProof(instance, first.t or instance.last, None, (*instance.final[-1:], first), instance.last)


class UnorderedEnd(NamedTuple):
    """seen: the line of its launcher. crash: the line that tells that this start crashed, if there is one."""

    seen: Event
    crash: Event | None


def unordered_ends(instance: ObservedInstance, lines: Iterable[Event]) -> list[UnorderedEnd]:
    """Each end that its launcher saw and that nobody ordered. lines: those that prove one of ENDS.

    An exit code after an order to end is what was ordered; a process that did not follow it and was killed by somebody
    else is not.
    """
    found: list[UnorderedEnd] = []
    since: list[Event] = []
    for event in lines:
        if event.instance != instance.name:
            continue
        if not event.proves(Sign.DIED):
            since.append(event)
            continue
        since = [one for one in since if not _started_between(instance, one, event)]
        crash = next(iter(crash_lines(since)), None)
        if crash is not None or "code" not in event.values or not any(one.proves(Sign.ORDERED_TO_END) for one in since):
            found.append(UnorderedEnd(event, crash))
        since = []
    return found


def _started_between(instance: ObservedInstance, before: Event, behind: Event) -> bool:
    since, until = before.t, behind.t
    return since is not None and until is not None and any(since < start <= until for start in instance.started)


def proof_of_end(instance: ObservedInstance, end: UnorderedEnd, lines: Iterable[Event]) -> DeathProof | None:
    """lines: those among which the reason of a crash is looked for."""
    if end.crash is not None:
        return _proof_of_crash(instance, end.crash, lines)
    at = end.seen.t if end.seen.t is not None else instance.last
    return None if at is None else DeathProof(instance, at, None, (end.seen,), at)


def _proof_of_crash(instance: ObservedInstance, crash: Event, lines: Iterable[Event]) -> DeathProof | None:
    reasons = [event for event in lines if names_reason_of(event, crash)]
    at = crash.t if crash.t is not None else instance.last
    return None if at is None else DeathProof(instance, at, reasons[0] if reasons else None, (*reasons[:1], crash), at)


def what_it_shows(event: Event, death: DeathProof) -> str:
    """What one of the death's lines of evidence shows."""
    if event is death.of:
        return "what it fell over"
    if event.proves(Sign.DIED):
        return "its launcher saw it end"
    if is_crash(event):
        return "the crash"
    if event.instance == death.instance.name:
        return "its last line"
    return f"{event.instance} found nobody at {death.instance.name}"


def is_crash(event: Event) -> bool:
    return event.row.cause == CRASH and not event.proves(Sign.ROOM_USED_UP)


def crash_lines(events: Iterable[Event]) -> list[Event]:
    """The crash lines among an instance's lines, without those that follow an order to end."""
    found: list[Event] = []
    order: Event | None = None
    for event in events:
        if event.proves(Sign.ORDERED_TO_END):
            order = event
        elif is_crash(event) and not is_ordered_end(event, order):
            found.append(event)
    return found


def is_mismatch(event: Event) -> bool:
    """Whether prefill and decode compared a setting, found it different and failed; a warning does not count."""
    return event.row.cause in MISMATCH and event.row.level in (Level.ERROR, Level.CRITICAL)


def names_reason_of(event: Event, crash: Event) -> bool:
    """Whether the line, near the crash in the same file, gives the reason for it."""
    if not (is_mismatch(event) or event.proves(Sign.ROOM_USED_UP)) or event.place.file != crash.place.file:
        return False
    return abs(event.place.offset - crash.place.offset) < TRACEBACK


def _missed(event: Event, instance: ObservedInstance, deployment: ObservedDeployment) -> bool:
    """Whether another process tried to reach it where it listens, after its last line, and got no answer."""
    if event.t is None or instance.last is None or event.t < instance.last:
        return False
    if event.proves(Sign.WORKER_UNWELL) and not any(word in event.text for word in message_details.NOBODY_THERE):
        return False
    return misses(event, instance, deployment)


def missed_url(event: Event) -> str | None:
    """The URL at which the line says nobody answers, "" when it names none; None for any other line."""
    return next((event.values.get(name, "") for sign, name in MISSED.items() if event.proves(sign)), None)


def misses(event: Event, instance: ObservedInstance, deployment: ObservedDeployment) -> bool:
    """Whether the line says that this instance does not answer at the address where it listens."""
    url = missed_url(event)
    if url is not None:
        return _is_same(deployment.at_url(url), instance)
    if event.proves(Sign.BOOTSTRAP_MISSED):
        address = parse_address(event.values.get("addr", ""))
    elif event.proves(Sign.BOOTSTRAP_REFUSED) and message_details.REFUSED in event.text:
        address = parse_address(f"{event.values.get('host', '')}:{event.values.get('port', '')}")
    else:
        return False
    return address is not None and _is_same(deployment.bootstrap_owner(address), instance)


def _is_same(found: ObservedInstance | None, wanted: ObservedInstance) -> bool:
    return found is not None and found.name == wanted.name


def deaths_in(
    deployment: ObservedDeployment, around: Iterable[Event], until: float | None = None
) -> dict[str, DeathProof]:
    lines = around if isinstance(around, SurroundingLines) else SurroundingLines(around)
    found = {name: death_of(one, deployment, lines, until) for name, one in deployment.instances.items()}
    return {name: one for name, one in found.items() if one is not None}


def _host_and_port(event: Event) -> HostPort | None:
    host, port = event.values.get("host"), numerals.whole(event.values.get("port"))
    return HostPort(host, port) if host and port is not None else None


def _dialled_address(event: Event) -> HostPort | None:
    return parse_address(event.values["addr"]) if "addr" in event.values else _host_and_port(event)


def _attention_tp(facts: Mapping[str, str]) -> int | None:
    """tp divided by the attention-DP width; sglang up to 0.5.18 calls that width dp_size, 0.5.23 attn_dp_size."""
    tp = numerals.whole(facts.get("tp_size"))
    if tp is None:
        return None
    width = numerals.whole(facts.get("attn_dp_size"))
    if width in (None, 1):
        width = numerals.whole(facts.get("dp_size")) if facts.get("enable_dp_attention") == "True" else 1
    return tp // max(1, width or 1)
