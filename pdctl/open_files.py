"""File descriptors of this process: its limit, raised at the start, and a warning before it is reached.

At the limit a listener accepts nobody and no library says so: connections hang, and requests are dropped.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logging import Logger

ENOUGH = 65_536  # sglang 0.5.23 set_ulimit raises its processes' soft limit to as many
UNLIMITED = 1 << 30
# No descriptor is left, in this process or in the system; or, for a socket, no memory.
EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
HIGH, LOW = 0.8, 0.6  # shares of the limit: a warning from HIGH on, and another one only after it was below LOW
DESCRIPTORS = "/dev/fd"  # of the process that asks; Linux and macOS


def raise_limit(wanted: int = ENOUGH) -> int:
    """Raise the soft limit to `wanted`, or as far as the hard one allows; returns the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):  # macOS: kern.maxfilesperproc may be lower than the hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return limit()


def limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def count() -> int:
    """How many descriptors are open."""
    try:
        return len(os.listdir(DESCRIPTORS)) - 1  # noqa: PTH208  # the directory's own
    except OSError:  # none is left for the directory
        return limit()


class OpenFilesWatch:
    """Logs when few descriptors are left, and when there are enough again. Call `look` about once a second."""

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._high = False

    def look(self) -> None:
        most, lowest = limit(), _lowest_free()
        if not self._high and lowest >= HIGH * most:
            self._high = True
            self._log.warning(
                "%d of this process's %d file descriptors are open (ulimit -n); at the limit it accepts no connection "
                "and opens none. See who holds connections to it: ss -tnp | grep pid=%d; and raise the limit.",
                count(), most, os.getpid(),
            )  # fmt: skip
        elif self._high and lowest < LOW * most:
            self._high = False
            self._log.info("%d of this process's %d file descriptors are open", count(), most)


def _lowest_free() -> int:
    """The lowest free descriptor: all below it are open. Two system calls, however many there are."""
    try:
        lowest = os.dup(0)
    except OSError:
        return limit()
    os.close(lowest)
    return lowest
