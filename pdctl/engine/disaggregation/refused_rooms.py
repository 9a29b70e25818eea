"""Rooms a decode gave up before their request came to this prefill: the request is then told why, at once.

Kept for a while and in a bounded number; each is told once, so that a number that is used again is a new room.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdctl.engine.disaggregation.failure import Failure

CAPACITY = 4096


class RefusedRooms:
    def __init__(self, ttl: float, capacity: int = CAPACITY) -> None:
        self._ttl = ttl
        self._capacity = capacity
        self._kept: OrderedDict[int, tuple[Failure, float]] = OrderedDict()

    def remember(self, room: int, failure: Failure) -> None:
        """The first reason is the one that is told."""
        now = time.monotonic()
        while self._kept and next(iter(self._kept.values()))[1] < now:
            self._kept.popitem(last=False)
        if room not in self._kept:
            self._kept[room] = (failure, now + self._ttl)
        if len(self._kept) > self._capacity:
            self._kept.popitem(last=False)

    def known(self, room: int) -> Failure | None:
        """Why `room` was given up, if it was and it is not too long ago."""
        failure, until = self._kept.get(room, (None, 0.0))
        return failure if time.monotonic() < until else None

    def take(self, room: int) -> Failure | None:
        """The same, and forgotten from now on."""
        failure = self.known(room)
        self._kept.pop(room, None)
        return failure
