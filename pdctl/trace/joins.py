"""Join a room to the router attempt that made it, by time, status and place, and only where all joins agree."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pdctl.engines.adapters import adapter
from pdctl.engines.sign import Sign
from pdctl.trace.room_events import is_abort_notice, is_failure, rooms_of, seconds_waited, shows_request

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pdctl.logs.event import Event
    from pdctl.trace.observed_deployment import ObservedDeployment
    from pdctl.trace.router_attempts import RouterAttempt

Value = TypeVar("Value")

# Seconds for which a room may stay silent, and an answer is assumed to stream, at most: each wait is bounded by the
# bootstrap or the transfer timeout (300 s each by default, sglang 0.5.3 … 0.5.23).
PATIENCE = 330.0


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


@dataclass(slots=True)
class JoinableRoom:
    """first: an engine's first line about it was written in [first, first + coarse); failed: when its decode gave up.

    early: that line shows when it began; otherwise it may have begun long before. done: its decode finished it.
    decode, requested: names of the instances whose lines show it.
    """

    room: int
    first: float
    coarse: float
    last: float
    early: bool
    decode: str | None = None
    requested: str | None = None
    failed: float | None = None
    done: bool = False


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
