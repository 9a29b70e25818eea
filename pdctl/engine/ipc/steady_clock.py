"""A time of day that is safe for durations: set once at the start of the process, and never stepped after that.

If the host's clock is set forward by an hour, no deadline and no latency changes; times of day are off by that hour
until the process is restarted.
"""

from __future__ import annotations

import time

_START = time.time() - time.monotonic()


def now() -> float:
    """Return seconds since the epoch, which only ever grow."""
    return _START + time.monotonic()
