"""The first and the last lines of each log: what its processes were started with, and how they ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines.routers.worker_lists import BYTES as LIST
from pdctl.engines.routers.worker_lists import opens
from pdctl.engines.sign import Sign
from pdctl.logs import window
from pdctl.logs.block import SIZE
from pdctl.logs.buffer import Buffer
from pdctl.logs.ends import End, end
from pdctl.logs.needle import Needle
from pdctl.logs.numbering import Lines, Unnumbered
from pdctl.logs.scan import Raw, Span, find, search
from pdctl.logs.worker_lists import unwrapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pdctl.engines.row import Row
    from pdctl.logs.event import Event
    from pdctl.logs.part import Part
    from pdctl.logs.reader import Reader
    from pdctl.logs.source import Log

HEAD, TAIL = 1 << 19, 1 << 14  # bytes at most in which start lines and last words are looked for
ENDINGS = 1 << 20  # bytes before the end in which crashes and orders to end are looked for
_MARKS = frozenset({Sign.STARTED, Sign.ORDERED_TO_END, Sign.CRASHED})
_REPEATED = 250  # lines without one of a new kind after which a log is taken to have begun


class Edges:
    """`rows`: of the dialect. reader, lines: those of a log, and of a part."""

    def __init__(self, rows: Iterable[Row], reader: Callable[[Log], Reader], lines: Callable[[Part], Lines]) -> None:
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
            lines = window.lines(part, offset, offset + HEAD, self._lines(part))
            for event in self._until_traffic(log, unwrapped(lines)):
                place = (event.place.file, event.place.offset)
                if place not in seen:
                    seen.add(place)
                    yield event

    def end(self, log: Log) -> End:
        raws = window.tail(log, TAIL, self._lines)
        raws = [*self._before(raws[0]), *raws] if raws else []
        reader = self._reader(log)
        instants = (reader.instant(raw.line) for raw in raws)
        # Not that of the last line: behind it may stand what the next process of a merged stream printed at its start.
        last = max((instant.t for instant in instants if instant is not None), default=None)
        return end((event for raw in raws for event in reader.known(raw)), last)

    def _begins(self, log: Log, raw: Raw) -> bool:
        if opens(raw.line):
            behind = window.lines(raw.part, raw.place.offset, raw.place.offset + LIST, self._lines(raw.part))
            raw = next(unwrapped(behind), raw)
        return any(event.proves(Sign.STARTED) for event in self._reader(log).known(raw))

    def _until_traffic(self, log: Log, raws: Iterable[Raw]) -> Iterator[Event]:
        """Known lines for as long as new kinds of them keep coming: traffic repeats itself."""
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

    def _before(self, tail: Raw) -> Iterator[Raw]:
        """Lines that start or end a process in the MiB before the tail: health checks go on failing after a crash."""
        part, behind = tail.part, tail.place.offset
        first = window.line_start(part, max(0, part.size - ENDINGS)) if part.plain else behind
        if first < behind:
            needles = [Needle(literal) for literal in self._mark]
            for hit in search(Span(part, first, behind), needles, Buffer(SIZE)):
                yield Raw(Unnumbered(part.path, hit.offset, self._lines(part)), hit.text, part)
