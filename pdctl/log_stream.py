"""Standard error for log lines: lines that cannot be written are counted, and reported once writing works again."""

from __future__ import annotations

import os
import time

FAILED = "%Y-%m-%d %H:%M:%S"


def stamp() -> str:
    """Now, as sglang writes it with SGLANG_LOG_MS: local time, in milliseconds, which order the lines of two logs."""
    now = time.time()
    return f"{time.strftime(FAILED, time.localtime(now))}.{int(now % 1 * 1000):03d}"


class LogStream:
    """Writes whole lines to a file descriptor and never raises: a full disk must not stop the process that logs.

    Not safe for several threads without a lock around it (logging's handlers hold one).
    """

    def __init__(self, fd: int = 2) -> None:
        self._fd = fd
        self._lost = 0  # lines
        self._since = 0.0
        self._why = ""

    def write(self, text: str) -> int:
        data = text.encode("utf-8", "backslashreplace")
        if self._lost:
            data = self._told().encode() + data
        try:
            self._put(data)
        except OSError as error:
            self._since = self._since or time.time()
            self._why = error.strerror or str(error)
            self._lost += max(text.count("\n"), 1)
        else:
            self._lost, self._since = 0, 0.0
        return len(text)

    def flush(self) -> None:
        """Do nothing: every line is written at once."""

    def _put(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def _told(self) -> str:
        """Report the losses on a line of their own, behind the half line that a full disk may have left."""
        since = time.strftime(FAILED, time.localtime(self._since))
        lines = f"{self._lost} line{'s' if self._lost > 1 else ''} of this log"
        return f"\n[{stamp()}] WARNING {lines} could not be written since {since}: {self._why}\n"
