"""Proof by counting requests accepted, answered and cut, for logs in which a successful room leaves no line."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from pdctl.engines import numerals
from pdctl.engines.sign import Sign
from pdctl.trace.joins import PATIENCE
from pdctl.trace.room_events import GENERATES, Conclusion, counts_as_answer, is_abort_notice, is_failure

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pdctl.engines.base import Row
    from pdctl.logs.event import Event
    from pdctl.trace.joins import JoinableRoom
    from pdctl.trace.observed_deployment import ObservedInstance

ANSWERS = frozenset({Sign.REQUEST_ANSWERED, Sign.REQUEST_LEFT})
COUNTED = ANSWERS | {Sign.STARTED, Sign.READY}


class RequestCounts:
    """Prove by counting that KV caches arrived.

    around: all known lines of all logs from their starts on. Rooms found to be answered are marked `done` in `rooms`.
    """

    def __init__(self, around: Sequence[Event], rooms: Mapping[int, JoinableRoom], decodes: Iterable[str]) -> None:
        self._rooms = rooms
        self._proofs: dict[int, Conclusion] = {}
        self._senders = dict(_senders(around, rooms))
        for name in decodes:
            self._read(name, [event for event in around if event.instance == name])

    def arrived(self, room: int) -> Conclusion | None:
        return self._proofs.get(room)

    def _read(self, decode: str, lines: Sequence[Event]) -> None:
        """Walk the decode's log; wherever the counts balance, settle the rooms seen so far."""
        begun = next((at for at, event in enumerate(lines) if event.proves(Sign.READY)), None)
        if begun is None:
            return
        mine = [seen for seen in self._rooms.values() if seen.decode == decode]
        written = any(event.proves(Sign.PAGE_LIST_SENDS) for event in lines)
        named: set[int] = set()
        failed: set[int] = set()
        given_up: set[int] = set()  # it told the prefill; the line with the reason may be lost
        took = answered = refused = 0
        for event in lines[begun:]:
            if event.role == "decode" and event.room:
                named.add(event.room)
                if is_failure(event) and not is_abort_notice(event):
                    failed.add(event.room)
                elif is_abort_notice(event):
                    given_up.add(event.room)
            took += requests_taken(event)
            if counts_as_answer(event):
                answered += 1
                refused += event.values.get("status") != "200"
            elif not _nothing_pending(event):
                continue
            # Up to sglang 0.5.18 the decode names each room it sends a page list for; later only its prefills do.
            so_far = named if written else {seen.room for seen in mine if event.t is not None and seen.first <= event.t}
            if not (_nothing_pending(event) or answered == took):
                continue
            if not took or took != len(so_far) or refused != len(failed & so_far):
                continue
            if event.proves(Sign.DRAINED) and answered != took:
                continue  # everything has been answered by then, so lines are lost
            self._settle(decode, event, so_far - failed - given_up, answered == took)

    def _settle(self, decode: str, proof: Event, good: set[int], all_answered: bool) -> None:
        """A streamed answer is logged before the cache has arrived, so a room also needs a line of its sender."""
        for room in good:
            seen = self._rooms.get(room)
            sender = self._senders.get(room)
            if seen is None or sender is None or seen.failed is not None:
                continue
            why = f"all {decode} took is accounted for, nothing was pending, and the prefill had sent its cache"
            self._proofs.setdefault(room, Conclusion(decode, why, (proof, sender)))
            seen.done = seen.done or all_answered


def _senders(around: Sequence[Event], rooms: Mapping[int, JoinableRoom]) -> Iterator[tuple[int, Event]]:
    """Pairs of a room and the line that shows a prefill sending its cache: its own line, or a sender's start."""
    by_rank: dict[tuple[str, str], list[Event]] = {}
    for event in around:
        if event.proves(Sign.CACHE_SENDS) and event.values.get("last") == "1" and event.room:
            yield event.room, event
        elif event.role == "prefill":
            by_rank.setdefault((event.instance, event.rank), []).append(event)
    for (prefill, _), lines in by_rank.items():
        yield from _started(prefill, lines, rooms)


