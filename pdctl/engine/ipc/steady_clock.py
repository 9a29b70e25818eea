"""The time of day as durations need it: set once at the start of the process, and never stepped after that.

Whoever sets the host's clock by an hour moves no deadline and no latency; what is shown as a time of day is off by
that hour until the process starts again.
"""

from __future__ import annotations

import time

_START = time.time() - time.monotonic()


def now() -> float:
    """Seconds since the epoch; only ever grows."""
    return _START + time.monotonic()
