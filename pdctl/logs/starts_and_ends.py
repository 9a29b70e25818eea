"""How a log begins and ends: the lines of each start, the last lines, and whether the process was told to end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.engines.routers.sglang_router import LIST_BYTES as LIST
from pdctl.engines.routers.sglang_router import opens_list
from pdctl.engines.sign import Sign
from pdctl.logs import window
from pdctl.logs.blocks import SIZE, Buffer, LazyPlace, LineNumbers
from pdctl.logs.line_repair import rejoined_lists
from pdctl.logs.scan import ByteSpan, RawLine, SearchTerm, find, search

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pdctl.engines.base import Row
    from pdctl.logs.event import Event
    from pdctl.logs.event_reader import EventReader
    from pdctl.logs.part import LogPart
    from pdctl.logs.source import Log

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
            places += [(raw.part, raw.place.offset) for raw in find(log, self._begin) if self._begins(log, raw)]
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
                yield RawLine(LazyPlace(hit.offset, self._lines(part)), hit.text, part)


@dataclass(frozen=True, slots=True)
class LogEnd:
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