def _started(prefill: str, lines: Sequence[Event], rooms: Mapping[int, JoinableRoom]) -> Iterator[tuple[int, Event]]:
    """When as many senders have started as open rooms can have them, each of those rooms has one."""
    candidates: set[int] = set()
    served: set[int] = set()
    started = 0
    for event in lines:
        room = event.room
        if event.proves(Sign.ROOM_OPENED) and room and room not in served:
            seen = rooms.get(room)
            if seen is None or seen.requested in (None, prefill):
                candidates.add(room)
        elif room in candidates and is_failure(event):
            candidates.discard(room)
            served.add(room)
        elif event.proves(Sign.SENDER_STARTED):
            started += 1
        if started and started == len(candidates):
            yield from ((one, event) for one in candidates)
            served |= candidates
            candidates, started = set(), 0


def requests_taken(event: Event) -> int:
    """The number of requests the line says were accepted."""
    return numerals.whole(event.values.get("inputs")) or 0 if event.proves(Sign.REQUEST_TOKENIZED) else 0


def _nothing_pending(event: Event) -> bool:
    if event.proves(Sign.DRAINED):
        return event.values.get("left") == "0"
    return event.proves(Sign.RUNNING) and event.values.get("prealloc") == event.values.get("transfer") == "0"


class CutAnswer(NamedTuple):
    """A room of `decode` whose lines reach into [since, until] (epoch seconds) may be the one whose answer was cut."""

    decode: str
    since: float
    until: float


def cut_answers(around: Sequence[Event], decodes: Iterable[ObservedInstance]) -> tuple[CutAnswer, ...]:
    """The periods in which some answer was cut and no line says which."""
    return tuple(doubt for decode in decodes for doubt in _cut_answers(around, decode))


def _cut_answers(around: Sequence[Event], decode: ObservedInstance) -> Iterator[CutAnswer]:
    lines = [event for event in around if event.instance == decode.name]
    known = {event.rid for event in lines if event.rid and event.room}
    for event in lines:
        if event.proves(Sign.REQUEST_CUT) and event.rid not in known and event.t is not None:
            yield CutAnswer(decode.name, event.t - PATIENCE, event.t + 1.0)
    if _stopped_running(lines, decode) and decode.last is not None:
        yield CutAnswer(decode.name, decode.last - PATIENCE, decode.last + 1.0)


def _stopped_running(lines: Sequence[Event], decode: ObservedInstance) -> bool:
    """Whether its last batch line counts more running requests than were unanswered: some answer was a stream."""
    last = max((at for at, event in enumerate(lines) if event.proves(Sign.RUNNING)), default=None)
    if decode.clean or last is None:
        return False
    batch = lines[last]
    if batch.t is None or not decode.ends_behind(batch.t):
        return False
    begun = max((at for at, event in enumerate(lines[:last]) if event.proves(Sign.READY)), default=0)
    took = sum(requests_taken(event) for event in lines[begun:last])
    answered = sum(counts_as_answer(event) for event in lines[begun:last])
    return (numerals.whole(batch.values["running"]) or 0) > max(0, took - answered)


class AnsweredRequests:
    """Count lines as they pass: instance → requests answered with 200, without its warm-up requests.

    An engine sends itself requests before it logs that it is ready. In a log that begins later, all lines count.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._last: dict[str, float] = {}
        self._starting: set[str] = set()

    @property
    def answered(self) -> Mapping[str, int]:
        return dict(self._counts)

    def answered_after(self, instance: str, t: float) -> bool:
        return self._last.get(instance, t) > t

    def passing(self, lines: Iterable[Event]) -> Iterator[Event]:
        """All lines except the answers, which can be very many. lines: log by log, in file order."""
        for event in lines:
            if event.proves(Sign.STARTED):
                self._starting.add(event.instance)
            elif event.proves(Sign.READY):
                self._starting.discard(event.instance)
            elif event.proves(*ANSWERS):
                if event.instance not in self._starting and _generated(event):
                    self._counts[event.instance] += 1
                    if event.t is not None:
                        self._last[event.instance] = max(self._last.get(event.instance, event.t), event.t)
                if not event.row.cause:
                    continue
            yield event


def _generated(event: Event) -> bool:
    """Whether it answers a generation request, not one about health or workers."""
    path = event.values.get("path", "").split("?")[0]
    return event.values.get("status") == "200" and path in GENERATES


def is_counted(row: Row) -> bool:
    return not COUNTED.isdisjoint(row.proves)
