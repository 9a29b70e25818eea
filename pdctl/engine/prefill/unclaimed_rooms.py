"""Rooms a decode has spoken of whose request is not here (yet): page lists that came first, and rooms given up.

Both are kept for a while and in a bounded number; whoever waits for a page list that is dropped is told why.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.engine.kv_link.kv_frames import TransferInfo
    from pdctl.engine.kv_link.kv_loop import KvLoop, Timer
    from pdctl.engine.kv_link.room_state import Failure

CAPACITY = 4096  # rooms
MOST_BYTES = 128 << 20  # of page ids
SHARE = 2  # one session may keep this part of the capacity


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
        self._sessions: dict[int, dict[str, None]] = {}  # by room, in order of arrival, of what is kept
        self._rooms: dict[str, dict[int, None]] = {}  # by session, in order of arrival
        self._bytes = 0

    def of(self, session: str) -> int:
        """How many page lists of `session` are kept."""
        return len(self._rooms.get(session, ()))

    def keep(self, info: TransferInfo) -> int:
        """How many of the room are here now. A newer page list of the same room and session takes the older's place."""
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
        kept.timer.cancel()  # it would keep the page list until it is due
        self._bytes -= len(kept.info.pages)
        return kept

    def adopt(self, room: int) -> list[TransferInfo]:
        """Take out every page list of `room`: its request is here."""
        return [self._take((room, session)).info for session in list(self._sessions.get(room, ()))]

    def withdraw(self, room: int, session: str) -> bool:
        """The decode gave the room up; whether its page list was still here."""
        kept = (room, session) in self._kept
        if kept:
            self._take((room, session))
        return kept

    def drop_session(self, session: str) -> None:
        """The decode is gone: nobody waits for an answer."""
        for room in list(self._rooms.get(session, ())):
            self._take((room, session))

    def _expire(self, key: tuple[int, str]) -> None:
        kept = self._take(key)
        self._drop_unclaimed(kept.info, f"none came within {time.monotonic() - kept.arrived:.1f}s")


class EndedRoom(NamedTuple):
    """`failure` None: it succeeded. `until`: monotonic seconds; infinite for a room whose request was here."""

    failure: Failure | None
    until: float


class EndedRooms:
    """Rooms that are over on this rank: those whose request ended, and those given up before their request came.

    Frames about them are still on their way. A room that was given up is forgotten after `ttl` seconds.
    """

    def __init__(self, ttl: float, capacity: int = 2 * CAPACITY) -> None:
        self._ttl = ttl
        self._capacity = capacity
        self._kept: OrderedDict[int, EndedRoom] = OrderedDict()

    def conclude(self, room: int, failure: Failure | None) -> None:
        """The room's request has ended."""
        self._keep(room, EndedRoom(failure, math.inf))

    def give_up(self, room: int, failure: Failure) -> None:
        """No request for the room is here. The first reason is the one that is told."""
        if self.refusal(room) is None:
            self._keep(room, EndedRoom(failure, time.monotonic() + self._ttl))

    def _keep(self, room: int, ended: EndedRoom) -> None:
        self._kept[room] = ended
        self._kept.move_to_end(room)
        while len(self._kept) > self._capacity:
            self._kept.popitem(last=False)

    def refusal(self, room: int) -> Failure | None:
        """Why the room was given up before its request came, if it was and it is not too long ago."""
        ended = self._kept.get(room)
        return ended.failure if ended is not None and time.monotonic() < ended.until < math.inf else None

    def concluded(self, room: int) -> EndedRoom | None:
        """How the room's request ended; None where none was here."""
        ended = self._kept.get(room)
        return ended if ended is not None and ended.until == math.inf else None

    def reopen(self, room: int) -> Failure | None:
        """A request for the room is here: forget how it ended; why it was given up, if it was."""
        refusal = self.refusal(room)
        self._kept.pop(room, None)
        return refusal
