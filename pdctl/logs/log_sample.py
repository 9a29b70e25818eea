"""What a log's head, tail and a few samples tell: who wrote it, how it began and ended, and its clock."""

from __future__ import annotations

import datetime as dt
from functools import cached_property
from typing import TYPE_CHECKING

from pdctl.engines import message_details
from pdctl.engines.base import Sign
from pdctl.engines.identify import Identity, identify
from pdctl.engines.prefix import cut, split, stamp_of
from pdctl.engines.routers.sglang_router import LIST_BYTES as LIST
from pdctl.engines.routers.sglang_router import opens_list
from pdctl.engines.row_matching import adapter
from pdctl.logs import window
from pdctl.logs.blocks import SIZE, Buffer, LineNumbers
from pdctl.logs.clock import DAY, Clock, LogTimes, infer_zones, offset_by_entries, undated_since, zone_of_offset
from pdctl.logs.event import RawLine, rejoined_lists
from pdctl.logs.part import modified
from pdctl.logs.scan import ByteSpan, SearchTerm, find_lines, search
from pdctl.quick_definitions import NamedTuple, compile_late

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pdctl.engines.base import Row
    from pdctl.engines.prefix import Stamp
    from pdctl.engines.row_matching import Speech
    from pdctl.logs.clock import ZoneFound
    from pdctl.logs.event import Event, EventReader
    from pdctl.logs.part import LogPart
    from pdctl.logs.source import Log
    from pdctl.logs.window import Numbers


SHORT_HEAD, SHORT_TAIL = 1 << 15, 1 << 13  # bytes
LONG_HEAD = 1 << 16  # bytes of a head that contains a start, where a process says more about itself
SAMPLES, SAMPLE = 2, 1 << 12
# `"bootstrap_room","value":{"stringValue":"0x1dcf…"}`, `bootstrap_room: Str(0x1dcf…)`, `room=1dcf…`
_HEX = compile_late(
    rb"room(?:[^0-9\n]{1,60}?0x[0-9a-f]{1,16}(?![0-9a-zA-Z])"
    rb"|[=\"': ]{1,6}(?=[0-9]{0,15}[a-f])[0-9a-f]{9,16}(?![0-9a-zA-Z-]))"
)
# A room, or a request id as engines and routers make them; a smaller number may be anything.
_ROOM_DIGITS = range(15, 21)
_RID_DIGITS = 32
# Digits, letters and points stay, everything else parts words.
_WORDS = bytes(byte if chr(byte).isascii() and (chr(byte).isalnum() or byte == 0x2E) else 0x20 for byte in range(256))
_MOST_IDS = 64  # of a log's head, and as many of the rest: two logs are compared by them
_UTC = Clock(dt.timezone.utc)
QUOTED = 10  # lines, at least, for each that quotes a time, in a log whose own lines carry none


