"""Convert stamps in log prefixes to seconds since the epoch, on the clock of the host that wrote them.

A prefix is local time without a zone. The zone is the one requested, else the one that the logs show (`utc_offset` of
HTTP access lines), else this machine's. Logs of one set share one zone unless the evidence says otherwise: a zone that
a log shows itself, the rooms and request ids that two logs have in common, or where a router's log that is known to be
in UTC begins and ends.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING

from pdctl.engines import numerals
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

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
    timed: False for a log whose lines carry no time; what stands where a stamp would is quoted text.
    """

    def __init__(self, zone: dt.tzinfo | None, since: Callable[[], float] | None = None, *, timed: bool = True) -> None:
        self._zone = zone
        self._timed = timed
        self._ask_since = since
        self._minutes: dict[tuple[int, int, int, int, int, int | None], tuple[float, float]] = {}

    def read(self, stamp: Stamp) -> Instant | None:
        """The time of a stamp; None for a date that does not exist or that no log can have."""
        if not self._timed:
            return None
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


QUARTER = 900  # seconds; every zone in use is a whole number of them from UTC
FARTHEST = 14 * 3600  # seconds east or west of UTC
TOGETHER = 10.0  # seconds within which two logs of one deployment write of the same id
ENDED_TOGETHER = 120.0  # seconds within which the last lines of logs that were copied at one time were written
STARTED_BEFORE = 3600.0  # seconds by which an engine may have started before its router
REQUEST = 600.0  # seconds from a request's entry to the line that tells it, at most


class LogTimes(NamedTuple):
    """The times of a log as written, in seconds since 1970-01-01 as if they were UTC.

    offset: seconds east of UTC if the log shows it. utc: the times are in UTC, because every line has its zone or the
    writer always writes UTC. span: first and last time, None without dates. ids: when each room or request id first
    occurs; it is called only if another log can be compared.
    """

    instance: str
    offset: int | None
    utc: bool
    span: tuple[float, float] | None
    ids: Callable[[], Mapping[bytes, float]]


class ZoneFound(NamedTuple):
    """offset: seconds east of UTC. why: the evidence, as a phrase."""

    offset: int
    why: str


def offset_by_entries(pairs: Sequence[tuple[float, float]]) -> int | None:
    """The zone shown by lines that tell when a request came in: (time as written, epoch seconds of the entry).

    The entry is before the stamp by the duration of the request; None if most lines do not agree on a zone.
    """
    votes: Counter[int] = Counter()
    for written, entry in pairs:
        east = int((written - entry + TOGETHER) // QUARTER) * QUARTER
        if written - entry - east <= REQUEST and abs(east) <= FARTHEST:
            votes[east] += 1
    east, count = votes.most_common(1)[0] if votes else (0, 0)
    return east if count * 2 > len(pairs) else None


def infer_zones(logs: Sequence[LogTimes]) -> Mapping[str, ZoneFound]:
    """instance → its zone. A log that is absent is in the reader's zone, because nothing tells."""
    found = {log.instance: ZoneFound(log.offset, "its own lines show it") for log in logs if log.offset is not None}
    open_ = [log for log in logs if log.instance not in found and not log.utc]
    known = [log for log in logs if log.instance in found or log.utc]
    while known and open_:
        near = {one.instance: zone for one in open_ if (zone := _by_ids(one, known, found)) is not None}
        if not near:
            break
        found.update(near)
        known = [log for log in open_ if log.instance in near]
        open_ = [log for log in open_ if log.instance not in near]
    counted = Counter(zone.offset for zone in found.values()).most_common()
    common = counted[0][0] if counted and (len(counted) == 1 or counted[0][1] > counted[1][1]) else None
    routers = [log for log in logs if log.utc and log.instance not in found]
    if common is not None:
        spans = [
            (log.span[0] - found[log.instance].offset, log.span[1] - found[log.instance].offset)
            for log in logs
            if log.instance in found and log.span is not None
        ]
        shared = ZoneFound(common, "the zone of the other logs")
        found.update({log.instance: shared for log in open_})
        found.update({log.instance: _of_router(log, spans, shared) for log in routers})
    elif not found and routers:
        east = _by_ends(open_, routers)
        if east is not None:
            said = ZoneFound(east, f"ends with {routers[0].instance}, which writes UTC")
            found.update({log.instance: said for log in open_})
            found.update({log.instance: ZoneFound(0, "it always writes UTC") for log in routers})
    return found


def _by_ids(log: LogTimes, known: Sequence[LogTimes], zones: Mapping[str, ZoneFound]) -> ZoneFound | None:
    """The zone in which most ids that `log` shares with `known` occur in both at one time."""
    votes: Counter[tuple[int, str]] = Counter()
    shared = 0
    mine = log.ids()
    for other in known:
        theirs = other.ids()
        east_of = zones[other.instance].offset if other.instance in zones else 0
        for name in mine.keys() & theirs.keys():
            apart = mine[name] - (theirs[name] - east_of)
            east = round(apart / QUARTER) * QUARTER
            shared += 1
            if abs(apart - east) <= TOGETHER and abs(east) <= FARTHEST:
                votes[east, other.instance] += 1
    totals: Counter[int] = Counter()
    for (east, _), count in votes.items():
        totals[east] += count
    if not totals:
        return None
    east, count = totals.most_common(1)[0]
    if count * 2 <= shared:
        return None
    names = sorted({name for each, name in votes if each == east})
    return ZoneFound(east, f"{count} rooms or requests at the same time in {', '.join(names)}")


def _of_router(log: LogTimes, spans: Sequence[tuple[float, float]], shared: ZoneFound) -> ZoneFound:
    """UTC, unless that puts a router's lines where no engine of the set wrote one and the shared zone does not."""
    if log.span is None:
        return shared

    def beside(east: int) -> bool:
        first, last = (moment - east for moment in log.span or (0.0, 0.0))
        return any(first <= ended and began <= last for began, ended in spans)

    return shared if not beside(0) and beside(shared.offset) else ZoneFound(0, "it always writes UTC")


def _by_ends(engines: Sequence[LogTimes], routers: Sequence[LogTimes]) -> int | None:
    """The offset with which the logs of engines and UTC routers end together and the routers' begin not too far off."""
    theirs = [log.span for log in engines if log.span is not None]
    ours = [log.span for log in routers if log.span is not None]
    if not theirs or not ours:
        return None
    apart = max(last for _, last in theirs) - max(last for _, last in ours)
    east = round(apart / QUARTER) * QUARTER
    began = min(first for first, _ in ours) - (min(first for first, _ in theirs) - east)
    near = abs(apart - east) <= ENDED_TOGETHER and abs(east) <= FARTHEST and abs(began) <= STARTED_BEFORE
    return east if near else None
