"""Parts of a log by position or time: its head, its tail, samples, and what was written between two times.

The times are those of `--since`, `--until` and `--tz`, read here as people write them.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import time
from collections import deque
from typing import TYPE_CHECKING

from pdctl.engines.prefix import split
from pdctl.errors import UsageError
from pdctl.logs.blocks import LINE, SIZE, Buffer, LineNumbers, blocks
from pdctl.logs.event import RawLine
from pdctl.logs.part import open_part
from pdctl.quick_definitions import NamedTuple, compile_late

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pdctl.logs.clock import Clock
    from pdctl.logs.part import LogPart
    from pdctl.logs.source import Log

    Numbers = Callable[[LogPart], LineNumbers]

CLOCK = compile_late(r"(\d{1,2}):(\d{2})(?::(\d{2})(\.\d+)?)?")
OFFSET = compile_late(r"([+-])(\d{2}):?(\d{2})")
DAY = 86400.0
YEARS = (1970, 9998)  # of a time as typed: every zone can show those
LONGEST_AGO = 36500 * DAY
WAYS = "write 2026-11-21T01:34:20, 01:34:20 (on the day of the last line) or -10m (before the last line)"
UNLIMITED = 1 << 62  # bytes
PROBE = 1 << 14  # bytes examined for a stamp
_SMALL = 1 << 17  # bytes of the buffer for a short range; more than LINE
_FAR = 1 << 20  # bytes without any stamp after which a probe gives up
_SLACK = 2.0  # seconds by which lines of several processes in one file may be out of order


class PartRanges(NamedTuple):
    """Bytes [start, end) of a part, both at the beginning of a line. whole: False if `limit` left something out."""

    part: LogPart
    ranges: tuple[tuple[int, int], ...]
    whole: bool


def read_period(
    since: str | None,
    until: str | None,
    zone: dt.tzinfo | None,
    last: Callable[[], float | None],
    first: Callable[[], float | None],
) -> tuple[float | None, float | None]:
    """`--since` and `--until` in seconds since the epoch. Raise UsageError if one is no time or they are swapped."""
    begin = None if since is None else moment("--since", since, zone, last, first)
    end = None if until is None else moment("--until", until, zone, last, first)
    if begin is not None and end is not None and begin > end:
        raise UsageError(f"--since {since} is after --until {until}", "swap them")
    return begin, end


def moment(
    flag: str,
    text: str,
    zone: dt.tzinfo | None,
    last: Callable[[], float | None],
    first: Callable[[], float | None] | None = None,
) -> float:
    """A moment in seconds since the epoch. A bare clock time is on the day of the last line.

    If that is later than the last line, it is on the day before, provided that the logs have lines of that day.
    `last`, `first`: return the time of that line, None if there is none. Raise UsageError if `text` is not a time.
    """
    clock = CLOCK.fullmatch(text)
    if clock is not None:
        return _on_the_day(flag, text, clock, zone, _known(last()), first)
    if text[:1] == "-" or re.fullmatch(r"[\d.]+[a-z][\da-z.]*", text):
        from pdctl.units import flag_seconds  # imported late: most periods are absolute, or none

        return _known(last()) - flag_seconds(flag, text, ago=LONGEST_AGO)
    try:
        # Python 3.10 does not accept the Z of RFC 3339.
        found = dt.datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text))
    except ValueError:
        raise UsageError(f"{flag} {text}: this is not a time", WAYS) from None
    if not YEARS[0] <= found.year <= YEARS[1]:
        raise UsageError(f"{flag} {text}: no log is from the year {found.year}", WAYS)
    return _epoch(found, zone)


def _known(last: float | None) -> float:
    if last is None:
        raise UsageError("no line of these logs carries a time, so nothing is before or after it", WAYS)
    return last


def _on_the_day(
    flag: str,
    text: str,
    clock: re.Match[str],
    zone: dt.tzinfo | None,
    last: float,
    first: Callable[[], float | None] | None,
) -> float:
    hour, minute, second = (int(part or 0) for part in clock.group(1, 2, 3))
    if hour > 23 or minute > 59 or second > 59:
        raise UsageError(f"{flag} {text}: no clock shows that", WAYS)
    day = dt.datetime.fromtimestamp(last, zone)
    fraction = float(clock[4] or 0)
    found = _epoch(day.replace(hour=hour, minute=minute, second=second, microsecond=0), zone) + fraction
    if found <= last:
        return found
    began = first() if first is not None else None
    midnight = _epoch(day.replace(hour=0, minute=0, second=0, microsecond=0), zone)
    return found - DAY if began is not None and began < midnight else found


def _epoch(found: dt.datetime, zone: dt.tzinfo | None) -> float:
    """A time in seconds since the epoch. Without a zone of its own, it is in the logs' zone."""
    return (found if found.tzinfo or zone is None else found.replace(tzinfo=zone)).timestamp()