class LogSample:
    def __init__(self, log: Log, speech: Speech, numbers: Numbers) -> None:
        self._log, self._speech, self._numbers = log, speech, numbers

    @cached_property
    def head(self) -> tuple[bytes, ...]:
        long = window.head(self._log, LONG_HEAD, self._numbers)
        short = [raw for raw in long if raw.place.offset < SHORT_HEAD]
        text = b"\n".join(raw.line for raw in short)
        starts = any(row.literal in text for row in self._speech.rows if Sign.STARTED in row.proves)
        return tuple(raw.line for raw in rejoined_lists(long if starts else short))

    @cached_property
    def rest(self) -> tuple[bytes, ...]:
        """Lines of the middle and the end; () if a part is compressed: its end is not worth decompressing it all."""
        if not all(part.plain for part in self._log.parts) or self._log.size <= SHORT_HEAD:
            return ()
        between = window.samples(self._log, SAMPLES, SAMPLE)
        return (
            *(raw.line for raw in between),
            *(raw.line for raw in window.tail(self._log, SHORT_TAIL, self._numbers)),
        )

    @cached_property
    def identity(self) -> Identity:
        return identify((*self.head, *self.rest), self._speech)

    @cached_property
    def hexadecimal(self) -> bool:
        """Whether it may write rooms in hex: no sampled line is an engine's or a router's, or one has a room in hex."""
        known = any(self._speech.match(line) for line in (*self.head, *self.rest))
        return not known or any(_HEX.search(line) for line in (*self.head, *self.rest))

    @cached_property
    def timed(self) -> bool:
        """Whether its lines carry times. If no known line does, the few stamps of other lines are quoted text."""
        lines = [line for line in (*self.head, *self.rest) if line.strip()]
        known = False
        for line in lines:
            if self._speech.match(line) is not None:
                if stamp_of(cut(line)) is not None:
                    return True
                known = True
        stamped = sum(stamp_of(cut(line)) is not None for line in lines)
        return not known or stamped * QUOTED > len(lines)

    @cached_property
    def stamps(self) -> tuple[Stamp, ...]:
        """The first and the last stamp of the samples; () if its lines carry no times."""
        if not self.timed:
            return ()
        found = (_first(self.head), _first(reversed(self.rest or self.head)))
        return tuple(stamp for stamp in found if stamp is not None)

    @property
    def zoned(self) -> bool:
        """Whether the lines write their zone, as far as the first and the last stamp tell."""
        return bool(self.stamps) and all(stamp.zone is not None for stamp in self.stamps)

    @cached_property
    def offset(self) -> int | None:
        """Seconds east of UTC, if an access line or the times of requests show them."""
        own = zone_of_offset(self.identity.facts.get("utc_offset", ""))
        away = own.utcoffset(None) if own is not None else None
        if away is not None:
            return int(away.total_seconds())
        entries = []
        for line in (*self.head, *self.rest):
            entry = message_details.entry_of(line)
            stamp = stamp_of(cut(line)) if entry is not None else None
            written = _UTC.read(stamp) if stamp is not None and stamp.year else None
            if entry is not None and written is not None:
                entries.append((written.t, entry))
        return offset_by_entries(entries)

    @cached_property
    def ids(self) -> Mapping[bytes, float]:
        """Rooms and request ids of the samples → when each first occurs, as written, in seconds as if it were UTC."""
        found: dict[bytes, float] = {}
        for lines in (self.head, self.rest) if self.timed else ():
            most = len(found) + _MOST_IDS
            for line in lines:
                words = line.translate(_WORDS).split()
                names = [word for word in words if len(word) >= _ROOM_DIGITS.start and _is_id(word)]
                names = [name for name in names if name not in found]
                stamp = stamp_of(cut(line)) if names else None
                instant = _UTC.read(stamp) if stamp is not None and stamp.year else None
                if instant is not None:
                    found.update(dict.fromkeys(names, instant.t))
                if len(found) >= most:
                    break
        return found


def _is_id(word: bytes) -> bool:
    if len(word) == _RID_DIGITS:
        return not word.strip(b"0123456789abcdef")
    return len(word) in _ROOM_DIGITS and word.isdigit()


def _first(lines: Iterable[bytes]) -> Stamp | None:
    return next((stamp for line in lines if (stamp := split(line).stamp) is not None), None)


