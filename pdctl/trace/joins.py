"""What all rooms together prove of one: which router attempt made it and, by counting, that its KV cache arrived.

A room is joined to an attempt by time, status and place, and only where all joins agree. Counting requests accepted,
answered and cut proves something where a room that goes well leaves no line.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

from pdctl.engines import numerals
from pdctl.engines.base import Sign
from pdctl.engines.row_matching import adapter
from pdctl.quick_definitions import NamedTuple
from pdctl.trace.room_events import (
    GENERATES,
    PATIENCE,
    Conclusion,
    counts_as_answer,
    is_abort_notice,
    is_failure,
    rooms_of,
    seconds_waited,
    shows_request,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pdctl.engines.base import Row
    from pdctl.logs.event import Event
    from pdctl.trace.observed_deployment import ObservedDeployment, ObservedInstance
    from pdctl.trace.router_attempts import RouterAttempt


Value = TypeVar("Value")


class Joined(NamedTuple):
    """attempts: all the room can be. prefill, decode: the URL all of them name, else None. closed: all ended well."""

    attempts: tuple[RouterAttempt, ...]
    prefill: str | None
    decode: str | None
    closed: bool


NO_ATTEMPT = Joined((), None, None, False)


class Joins:
    """Find which router attempts can be which room. slack: seconds by which two clocks may differ, 0 on one host."""

    def __init__(
        self,
        rooms: Mapping[int, JoinableRoom],
        attempts: Sequence[RouterAttempt],
        deployment: ObservedDeployment,
        slack: float = 0.0,
    ) -> None:
        self._deployment = deployment
        self._slack = slack
        self._attempts = list(attempts)
        choices: dict[int, list[int]] = {}
        for room, seen in rooms.items():
            choices[room] = [at for at, attempt in enumerate(attempts) if self._fits(seen, attempt)]
        # An attempt that may hide retries can be any number of rooms, so each room gets its own copy.
        self._copies: dict[int, int] = {}
        self._assignments = Assignments({room: self._own(found) for room, found in choices.items()})

    def of(self, room: int) -> Joined:
        found = tuple(self._attempts[self._copies.get(at, at)] for at in sorted(self._assignments.choices(room)))
        if not found:
            return NO_ATTEMPT
        prefills = {self._prefill(attempt) for attempt in found}
        decodes = {attempt.decode or None for attempt in found}
        return Joined(found, _only(prefills), _only(decodes), all(map(self._closed, found)))

    def _own(self, choices: Sequence[int]) -> list[int]:
        own = []
        for at in choices:
            copy = at
            if not self._attempts[at].listed:
                copy = -1 - len(self._copies)
                self._copies[copy] = at
            own.append(copy)
        return own

    def _prefill(self, attempt: RouterAttempt) -> str | None:
        """The prefill's URL as logged, or the router's only one."""
        if attempt.prefill:
            return attempt.prefill
        lists = [one for starts in self._deployment.history for one in starts if one.name == attempt.router]
        if len(lists) != 1 or lists[0].cut or len(lists[0].prefills) != 1:
            return None
        return lists[0].prefills[0].url

    def _closed(self, attempt: RouterAttempt) -> bool:
        router = self._deployment.instances.get(attempt.router)
        known = adapter(router.identity.speaker) if router is not None else None
        return known is not None and known.reads_prefill and attempt.listed and attempt.closed

    def _fits(self, room: JoinableRoom, attempt: RouterAttempt) -> bool:
        """Whether the room's lines fall within the attempt, are on its decode, and end the way it did."""
        latest = room.first + room.coarse + self._slack
        if attempt.lost:
            until = float("inf") if attempt.end is None else attempt.end
            return attempt.start < latest and not (room.early and room.first - until > PATIENCE)
        if not attempt.start < latest or (room.early and room.first - attempt.start > PATIENCE):
            return False
        if attempt.end is not None:
            over = attempt.end + 1.0 + self._slack
            if (room.early and room.first >= over) or (room.failed is not None and room.failed >= over):
                return False
        if attempt.listed and attempt.status is not None:
            if attempt.status == 200 and room.failed is not None:
                return False
            if attempt.status != 200 and room.done:
                return False
        return self._same(room.decode, attempt.decode) and self._same(room.requested, attempt.prefill)

    def _same(self, instance: str | None, url: str) -> bool:
        if instance is None or not url:
            return True
        owner = self._deployment.at_url(url)
        return owner is None or owner.name == instance


def _only(values: set[Value | None]) -> Value | None:
    return next(iter(values)) if len(values) == 1 else None


class JoinableRoom:
    """first: an engine's first line about it was written in [first, first + coarse); failed: when its decode gave up.

    early: that line shows when it began; otherwise it may have begun long before. done: its decode finished it.
    decode, requested: names of the instances whose lines show it.
    """

    def __init__(self, room: int, first: float, coarse: float, last: float, early: bool) -> None:
        self.room, self.first, self.coarse, self.last, self.early = room, first, coarse, last, early
        self.decode: str | None = None
        self.requested: str | None = None
        self.failed: float | None = None
        self.done = False


