"""Convert stamps in log prefixes to seconds since the epoch, on the clock of the host that wrote them.

A prefix is local time without a zone. The zone is the one requested, else the one that the logs show (`utc_offset` of
HTTP access lines; pdctl/logs/zones.py), else this machine's.
"""

from __future__ import annotations

import datetime as dt
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from pdctl.engines import numerals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pdctl.engines.prefix import Stamp


DAY = 86400.0
# Years accepted from a host's clock; one that was never set shows 1970. Close to the limits of datetime's calendar,
# adding a zone or half a day would overflow.
FIRST, LAST = 1970, 2199
_KEPT = 4096  # minutes whose start is cached


class Instant(NamedTuple):
    """The line was written in [t, t + uncertainty_s); an hour is added where clocks were set back."""

    t: float
    uncertainty_s: float


class Clock:
    """Reads stamps. `since` returns the earliest time an undated stamp can mean: the first such time of day after it.

    It is called only for such a stamp. Without it, undated stamps count from the epoch: consistent within one day.
    """

    def __init__(self, zone: dt.tzinfo | None, since: Callable[[], float] | None = None) -> None:
        self._zone = zone
        self._ask_since = since
        self._minutes: dict[tuple[int, int, int, int, int, int | None], tuple[float, float]] = {}

    def read(self, stamp: Stamp) -> Instant | None:
        """The time of a stamp; None for a date that does not exist or that no log can have."""
        second = stamp.second + stamp.micro / 1e6
        if stamp.month == 0:
            return Instant(self._of_day(stamp) + second, stamp.resolution_s)
        year = stamp.year or self._year(stamp)
        if not FIRST <= year <= LAST:
            return None
        key = (year, stamp.month, stamp.day, stamp.hour, stamp.minute, stamp.zone)
        if key not in self._minutes:
            try:
                found = self._minute(key)
            except (ValueError, OverflowError, OSError):
                return None
            if len(self._minutes) >= _KEPT:
                self._minutes.clear()
            self._minutes[key] = found
        start, folded = self._minutes[key]
        return Instant(start + second, stamp.resolution_s + folded)

    @cached_property
    def _since(self) -> float:
        return self._ask_since() if self._ask_since else 0.0

    def _minute(self, key: tuple[int, int, int, int, int, int | None]) -> tuple[float, float]:
        """When the minute began, and how much later it came again because clocks were set back, both in seconds."""
        zone = self._zone if key[5] is None else dt.timezone(dt.timedelta(seconds=key[5]))
        moment = dt.datetime(*key[:5], tzinfo=zone)
        first = moment.timestamp()
        return first, max(0.0, moment.replace(fold=1).timestamp() - first)

    def _of_day(self, stamp: Stamp) -> float:
        start = dt.datetime.fromtimestamp(self._since, self._zone)
        moment = start.replace(hour=stamp.hour, minute=stamp.minute, second=0, microsecond=0, fold=0)
        found = moment.timestamp()
        if found + stamp.second + 1 <= self._since:
            found = (moment + dt.timedelta(days=1)).timestamp()
        return found

    def _year(self, stamp: Stamp) -> int:
        """The year for syslog and glog, which write none: the one closest to the beginning of undated stamps."""
        start = dt.datetime.fromtimestamp(self._since, self._zone)
        behind = (stamp.month, stamp.day) < (start.month, start.day) and start.month - stamp.month > 6
        ahead = stamp.month - start.month > 6
        return start.year + behind - ahead


def zone_of_offset(utc_offset: str) -> dt.tzinfo | None:
    """The zone for `+0530`, as in an access line's time; None for anything else."""
    hours, minutes = numerals.whole(utc_offset[1:3]), numerals.whole(utc_offset[3:])
    if len(utc_offset) != 5 or utc_offset[0] not in "+-" or hours is None or minutes is None:
        return None
    away = dt.timedelta(hours=hours, minutes=minutes)
    return dt.timezone(-away if utc_offset[0] == "-" else away) if away < dt.timedelta(days=1) else None


def undated_since(
    clocks: Iterable[float], dated: tuple[float, float] | None, modified: float, zone: dt.tzinfo | None
) -> float:
    """Epoch seconds from which undated times of day count.

    clocks: seconds of day of undated lines; dated: range of the other lines, epoch seconds. Undated lines are taken to
    lie within half a day of the middle of that range. Without a range, the longest quiet stretch of the day is taken
    to be the night, and the last line before it the latest one not after `modified`, the files' last change.
    """
    if dated is not None:
        return (dated[0] + dated[1]) / 2 - DAY / 2
    known = sorted(set(clocks))
    if not known:
        return 0.0
    gaps = [(known[i] - known[i - 1] if i else known[0] + DAY - known[-1], known[i]) for i in range(len(known))]
    gap, first = max(gaps)
    midnight = (
        dt.datetime.fromtimestamp(modified + 60, zone).replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
    )
    last = first + DAY - gap  # seconds after the midnight before the first
    while midnight + last > modified + 60:
        midnight -= DAY
    return midnight + first - min(gap / 2, DAY / 4)
