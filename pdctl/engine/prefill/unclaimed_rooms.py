"""Rooms known from a decode whose request is not here (yet): page lists that came first, and rooms given up.

Both are kept for a limited time and in limited number; if a page list is dropped, its decode is told why.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.engine.kv_link.kv_frames import TransferInfo
    from pdctl.engine.kv_link.kv_loop import KvLoop, Timer
    from pdctl.engine.kv_link.room_state import Failure

CAPACITY = 4096  # rooms
MOST_BYTES = 128 << 20  # of page ids, in all
SHARE = 2  # one session may use this fraction (1/SHARE) of the capacity


@dataclass(frozen=True, slots=True)
class UnclaimedPageList:
    info: TransferInfo
    arrived: float  # time.monotonic()
    timer: Timer


class UnclaimedPageLists:
    """`dropped` is called with the page list and the reason, on the loop's thread."""

    def __init__(
        self, loop: KvLoop, ttl: float, dropped: Callable[[TransferInfo, str], None], capacity: int = CAPACITY
    ) -> None:
        self._loop = loop
        self._ttl = ttl
        self._drop_unclaimed = dropped
        self._capacity = capacity
        self._kept: OrderedDict[tuple[int, str], UnclaimedPageList] = OrderedDict()
        self._sessions: dict[int, dict[str, None]] = {}  # kept page lists by room, in order of arrival
        self._rooms: dict[str, dict[int, None]] = {}  # by session, in order of arrival
        self._bytes = 0

    def of(self, session: str) -> int:
        """Return how many page lists of `session` are kept."""
        return len(self._rooms.get(session, ()))

    def keep(self, info: TransferInfo) -> int:
        """Keep a page list, replacing an older one of its room and session; return how many the room has now."""
        key = (info.room, info.session)
        if key in self._kept:
            self._take(key)
        timer = self._loop.later(self._ttl, lambda: self._expire(key))
        self._kept[key] = UnclaimedPageList(info, time.monotonic(), timer)
        self._sessions.setdefault(info.room, {})[info.session] = None
        self._rooms.setdefault(info.session, {})[info.room] = None
        self._bytes += len(info.pages)
        most = max(1, self._capacity // SHARE)
        if self.of(info.session) > most:
            self._drop((next(iter(self._rooms[info.session])), info.session), f"more than {most} page lists of it wait")
        if len(self._kept) > self._capacity:
            self._drop(next(iter(self._kept)), f"more than {self._capacity} page lists wait for their requests")
        while self._bytes > MOST_BYTES:
            self._drop(
                next(iter(self._kept)), f"page lists of more than {MOST_BYTES >> 20} MiB wait for their requests"
            )
        return len(self._sessions.get(info.room, ()))

    def _drop(self, key: tuple[int, str], why: str) -> None:
        self._drop_unclaimed(self._take(key).info, why)

    def _take(self, key: tuple[int, str]) -> UnclaimedPageList:
        room, session = key
        del self._sessions[room][session], self._rooms[session][room]
        if not self._sessions[room]:
            del self._sessions[room]
        if not self._rooms[session]:
            del self._rooms[session]
        kept = self._kept.pop(key)
        kept.timer.cancel()  # otherwise it would hold the page list until it fires
        self._bytes -= len(kept.info.pages)
        return kept

    def adopt(self, room: int) -> list[TransferInfo]:
        """Remove and return every page list of `room`, whose request has arrived."""
        return [self._take((room, session)).info for session in list(self._sessions.get(room, ()))]

    def withdraw(self, room: int, session: str) -> bool:
        """Remove the page list of a room that the decode gave up; return whether it was still here."""
        kept = (room, session) in self._kept
        if kept:
            self._take((room, session))
        return kept

    def drop_session(self, session: str) -> None:
        """Remove the page lists of a decode that is gone; nothing waits for an answer."""
        for room in list(self._rooms.get(session, ())):
            self._take((room, session))

    def _expire(self, key: tuple[int, str]) -> None:
        kept = self._take(key)
        self._drop_unclaimed(kept.info, f"none came within {time.monotonic() - kept.arrived:.1f}s")


class EndedRoom(NamedTuple):
    """`failure` is None if the room succeeded. `until`: monotonic seconds; infinite if the room's request was here."""

    failure: Failure | None
    until: float


class EndedRooms:
    """Rooms that are over on this rank: those whose request ended, and those given up before their request came.

    Frames about them may still be on their way. A room that was given up is forgotten after `ttl` seconds.
    """

    def __init__(self, ttl: float, capacity: int = 2 * CAPACITY) -> None:
        self._ttl = ttl
        self._capacity = capacity
        self._kept: OrderedDict[int, EndedRoom] = OrderedDict()

    def conclude(self, room: int, failure: Failure | None) -> None:
        """Record how the room's request ended."""
        self._keep(room, EndedRoom(failure, math.inf))

    def give_up(self, room: int, failure: Failure) -> None:
        """Record that a room without a request here was given up. The first reason is kept."""
        if self.refusal(room) is None:
            self._keep(room, EndedRoom(failure, time.monotonic() + self._ttl))

    def _keep(self, room: int, ended: EndedRoom) -> None:
        self._kept[room] = ended
        self._kept.move_to_end(room)
        while len(self._kept) > self._capacity:
            self._kept.popitem(last=False)

    def refusal(self, room: int) -> Failure | None:
        """Return why the room was given up before its request came; None if it was not, or too long ago."""
        ended = self._kept.get(room)
        return ended.failure if ended is not None and time.monotonic() < ended.until < math.inf else None

    def concluded(self, room: int) -> EndedRoom | None:
        """Return how the room's request ended; None if none was here."""
        ended = self._kept.get(room)
        return ended if ended is not None and ended.until == math.inf else None

    def reopen(self, room: int) -> Failure | None:
        """Forget how a room ended whose request has now arrived; return why it was given up, if it was."""
        refusal = self.refusal(room)
        self._kept.pop(room, None)
        return refusal
