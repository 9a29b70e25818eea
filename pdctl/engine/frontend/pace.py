"""How fast requests leave an instance, and so when a full queue will have room again: the Retry-After of its 503."""

from __future__ import annotations

import math
import time
from collections import deque

WINDOW = 30.0  # seconds that are looked back on
MOST = 1024  # ends remembered
UNKNOWN = 5  # seconds, where nothing has ended in the window
LONGEST = 60


class Pace:
    def __init__(self) -> None:
        self._began = time.monotonic()
        self._ends: deque[float] = deque(maxlen=MOST)

    def ended(self) -> None:
        """A request has left."""
        self._ends.append(time.monotonic())

    def seconds_until(self, ends: int) -> int:
        """Whole seconds until `ends` more requests have left at the pace of the last WINDOW; at least 1."""
        now = time.monotonic()
        while self._ends and self._ends[0] < now - WINDOW:
            self._ends.popleft()
        if not self._ends:
            return UNKNOWN
        since = self._ends[0] if len(self._ends) == MOST else max(self._began, now - WINDOW)
        rate = len(self._ends) / max(now - since, 1e-3)
        return max(1, min(LONGEST, math.ceil(ends / rate)))