class LogClocks:
    """zone: the one requested; None: the one the logs show, else this machine's. notes: what is assumed."""

    def __init__(self, logs: Sequence[Log], zone: dt.tzinfo | None, sample: Callable[[Log], LogSample]) -> None:
        self._logs, self._zone, self._sample = logs, zone, sample
        self._clocks: dict[str, Clock] = {}
        self.notes: tuple[str, ...] = ()

    def of(self, log: Log) -> Clock:
        found = self._clocks.get(log.instance)
        if found is None:
            found = self._clocks[log.instance] = Clock(
                self.zone_of(log), lambda: self.since(log), timed=self._sample(log).timed
            )
        return found

    def zone_of(self, log: Log) -> dt.tzinfo | None:
        if self._zone is not None:
            return self._zone
        found = self._zones.get(log.instance)
        return None if found is None else dt.timezone(dt.timedelta(seconds=found.offset))

    @cached_property
    def zone_notes(self) -> tuple[str, ...]:
        said: dict[tuple[str, str], dict[str, list[str]]] = {}
        for log in self._logs:
            found = self._zones.get(log.instance)
            if found is None or self._sample(log).zoned:
                continue
            span = self._times(log).span
            moment = span[0] - found.offset if span else modified(log.parts[-1])
            here = int((dt.datetime.fromtimestamp(moment).astimezone().utcoffset() or dt.timedelta()).total_seconds())
            if here != found.offset:
                reasons = said.setdefault((_spelt(found.offset), _spelt(here)), {})
                reasons.setdefault(found.why, []).append(log.instance)
        return tuple(
            f"the logs' times are read as {zone}, this machine's zone is {here} (--tz overrules): "
            + "; ".join(f"{', '.join(names)}: {why}" for why, names in reasons.items())
            for (zone, here), reasons in said.items()
        )

    @cached_property
    def _zones(self) -> Mapping[str, ZoneFound]:
        return {} if self._zone is not None else infer_zones([self._times(log) for log in self._logs])

    def _times(self, log: Log) -> LogTimes:
        sample = self._sample(log)
        read = [_UTC.read(stamp) for stamp in sample.stamps if stamp.year]
        moments = [instant.t for instant in read if instant is not None]
        writer = adapter(sample.identity.speaker)
        return LogTimes(
            log.instance,
            None if sample.zoned else sample.offset,
            sample.zoned or (writer is not None and writer.writes_utc),
            (min(moments), max(moments)) if moments else None,
            lambda: sample.ids,
        )

    def since(self, log: Log) -> float:
        """Epoch seconds from which the log's undated stamps count: around the log's own dates, if it has any."""
        own = self._dated(log)
        return self._common if own is None else own[0] - DAY / 2

    def _dated(self, log: Log) -> tuple[float, float] | None:
        """First and last time in the samples, epoch seconds; None if their stamps have no date."""
        clock = self.of(log)
        read = [clock.read(stamp) for stamp in self._sample(log).stamps if stamp.year]
        moments = [instant.t for instant in read if instant is not None]
        return (min(moments), max(moments)) if moments else None

    @cached_property
    def _common(self) -> float:
        """The same for all logs without dates: files given together belong to the same day."""
        ranges = {log.instance: self._dated(log) for log in self._logs}
        dated = [range_ for range_ in ranges.values() if range_ is not None]
        # A stamp with an impossible date (2026-02-30) has no time, but it is not one without a date.
        undated = {
            log.instance: [stamp for stamp in self._sample(log).stamps if not stamp.year]
            for log in self._logs
            if ranges[log.instance] is None
        }
        logs = [log for log in self._logs if undated.get(log.instance)]
        if not logs:
            return 0.0
        stamps = [stamp for log in logs for stamp in undated[log.instance]]
        clocks = [stamp.hour * 3600.0 + stamp.minute * 60.0 + stamp.second for stamp in stamps]
        changed = max(modified(log.parts[-1]) for log in logs)
        whole = (min(first for first, _ in dated), max(last for _, last in dated)) if dated else None
        zone = self.zone_of(logs[0])
        since = undated_since(clocks, whole, changed, zone)
        day = dt.datetime.fromtimestamp(since + DAY / 2, zone)
        names = ", ".join(log.instance for log in logs)
        reason = "the day of the other logs" if dated else "the day of the files' last change"
        self.notes = (f"{names}: lines carry no date; taken to be of {day:%Y-%m-%d}, {reason}",)
        return since


