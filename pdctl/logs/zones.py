"""Infer the time zone of a set of logs whose stamps do not show one.

Logs of one set share one zone unless the evidence says otherwise: a zone that a log shows itself, the rooms and request
ids that two logs have in common, or where a router's log that is known to be in UTC begins and ends.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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
