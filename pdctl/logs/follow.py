"""Logs as they grow: opened again and again, and handed on whenever a file of theirs has changed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pdctl.logs.source import Log

POLL = 0.2  # seconds between looks at files that do not grow


def growing(
    open_now: Callable[[], tuple[Log, ...]], limit: float, clock: Callable[[], float] = time.monotonic
) -> Iterator[tuple[Log, ...]]:
    """The logs as they are, then each time a file is new, longer, cut off or replaced; for `limit` seconds."""
    deadline = clock() + limit
    seen: list[tuple[str, int, int, int]] | None = None
    while True:
        logs = open_now()
        files = [(part.path, part.device, part.inode, part.size) for log in logs for part in log.parts]
        if files != seen:
            seen = files
            yield logs
        left = deadline - clock()
        if left <= 0:
            return
        time.sleep(min(POLL, left))