def _spelt(east: int) -> str:
    hours, minutes = divmod(abs(east) // 60, 60)
    return f"UTC{'-' if east < 0 else '+'}{hours:02}:{minutes:02}" if east else "UTC"


START_BYTES, END_BYTES = 1 << 19, 1 << 14  # bytes at most in which start lines and last lines are searched for
ENDINGS = 1 << 20  # bytes before the end in which crashes and orders to end are searched for
_MARKS = frozenset({Sign.STARTED, Sign.ORDERED_TO_END, Sign.CRASHED})
ORDERED = frozenset({"-15", "-2"})  # exit codes of a child that was told to end
SOON = 30.0  # seconds after an order to end within which children end because of it
_REPEATED = 250  # lines without a new kind of line after which the start is taken to be over


class StartsAndEnds:
    """rows: of the dialect. reader, lines: return the reader of a log and the line numbers of a part."""

    def __init__(
        self, rows: Iterable[Row], reader: Callable[[Log], EventReader], lines: Callable[[LogPart], LineNumbers]
    ) -> None:
        self._reader, self._lines = reader, lines
        known = tuple(rows)
        self._begin = sorted({row.literal for row in known if Sign.STARTED in row.proves})
        self._mark = sorted({row.literal for row in known if not _MARKS.isdisjoint(row.proves)})

    def starts(self, log: Log, throughout: bool) -> Iterator[Event]:
        """Known lines from the beginning to the first traffic; `throughout`: and from each later start in the log."""
        seen: set[tuple[str, int]] = set()
        places = [(part, 0) for part in log.parts if part.size][:1]
        if throughout:
            places += [(raw.part, raw.place.offset) for raw in find_lines(log, self._begin) if self._begins(log, raw)]
        for part, offset in places:
            lines = window.lines(part, offset, offset + START_BYTES, self._lines(part))
            for event in self._until_traffic(log, lines if self._reader(log).of_engine else rejoined_lists(lines)):
                place = (event.place.file, event.place.offset)
                if place not in seen:
                    seen.add(place)
                    yield event

    def end(self, log: Log) -> LogEnd:
        raws = window.tail(log, END_BYTES, self._lines)
        raws = [*self._before(raws[0]), *raws] if raws else []
        reader = self._reader(log)
        instants = (reader.instant(raw.line) for raw in raws)
        # Not the last line's stamp: it may be one that the next process of a merged stream printed at its start.
        last = max((instant.t for instant in instants if instant is not None), default=None)
        return log_end((event for raw in raws for event in reader.known(raw)), last)

    def _begins(self, log: Log, raw: RawLine) -> bool:
        if opens_list(raw.line):
            behind = window.lines(raw.part, raw.place.offset, raw.place.offset + LIST, self._lines(raw.part))
            raw = next(rejoined_lists(behind), raw)
        return any(event.proves(Sign.STARTED) for event in self._reader(log).known(raw))

    def _until_traffic(self, log: Log, raws: Iterable[RawLine]) -> Iterator[Event]:
        """Known lines as long as new kinds of them keep coming, because traffic repeats itself."""
        reader = self._reader(log)
        kinds: set[str] = set()
        repeated = 0
        for raw in raws:
            repeated += 1
            for event in reader.known(raw):
                yield event
                if event.row.id not in kinds:
                    kinds.add(event.row.id)
                    repeated = 0
            if repeated >= _REPEATED:
                return

    def _before(self, tail: RawLine) -> Iterator[RawLine]:
        """Lines in the MiB before the tail that start or end a process: failing health checks may follow a crash."""
        part, behind = tail.part, tail.place.offset
        first = window.line_start(part, max(0, part.size - ENDINGS)) if part.plain else behind
        if first < behind:
            terms = [SearchTerm(literal) for literal in self._mark]
            for hit in search(ByteSpan(part, first, behind), terms, Buffer(SIZE)):
                yield RawLine(self._lines(part).place(hit.offset), hit.text, part)


class LogEnd(NamedTuple):
    """last: the latest stamp among its last lines. rows: the last known lines, those of the last start only.

    clean: they contain an order to end, no crash before it; crashed: a crash comes first. Neither: the log just stops.
    """

    last: float | None
    clean: bool
    crashed: bool
    rows: tuple[Event, ...]


def log_end(events: Iterable[Event], last: float | None) -> LogEnd:
    rows = _of_last_start(tuple(events))
    first = next((event for event in rows if event.proves(Sign.ORDERED_TO_END, Sign.CRASHED)), None)
    clean = first is not None and first.proves(Sign.ORDERED_TO_END)
    return LogEnd(last, clean, first is not None and not clean, rows)


def is_ordered_end(event: Event, order: Event | None) -> bool:
    """Whether a crash line reports a child that ended because of the preceding order to its parent.

    `kill -- -GROUP`, systemd and Slurm send SIGTERM to every process; SGLang then logs "crashed with exit code -15".
    """
    if order is None or (event.t is not None and order.t is not None and event.t > order.t + SOON):
        return False
    return event.proves(Sign.FOLLOWED_CHILD) or (event.proves(Sign.CHILD_ENDED) and event.values.get("code") in ORDERED)


def _of_last_start(events: Sequence[Event]) -> tuple[Event, ...]:
    starts = [at for at, event in enumerate(events) if event.proves(Sign.STARTED)]
    return tuple(events[starts[-1] :] if starts else events)
