"""What a few samples of a log tell, read once: who wrote it, how it writes rooms, which clock its stamps are on."""

from __future__ import annotations

import datetime as dt
import re
from functools import cached_property
from typing import TYPE_CHECKING

from pdctl.engines.identify import Identity, identify
from pdctl.engines.prefix import split
from pdctl.engines.sign import Sign
from pdctl.logs import window
from pdctl.logs.clock import DAY, Clock, undated_since, zone_of_offset
from pdctl.logs.line_repair import rejoined_lists
from pdctl.logs.part import modified

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pdctl.engines.prefix import Stamp
    from pdctl.engines.speech import Speech
    from pdctl.logs.source import Log
    from pdctl.logs.window import Numbers

SHORT_HEAD, SHORT_TAIL = 1 << 15, 1 << 13  # bytes
LONG_HEAD = 1 << 16  # bytes of a head that contains a start, where a process says more about itself
SAMPLES, SAMPLE = 2, 1 << 12
# `"bootstrap_room","value":{"stringValue":"0x1dcf…"}`, `bootstrap_room: Str(0x1dcf…)`, `room=1dcf…`
_HEX = re.compile(
    rb"room[^0-9\n]{1,60}?0x[0-9a-f]{1,16}(?![0-9a-zA-Z])"
    rb"|room[=\"': ]{1,6}(?=[0-9]{0,15}[a-f])[0-9a-f]{9,16}(?![0-9a-zA-Z-])"
)


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
    def stamps(self) -> tuple[Stamp, ...]:
        """The first and the last stamp of the samples."""
        found = (_first(self.head), _first(reversed(self.rest or self.head)))
        return tuple(stamp for stamp in found if stamp is not None)


def _first(lines: Iterable[bytes]) -> Stamp | None:
    return next((stamp for line in lines if (stamp := split(line).stamp) is not None), None)


class LogClocks:
    """zone: the one requested; None: the one found in a log itself, else this machine's. notes: what is assumed."""

    def __init__(self, logs: Sequence[Log], zone: dt.tzinfo | None, sample: Callable[[Log], LogSample]) -> None:
        self._logs, self._zone, self._sample = logs, zone, sample
        self._clocks: dict[str, Clock] = {}
        self.notes: tuple[str, ...] = ()

    def of(self, log: Log) -> Clock:
        found = self._clocks.get(log.instance)
        if found is None:
            found = self._clocks[log.instance] = Clock(self.zone_of(log), lambda: self.since(log))
        return found

    def zone_of(self, log: Log) -> dt.tzinfo | None:
        return self._zone or zone_of_offset(self._sample(log).identity.facts.get("utc_offset", ""))

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
        logs = [log for log in self._logs if ranges[log.instance] is None and self._sample(log).stamps]
        if not logs:
            return 0.0
        stamps = [stamp for log in logs for stamp in self._sample(log).stamps]
        clocks = [stamp.hour * 3600.0 + stamp.minute * 60.0 + stamp.second for stamp in stamps]
        changed = max(modified(log.parts[-1]) for log in logs)
        whole = (min(first for first, _ in dated), max(last for _, last in dated)) if dated else None
        since = undated_since(clocks, whole, changed, self._zone)
        day = dt.datetime.fromtimestamp(since + DAY / 2, self._zone)
        names = ", ".join(log.instance for log in logs)
        reason = "the day of the other logs" if dated else "the day of the files' last change"
        self.notes = (f"{names}: lines carry no date; taken to be of {day:%Y-%m-%d}, {reason}",)
        return since
