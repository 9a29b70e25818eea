"""Seconds, bytes and speeds of a room in words. A figure never shows more digits than its clock had."""

from __future__ import annotations

import datetime as dt
from functools import lru_cache
from math import floor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdctl.trace.room import Duration

COARSE = 0.5  # seconds; a clock that tells no more than this gets its ± shown
BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def offset(seconds: float | None) -> str:
    """Since the room began: `+20s`, `+0.012s`; `?` for a line without a time."""
    return "?" if seconds is None else f"{seconds:+.{_digits(seconds)}f}s"


def doubt(uncertainty: float) -> str:
    """`±1s`, or nothing for a clock that tells milliseconds."""
    return f"±{uncertainty:g}s" if uncertainty >= COARSE else ""


def exact(seconds: float | None, uncertainty: float) -> str:
    """An offset as exact as its clock: whole seconds where it shows no more."""
    if seconds is not None and uncertainty >= COARSE:
        return f"{round(seconds):+d}s"
    return offset(seconds)


def began(each: Duration) -> str:
    """Where a stretch begins, on the clock of the room's lines: in the second whose stamp a line of it would bear."""
    if each.start is None:
        return ""
    doubted = max(each.start_uncertainty_s, each.uncertainty_s)
    if doubted < COARSE:
        return offset(each.start)
    return f"{floor(each.start):+d}s {doubt(doubted)}"


def took(seconds: float, uncertainty: float = 0.0) -> str:
    """`300 s`, `0.84 s`, `12 ms`."""
    if uncertainty >= COARSE:
        return f"{round(seconds)} s"
    if seconds < 0.1:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"


def size(count: int) -> str:
    for unit, name in BYTES:
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count} B"


def speed(gb_s: float) -> str:
    return f"{gb_s:.3g} GB/s"


def moment(epoch: float, zone: dt.tzinfo | None, uncertainty: float = 1.0) -> dt.datetime:
    """On the clock of `zone`, or of this machine; whole seconds where the log's clock shows no more."""
    local = dt.datetime.fromtimestamp(epoch, zone) if zone else dt.datetime.fromtimestamp(epoch).astimezone()
    return local if uncertainty < COARSE else local.replace(microsecond=0)


def window(span: tuple[float, float], zone: dt.tzinfo | None) -> str:
    """`from 2026-11-21 01:34:20 to 01:36:00`, `since …`, `until …`; an end that is infinite was not given."""
    since, until = (None if abs(each) == float("inf") else moment(each, zone, 1.0) for each in span)
    if since is None or until is None:
        one = since or until
        return f"{'since' if until is None else 'until'} {one:%Y-%m-%d %H:%M:%S}" if one is not None else ""
    same = since.date() == until.date()
    return f"from {since:%Y-%m-%d %H:%M:%S} to {until:{'%H:%M:%S' if same else '%Y-%m-%d %H:%M:%S'}}"


@lru_cache(maxsize=4096)
def rfc3339(epoch: float) -> str:
    """UTC, to the millisecond."""
    return dt.datetime.fromtimestamp(epoch, dt.timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _digits(seconds: float) -> int:
    return 3 if abs(seconds) < 10 else 2 if abs(seconds) < 100 else 1