def timezone(text: str | None) -> dt.tzinfo | None:
    """The zone of `UTC`, `+02:00` or `Europe/Berlin`; None (this machine's zone) for `local` or nothing.

    Raise UsageError if there is no such zone, or if this machine's is a day or more from UTC, as POSIX lets TZ be.
    """
    if text is None or text.lower() == "local":
        if max(abs(time.timezone), abs(time.altzone)) >= DAY:
            said = f"this machine's time zone (TZ={os.environ.get('TZ', '')}) is a day or more from UTC"
            raise UsageError(said, "set TZ to a zone that exists, such as TZ=Europe/Berlin, or give --tz UTC")
        return None
    if text.lower() in ("utc", "z"):
        return dt.timezone.utc
    offset = OFFSET.fullmatch(text)
    if offset is not None:
        away = dt.timedelta(hours=int(offset[2]), minutes=int(offset[3]))
        if away < dt.timedelta(days=1):
            return dt.timezone(away if offset[1] == "+" else -away)
    import zoneinfo  # imported late: rarely needed

    try:
        return zoneinfo.ZoneInfo(text)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise UsageError(f"--tz {text}: no such time zone", "write UTC, +02:00, local or Europe/Berlin") from None


def head(log: Log, size: int, numbers: Numbers = LineNumbers) -> list[RawLine]:
    """The first whole lines of the log, about `size` bytes of them."""
    for part in log.parts:
        if part.size:
            return list(lines(part, 0, size, numbers(part)))
    return []


def tail(log: Log, size: int, numbers: Numbers = LineNumbers) -> list[RawLine]:
    """The last lines of the log, about `size` bytes of them; a compressed part is read through to its end."""
    for part in reversed(log.parts):
        if part.size and part.plain:
            return list(lines(part, line_start(part, max(0, part.size - size)), part.size, numbers(part)))
        if part.size:
            return _end_of(part, size, numbers(part))
    return []


