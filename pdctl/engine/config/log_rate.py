"""Log lines that a stranger can cause: some at once, then one a second, with the number of those left out."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logging import Logger

BURST = 20
INTERVAL = 1.0  # seconds


class LogRate:
    """Not thread-safe: the thread that reads a socket has its own."""

    def __init__(self, log: Logger, burst: int = BURST, interval: float = INTERVAL) -> None:
        self._log = log
        self._burst = burst
        self._interval = interval
        self._allowed = float(burst)
        self._at = time.monotonic()
        self._left_out = 0

    def warning(self, text: str, *values: object) -> None:
        self._write(logging.WARNING, text, values)

    def error(self, text: str, *values: object) -> None:
        self._write(logging.ERROR, text, values)

    def _write(self, level: int, text: str, values: tuple[object, ...]) -> None:
        now = time.monotonic()
        self._allowed = min(float(self._burst), self._allowed + (now - self._at) / self._interval)
        self._at = now
        if self._allowed < 1.0:
            self._left_out += 1
            return
        self._allowed -= 1.0
        if self._left_out:
            text, values, self._left_out = text + " (%d such lines left out before)", (*values, self._left_out), 0
        self._log.log(level, text, *values)