def joinable_rooms(events: Iterable[Event], deployment: ObservedDeployment) -> dict[int, JoinableRoom]:
    found: dict[int, JoinableRoom] = {}
    for event in events:
        if event.t is None or event.role not in ("prefill", "decode"):
            continue
        for room in rooms_of(event):
            if room in deployment.warm_ups:
                continue
            # A timeout line says when the wait began; other final lines do not.
            begun, early = event.t - seconds_waited(event), bool(seconds_waited(event)) or not _ends(event)
            seen = found.setdefault(room, JoinableRoom(room, begun, event.uncertainty_s, event.t, early))
            if begun < seen.first:
                seen.first, seen.coarse, seen.early = begun, event.uncertainty_s, early
            seen.last = max(seen.last, event.t)
            _note(seen, event, deployment)
    short = _cut_short(found)
    return {room: seen for room, seen in found.items() if room not in short}


def _cut_short(rooms: Iterable[int]) -> frozenset[int]:
    """Rooms whose digits another room's number begins with: they come from lines truncated within the number."""
    spelt = sorted(map(str, rooms))
    return frozenset(int(short) for short, long in pairwise(spelt) if long.startswith(short))


def _ends(event: Event) -> bool:
    return event.phase is None or event.phase.ends or is_abort_notice(event)


def _note(seen: JoinableRoom, event: Event, deployment: ObservedDeployment) -> None:
    if event.role == "decode":
        seen.decode = event.instance
        if is_failure(event) and not is_abort_notice(event):
            seen.failed = event.t if seen.failed is None else seen.failed
        if event.proves(Sign.DECODE_TIMES) or event.proves(Sign.REQUEST_FINISHED):
            seen.done = True
    elif shows_request(event):
        seen.requested = event.instance
    agent = event.values.get("agent")
    if agent and event.role == "prefill" and seen.decode is None:
        owner = deployment.by_agent(agent)
        seen.decode = owner.name if owner else None


class Assignments:
    """All ways to give each room one of its dispatches, no dispatch twice. Dispatches may be left over."""

    def __init__(self, rooms: Mapping[int, Sequence[int]]) -> None:
        self._rooms = rooms
        self._held: dict[int, int] = {}  # dispatch → room, in one maximum assignment
        for room in rooms:
            self._place(room)
        short = set(rooms) - set(self._held.values())
        # A group that cannot serve all its rooms lacks a dispatch, so nothing can be concluded for any of them.
        self._lost = self._group(short)
        # Room → rooms that could take its dispatch; then rooms that could move to a free dispatch.
        self._takers: dict[int, list[int]] = {}
        self._movable: list[int] = []
        for room, choices in rooms.items():
            for dispatch in choices:
                if dispatch in self._held:
                    self._takers.setdefault(self._held[dispatch], []).append(room)
                else:
                    self._movable.append(room)

    def choices(self, room: int) -> frozenset[int]:
        """The dispatches `room` has in at least one assignment; empty when its group cannot be served."""
        if room in self._lost:
            return frozenset()
        # A room holding a dispatch can give it up if a chain of moves leads to a free dispatch or to this room's own.
        aside = self._chain((*self._movable, room))
        return frozenset(d for d in self._rooms[room] if d not in self._held or self._held[d] in aside)

    def _chain(self, ends: Iterable[int]) -> set[int]:
        found = set(ends)
        todo = list(found)
        while todo:
            fresh = [room for room in self._takers.get(todo.pop(), ()) if room not in found]
            found.update(fresh)
            todo.extend(fresh)
        return found

    def _place(self, room: int) -> None:
        """Find `room` a dispatch, moving others where that helps (an augmenting path, without recursion)."""
        seen: set[int] = set()
        trail: list[tuple[int, int]] = []  # (room that wants, dispatch it would take)
        wanting = [(room, iter(self._rooms[room]))]
        while wanting:
            who, choices = wanting[-1]
            found = next((dispatch for dispatch in choices if dispatch not in seen), None)
            if found is None:
                wanting.pop()
                if trail:
                    trail.pop()
                continue
            seen.add(found)
            trail.append((who, found))
            if found not in self._held:
                self._held.update({taken: taker for taker, taken in trail})
                return
            holder = self._held[found]
            wanting.append((holder, iter(self._rooms[holder])))

    def _group(self, start: set[int]) -> set[int]:
        """All rooms that share a dispatch, directly or through others, with one of `start`."""
        by_dispatch: dict[int, list[int]] = {}
        for room, choices in self._rooms.items():
            for dispatch in choices:
                by_dispatch.setdefault(dispatch, []).append(room)
        found, todo = set(start), list(start)
        while todo:
            for dispatch in self._rooms[todo.pop()]:
                fresh = [other for other in by_dispatch.pop(dispatch, ()) if other not in found]
                found.update(fresh)
                todo.extend(fresh)
        return found


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
