"""The logs of one deployment, queried by room, request or time: trace and doctor read logs only through this object."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING

from pdctl.engines.base import Sign
from pdctl.engines.prefix import cut, spell
from pdctl.engines.row_matching import speaks
from pdctl.engines.row_matching import speech as shipped
from pdctl.logs import log_cache, scan, window
from pdctl.logs.blocks import LineNumbers
from pdctl.logs.event import CachedSpeech, EventReader, Place, RawLine, is_incomplete, rejoined_lists
from pdctl.logs.log_sample import LogClocks, LogSample, StartsAndEnds
from pdctl.logs.room_index import RoomIndex
from pdctl.logs.scan import find_lines
from pdctl.logs.search import LogQuery, LogSearch
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

    from pdctl.engines.base import Row
    from pdctl.engines.identify import Identity
    from pdctl.engines.row_matching import Speech
    from pdctl.logs.all_rooms import RoomSeen, ScannedPart
    from pdctl.logs.clock import Clock, Instant
    from pdctl.logs.event import Event
    from pdctl.logs.log_sample import LogEnd
    from pdctl.logs.part import LogPart
    from pdctl.logs.scan import SearchTerm
    from pdctl.logs.search import SearchStats
    from pdctl.logs.source import Log

WHOLE = 16 << 20  # bytes of logs up to which a context is complete and every start is searched for
HEAD_BYTES = 1 << 20  # bytes of a log's beginning that are checked for truncated lines
HEAD = 200  # lines of a log's beginning that are searched for its first time
LIMIT = 3 << 15  # bytes of each log read for a context if the logs are larger


class NearLine(NamedTuple):
    """A line before or after an event in the same file.

    text: without its prefix; stamped: it has its own time, so it begins a message.
    """

    place: Place
    text: str
    stamped: bool


class Library:
    """tz: the zone of prefixes; None: the one the logs show, else this machine's.

    since, until: epoch seconds; lines with a time outside are ignored, and plain parts are not read there. index: cache
    answers, and use the index of rooms if there is one. progress: called with bytes read and total bytes. notes: what
    could not be read, was cut, or is assumed; it grows with the queries.
    """

    def __init__(
        self,
        logs: Sequence[Log],
        *,
        speech: Speech | None = None,
        tz: dt.tzinfo | None = None,
        since: float | None = None,
        until: float | None = None,
        index: bool = True,
        progress: Callable[[int, int], None] | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.logs = tuple(logs)
        self.speech = CachedSpeech(speech or shipped())
        self._since = float("-inf") if since is None else since
        self._until = float("inf") if until is None else until
        self._numbers: dict[LogPart, LineNumbers] = {}
        self._samples: dict[str, LogSample] = {}
        self._readers: dict[str, EventReader] = {}
        self._tz = tz
        self._clocks = LogClocks(self.logs, tz, self.sample)
        self._owners = {part: log for log in self.logs for part in log.parts}
        limited = since is not None or until is not None
        self._search = LogSearch(
            self._lines, RoomIndex(environ, index), environ, index, self._bounds if limited else None, progress
        )
        self._edges = StartsAndEnds(self.speech.rows, self._reader, self._lines)
        self._index = index
        self._progress = progress
        self._environ = environ
        self._noted: dict[str, None] = {}
        self._incomplete: dict[str, bool] = {}
        self._lossless: set[LogPart] = set()  # parts in which the list of rooms met no line about lost lines

    def only(self, logs: Sequence[Log]) -> Library:
        """A library of these logs alone, read in the same way."""
        limits = self.limits or (None, None)
        return Library(
            logs, speech=self.speech, tz=self._tz, since=limits[0], until=limits[1], index=self._index,
            progress=self._progress, environ=self._environ,
        )  # fmt: skip

    def identity(self, log: Log) -> Identity:
        """Who wrote the log, read from its head, its tail and a few samples between. Unknown is None, never guessed."""
        return self.sample(log).identity

    def sample(self, log: Log) -> LogSample:
        found = self._samples.get(log.instance)
        if found is None:
            found = self._samples[log.instance] = LogSample(log, self.speech, self._lines)
        return found

    def clock(self, log: Log) -> Clock:
        return self._clocks.of(log)

    @property
    def stats(self) -> SearchStats:
        """What queries have cost so far."""
        return self._search.tally

    @property
    def limits(self) -> tuple[float, float] | None:
        """since and until, ±inf for one that was not given; None if all lines count."""
        limited = self._since != float("-inf") or self._until != float("inf")
        return (self._since, self._until) if limited else None

    @cached_property
    def empty(self) -> bool:
        """Whether no line with a time was written in the window."""
        return not any(self._has_line(part, log) for part, log in self._owners.items())

    def last(self) -> float | None:
        """The time of the last line of all logs; None if no line carries one."""
        return max((end.last for end in self.ends.values() if end.last is not None), default=None)

    def first(self) -> float | None:
        """Epoch seconds of the first line of all logs, as far as their beginnings tell; else None."""
        heads = ((log, line) for log in self.logs for line in self.sample(log).head[:HEAD])
        return min((found.t for log, line in heads if (found := self.instant(log, line)) is not None), default=None)

    @property
    def stream_notes(self) -> tuple[str, ...]:
        """What is missing of the logs, or was taken apart: files that cannot be read, lines that are being lost."""
        return tuple(dict.fromkeys(note for log in self.logs for note in log.notes))

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self.stream_notes, *self._noted, *self._search.notes, *self._clocks.zone_notes, *self._clocks.notes)

    @property
    def zone_notes(self) -> tuple[str, ...]:
        """Which logs are in a zone that is neither the requested one nor this machine's, and what shows it."""
        return self._clocks.zone_notes

    def of_room(self, room: int) -> tuple[Event, ...]:
        """Every line of all logs that names the room, in decimal or hex, in file order per log.

        A line that no row reads is included, with a row whose id is "". Engines and routers write rooms in decimal; hex
        is searched for only in other logs, and in those with a room in hex among their samples. A room of fewer than
        nine digits counts only after words that announce one (`room=`, `Request `).
        """
        decimal = scan.room_terms(room, self.speech.rows)
        both = (*decimal, *scan.hex_room_terms(room))

        def choose(part: LogPart) -> Sequence[SearchTerm]:
            return both if self.sample(self._owners[part]).hexadecimal else decimal

        return self._search_for(LogQuery(f"room {room}", (decimal, both), choose, room), self._owners)

    def of_rid(self, rid: str) -> tuple[Event, ...]:
        """Every line of all logs with the request id, delimited from letters and digits."""
        terms = scan.request_terms([rid])
        return self._search_for(LogQuery(f"rid {rid}", (terms,), lambda part: terms), self._owners)

    def of_requests(self, rids: Iterable[str], instance: str, since: float, until: float) -> tuple[Event, ...]:
        """Every line of one instance with any of these ids; of large plain logs only within [since, until]."""
        names = tuple(rids)
        terms = scan.request_terms(names)
        parts = [part for part, log in self._owners.items() if log.instance == instance]

        first, last = max(since, self._since), min(until, self._until)

        def near(part: LogPart) -> tuple[int, int]:
            if not part.plain:
                return 0, part.size
            start, end = window.between(part, first, last, self.clock(self._owners[part]), window.UNLIMITED).ranges[0]
            return start, min(end, part.size)

        large = sum(log.size for log in self.logs) > WHOLE
        query = LogQuery(f"rid {' '.join(names)}", (terms,), lambda part: terms, bounds=near if large else None)
        return self._search_for(query, parts)

    def _search_for(self, query: LogQuery, parts: Iterable[LogPart]) -> tuple[Event, ...]:
        widest = query.spellings[-1]

        def names(text: bytes) -> bool:
            return any(each.among(text) for each in widest)

        events: list[Event] = []
        for part, hit in self._search.ask(query, parts):
            raw = RawLine(Place(part.path, hit.line, hit.offset, part.origin), hit.text, part)
            events += self._reader(self._owners[part]).naming(raw, names)
        return tuple(filter(self._counts, events))

    def context(
        self,
        since: float,
        until: float,
        limit: int | None = None,
        focus: tuple[float, float] | None = None,
    ) -> tuple[Event, ...]:
        """Lines that dialect rows read, written in [since, until] (epoch seconds), all logs, in file order per log.

        Lines without a time are included if they are among such lines. limit: bytes read of each log; by default
        everything if all logs together have at most 16 MiB, else 96 KiB of each: the first and last of the period, or
        those at the two times of `focus`. A log that was cut is named in `notes`. Line numbers are counted only when
        asked for.
        """
        if limit is None:
            limit = window.UNLIMITED if sum(log.size for log in self.logs) <= WHOLE else LIMIT
        since, until = max(since, self._since), min(until, self._until)
        events: list[Event] = []
        for part, log in self._owners.items():
            cut = window.between(part, since, until, self.clock(log), limit, focus)
            if not cut.whole:
                self._note(f"{part.path}: of the time around the room only {limit >> 10} KiB were read")
            events += self._within(log, cut, since, until)
        return tuple(events)

    def _within(self, log: Log, cut: window.PartRanges, since: float, until: float) -> Iterator[Event]:
        reader, lines = self._reader(log), self._lines(cut.part)
        for start, stop in cut.ranges:
            inside = since == float("-inf")
            raws = window.lines(cut.part, start, stop, lines)
            for raw in raws if reader.of_engine else rejoined_lists(raws):
                for event in reader.known(raw):
                    if event.t is not None:
                        inside = since <= event.t + event.uncertainty_s and event.t <= until
                    if inside:
                        yield event

    @cached_property
    def starts(self) -> tuple[Event, ...]:
        """Known lines from the beginning of each log to its first traffic, and from each later start in the log.

        Later starts are searched for only if all logs together have at most 16 MiB.
        """
        throughout = sum(log.size for log in self.logs) <= WHOLE
        return tuple(event for log in self.logs for event in self._edges.starts(log, throughout))

    @cached_property
    def ends(self) -> Mapping[str, LogEnd]:
        """By instance (node 0's log): when its last line was written, whether it was told to end, its last lines."""
        return {log.instance: self._edges.end(log) for log in reversed(self.logs)}

    def rooms(self) -> Iterator[RoomSeen]:
        """Every room that rows of the dialect name, unordered, from one pass over all logs.

        Memory is bounded: what is known about each room is kept in temporary files until it is returned. When the first
        room comes, all logs have been read, and `losses` costs next to nothing.
        """
        from pdctl.logs import all_rooms  # late: finding one room does not need this module

        sources = [self._counting(log, part) for part, log in self._owners.items()]
        return all_rooms.merged_rooms(sources, self._progress, self._note, self._lossless.add)

    def _note(self, text: str) -> None:
        self._noted[text] = None

    def build_index(self) -> str:
        """Index every room of all logs, or what was added since last time, so that any room is found without a scan.

        Costs several scans once, and about 1% of the logs' size on disk. Return why some log could not be indexed, or
        "" if all were.
        """
        from pdctl.logs import room_index

        parts = tuple(self._owners)
        built = room_index.build_all(parts, self._environ, self._progress)
        left = [part for part in parts if part not in built]
        if not left:
            return ""
        if any(part.spool is not None for part in left):
            return "stdin and files that cannot be read twice are not"
        folder = log_cache.cache_directory(left[0], self._environ)
        error = log_cache.write_error(folder)
        if error is not None:
            return f"{folder} cannot be written to: {error.strerror}"
        return f"another command is indexing {left[0].path}, or it changed meanwhile"

    def _counting(self, log: Log, part: LogPart) -> ScannedPart:
        from pdctl.logs.all_rooms import ScannedPart, anchors
        from pdctl.logs.room_scan import RoomScanTask

        identity, rows = self.identity(log), self._rows(log)
        zone, undated = self._clocks.zone_of(log), self._clocks.since(log)
        task = RoomScanTask(
            part, self._bounds(part), identity.speaker, identity.role, rows, anchors(rows, identity), zone, undated,
            self.sample(log).timed, self._since, self._until, "", self._literals(log, _tells_loss),
        )  # fmt: skip
        return ScannedPart(task, log.instance)

    def signatures(self, *codes: str) -> Iterator[Event]:
        """Lines whose row has a cause, one of `codes` if any are given; includes echoes; log by log, in file order."""
        return self.said(lambda row: bool(row.cause) and (not codes or row.cause in codes))

    @cached_property
    def losses(self) -> tuple[Event, ...]:
        """Lines that report others as lost, of any time: those may be of the period. Searches all logs completely."""
        return tuple(self._said(_tells_loss, self._lossless))

    def said(self, wanted: Callable[[Row], bool]) -> Iterator[Event]:
        """Lines read by the rows that `wanted` accepts, log by log, in file order; searches all logs completely."""
        return filter(self._counts, self._said(wanted))

    def _said(self, wanted: Callable[[Row], bool], without: Container[LogPart] = ()) -> Iterator[Event]:
        for log in self.logs:
            parts = tuple(part for part in log.parts if part not in without)
            for raw in find_lines(log._replace(parts=parts), self._literals(log, wanted)):
                for event in self._reader(log).known(raw):
                    if wanted(event.row):
                        yield event

    def _literals(self, log: Log, wanted: Callable[[Row], bool]) -> tuple[bytes, ...]:
        """The constant texts of the wanted rows that the log may contain."""
        return tuple(sorted({row.literal for row in self._rows(log) if wanted(row)}))

    def _rows(self, log: Log) -> tuple[Row, ...]:
        """The rows that may read a line of the log."""
        speaker, rows = self.identity(log).speaker, self.speech.rows
        if speaker is None:
            return rows
        writers = {one for one in {row.speaker for row in rows} if speaks(speaker, one)}
        return tuple(row for row in rows if row.speaker in writers)

    def ahead(self, event: Event, size: int, since: float) -> Iterator[NearLine]:
        """Lines of the same file in the `size` bytes before the event, without those written before `since`.

        A line without a time is as old as the line before it.
        """
        part = next((part for part in self._owners if part.path == event.place.file), None)
        if part is None or not part.plain:
            return
        start = window.line_start(part, max(0, event.place.offset - size))
        late = False
        for raw in window.lines(part, start, event.place.offset, self._lines(part)):
            if raw.place.offset >= event.place.offset:
                return
            written = self.instant(self._owners[part], raw.line)
            late = late if written is None else written.t + written.uncertainty_s >= since
            if late:
                parts = cut(raw.line)
                yield NearLine(raw.place, spell(parts).message, parts.layout is not None)

    def behind(self, event: Event, size: int) -> Iterator[NearLine]:
        """Lines of the same file after the event's own, about `size` bytes of them."""
        part = next((part for part in self._owners if part.path == event.place.file), None)
        if part is None:
            return
        raws = window.lines(part, event.place.offset, event.place.offset + size, self._lines(part))
        for raw in raws:
            if raw.place.offset > event.place.offset:
                parts = cut(raw.line)  # a collector may stamp each line; a message begins with its own stamp
                yield NearLine(raw.place, spell(parts).message, parts.layout is not None)

    def has_incomplete_lines(self, log: Log) -> bool:
        """Whether a line of its first MiB, of its end or of two samples between is truncated."""
        if log.instance not in self._incomplete:
            raws = rejoined_lists(window.head(log, HEAD_BYTES, self._lines))
            seen = (*(raw.line for raw in raws), *self.sample(log).rest)
            self._incomplete[log.instance] = any(map(is_incomplete, seen))
        return self._incomplete[log.instance]

    def instant(self, log: Log, line: bytes) -> Instant | None:
        """When a line of the log was written."""
        return self._reader(log).instant(line)

    def lines(self, log: Log) -> int:
        """Number of lines of the log; a last line without a newline counts."""
        return sum(self._lines(part).total() for part in log.parts)

    def _reader(self, log: Log) -> EventReader:
        found = self._readers.get(log.instance)
        if found is None:
            found = EventReader(log.instance, self.identity(log), self.speech, self.clock(log))
            self._readers[log.instance] = found
        return found

    def _lines(self, part: LogPart) -> LineNumbers:
        return self._numbers.setdefault(part, LineNumbers(part))

    def _counts(self, event: Event) -> bool:
        return event.t is None or (self._since <= event.t + event.uncertainty_s and event.t <= self._until)

    def _has_line(self, part: LogPart, log: Log) -> bool:
        cut = window.between(part, self._since, self._until, self.clock(log), window.UNLIMITED)
        for start, stop in cut.ranges:
            for raw in window.lines(part, start, stop, self._lines(part)):
                found = self._reader(log).instant(raw.line)
                if found is not None and self._since <= found.t + found.uncertainty_s and found.t <= self._until:
                    return True
        return False

    def _bounds(self, part: LogPart) -> tuple[int, int]:
        """The bytes of a plain part within since and until; all bytes of a compressed one."""
        if not part.plain or (self._since == float("-inf") and self._until == float("inf")):
            return 0, part.size
        cut = window.between(part, self._since, self._until, self.clock(self._owners[part]), window.UNLIMITED)
        return cut.ranges[0]


def _tells_loss(row: Row) -> bool:
    return Sign.LINES_LOST in row.proves