def samples(log: Log, count: int, size: int) -> Iterator[RawLine]:
    """Lines of `count` windows spread evenly over the plain parts."""
    parts = [part for part in log.parts if part.plain]
    total = sum(part.size for part in parts)
    for at in (total * (k + 1) // (count + 1) for k in range(count)):
        for part in parts:
            if at < part.size:
                start = line_start(part, at)
                yield from lines(part, start, start + size, LineNumbers(part))
                break
            at -= part.size


def lines(part: LogPart, start: int, end: int, numbers: LineNumbers) -> Iterator[RawLine]:
    """Lines that begin in [start, end), each cut to 64 KiB. `start` begins a line."""
    buffer = Buffer(SIZE if end - start > SIZE else _SMALL)
    stream = open_part(part, start)
    long_line = -1
    try:
        for block in blocks(stream, buffer, start):
            if block.long_line is not None:
                if block.long_line.offset >= end or (block.long_line.offset == long_line and block.offset >= end):
                    return
                if block.long_line.offset != long_line:
                    long_line = block.long_line.offset
                    yield RawLine(numbers.place(long_line), block.long_line.head, part)
                continue
            offset, stop = block.offset, block.end
            wanted = block.start + end - offset  # lines that begin before it, in `buffer`
            if wanted <= block.start:
                return
            if wanted < stop:
                stop = buffer.data.find(b"\n", wanted - 1, stop) + 1 or stop
            texts = bytes(buffer.view[block.start : stop]).split(b"\n")
            if not texts[-1]:
                texts.pop()  # nothing behind the last newline
            for text in texts:
                yield RawLine(numbers.place(offset), text[:LINE], part)
                offset += len(text) + 1
    finally:
        stream.close()


def _end_of(part: LogPart, size: int, numbers: LineNumbers) -> list[RawLine]:
    kept: deque[RawLine] = deque()
    held = 0
    for raw in lines(part, 0, UNLIMITED, numbers):
        kept.append(raw)
        held += len(raw.line)
        while held > size and len(kept) > 1:
            held -= len(kept.popleft().line)
    return list(kept)


def line_start(part: LogPart, offset: int) -> int:
    """Where the first line at or after `offset` begins; the part's size if none begins within 1 MiB."""
    if offset == 0:
        return 0
    stream = open_part(part, offset - 1)
    window = memoryview(bytearray(PROBE))
    at = offset - 1
    try:
        while at < offset + _FAR and (got := stream.readinto(window)):
            found = bytes(window[:got]).find(b"\n")
            if found >= 0:
                return at + found + 1
            at += got
    finally:
        stream.close()
    return part.size


def between(
    part: LogPart, since: float, until: float, clock: Clock, limit: int, focus: tuple[float, float] | None = None
) -> PartRanges:
    """Where lines of [since, until] (epoch seconds) are, by bisecting on stamps or reading through a compressed part.

    Lines may be slightly out of order, and lines without a stamp belong to the one before. If more than `limit` bytes
    lie between, half of `limit` is taken at either end, or at each of the two times of `focus`.
    """
    if limit == UNLIMITED and since == float("-inf") and until == float("inf"):
        return PartRanges(part, ((0, UNLIMITED),), True)
    finder: _Bisected | _Passed = _Bisected(part, clock) if part.plain else _Passed(part, clock)
    start = finder.before(since - _SLACK)
    end = finder.behind(until + _SLACK + 1.0)
    if end - start <= limit:
        return PartRanges(part, ((start, end),), True)
    half = limit // 2
    if focus is None:
        edges = [(start, start + half), (end - half, end)]
    else:
        places = [max(start, finder.before(t)) for t in focus]
        edges = [(at, min(end, at + max(half, 2 * PROBE))) for at in places]  # the time is within the first PROBE bytes
    ranges: list[tuple[int, int]] = []
    for low, high in edges:
        low = max(finder.line_start(low), ranges[-1][1] if ranges else 0)
        ranges.append((low, max(low, finder.line_start(high))))
    return PartRanges(part, tuple(ranges), False)


class _Bisected:
    """Finds places in a plain part by time."""

    def __init__(self, part: LogPart, clock: Clock) -> None:
        self._part, self._clock = part, clock
        self._probed: dict[int, tuple[int, float | None]] = {}  # a room's times have most of the way in common

    def before(self, t: float) -> int:
        """A line start at most PROBE bytes before the first stamp of at least `t`."""
        return self._around(t)[0]

    def behind(self, t: float) -> int:
        """A line start near that stamp, but not before it."""
        return line_start(self._part, self._around(t)[1])

    def line_start(self, offset: int) -> int:
        return line_start(self._part, offset)

    def _around(self, t: float) -> tuple[int, int]:
        low, high = 0, self._part.size
        while high - low > PROBE:
            middle = (low + high) // 2
            if middle not in self._probed:
                self._probed[middle] = self._stamped(middle)
            offset, found = self._probed[middle]
            if found is None or found >= t or offset >= high:
                high = middle
            else:
                low = offset
        return low, high

    def _stamped(self, start: int) -> tuple[int, float | None]:
        """Offset and time of the first line with a stamp within _FAR of `start`; the time is None without one."""
        start = line_start(self._part, start)
        for end in (start + PROBE, start + _FAR):  # nearly always the first line has one
            for raw in lines(self._part, start, end, LineNumbers(self._part)):
                stamp = split(raw.line).stamp
                instant = self._clock.read(stamp) if stamp else None
                if instant is not None:
                    return raw.place.offset, instant.t
        return start, None


class _Passed:
    """The same in a compressed part, block by block: it cannot be bisected, so it is read through once."""

    def __init__(self, part: LogPart, clock: Clock) -> None:
        buffer = Buffer(SIZE)
        stream = open_part(part)
        self._marks: list[tuple[int, float]] = []  # where a block begins, and its first stamp
        self._size = 0
        try:
            for block in blocks(stream, buffer):
                self._size = block.offset + block.end - block.start
                t = _first_stamp(bytes(buffer.view[block.start : min(block.end, block.start + PROBE)]), clock)
                if t is not None and block.long_line is None:
                    self._marks.append((block.offset, t))
        finally:
            stream.close()

    def before(self, t: float) -> int:
        return max((offset for offset, found in self._marks if found < t), default=0)

    def behind(self, t: float) -> int:
        return min((offset for offset, found in self._marks if found >= t), default=self._size)

    def line_start(self, offset: int) -> int:
        return min((start for start, _ in self._marks if start >= offset), default=self._size)


def _first_stamp(text: bytes, clock: Clock) -> float | None:
    for line in text.split(b"\n"):
        stamp = split(line).stamp
        instant = clock.read(stamp) if stamp else None
        if instant is not None:
            return instant.t
    return None
