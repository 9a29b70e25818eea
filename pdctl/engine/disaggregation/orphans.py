"""Page lists whose request has not come (yet): it may be late, or it went to another prefill.

Kept for a while and in a bounded number; whoever waits for one that is dropped is told why.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.engine.disaggregation.handshake import TransferInfo
    from pdctl.engine.disaggregation.loop import Loop

CAPACITY = 4096


@dataclass(frozen=True, slots=True)
class Orphan:
    info: TransferInfo
    arrived: float  # time.monotonic()


class Orphans:
    """`disown` is called with the page list and the reason, on the loop's thread."""

    def __init__(
        self, loop: Loop, ttl: float, disown: Callable[[TransferInfo, str], None], capacity: int = CAPACITY
    ) -> None:
        self._loop = loop
        self._ttl = ttl
        self._disown = disown
        self._capacity = capacity
        self._kept: OrderedDict[tuple[int, str], Orphan] = OrderedDict()
        self._sessions: dict[int, dict[str, None]] = {}  # by room, in order of arrival, of what is kept

    def keep(self, info: TransferInfo) -> int:
        """How many of the room are here now. A newer page list of the same room and session takes the older's place."""
        key = (info.room, info.session)
        orphan = self._kept[key] = Orphan(info, time.monotonic())
        self._kept.move_to_end(key)
        self._sessions.setdefault(info.room, {})[info.session] = None
        self._loop.later(self._ttl, lambda: self._expire(key, orphan))
        if len(self._kept) > self._capacity:
            dropped = self._take(next(iter(self._kept)))
            self._disown(dropped.info, f"more than {self._capacity} page lists wait for their requests")
        return len(self._sessions.get(info.room, ()))

    def _take(self, key: tuple[int, str]) -> Orphan:
        room, session = key
        del self._sessions[room][session]
        if not self._sessions[room]:
            del self._sessions[room]
        return self._kept.pop(key)

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
        for key in [key for key in self._kept if key[1] == session]:
            self._take(key)

    def _expire(self, key: tuple[int, str], orphan: Orphan) -> None:
        if self._kept.get(key) is orphan:
            self._take(key)
            self._disown(orphan.info, f"none came within {time.monotonic() - orphan.arrived:.1f}s")
