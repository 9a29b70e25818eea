"""Turn lines into events: a row of the dialect reads each line, and a clock times it."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from pdctl.engines.adapters import speaks_any
from pdctl.engines.base import Level, Row, Speaker
from pdctl.engines.prefix import cut, split, stamp_of
from pdctl.engines.speech import Said, Speech
from pdctl.logs.event import Event, Place
from pdctl.logs.line_repair import split_joined_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pdctl.engines.identify import Identity
    from pdctl.engines.prefix import Prefix
    from pdctl.logs.clock import Clock, Instant
    from pdctl.logs.scan import RawLine

_NOTHING: Mapping[str, str] = MappingProxyType({})
MOST_CACHED = 8192  # lines


class EventReader:
    """Reads the lines of one log. of_engine: the log is an engine's, so no line is a router's."""

    def __init__(self, instance: str, identity: Identity, speech: Speech, clock: Clock) -> None:
        self._instance = instance
        self._role = identity.role
        self.of_engine = identity.role in ("prefill", "decode", "unified")
        self._speech = speech
        self._clock = clock
        self._speakers = None if identity.speaker is None else frozenset({identity.speaker})
        self._unread = Row("", identity.speaker or Speaker.SGLANG, Level.INFO, "", b"", "", "")

    def known(self, raw: RawLine) -> Iterator[Event]:
        """The events that rows of the dialect read in the line: usually one, none for an unknown line."""
        for start, text in split_joined_lines(raw.line):
            said = self._speech.match(text, self._speakers)
            if said is not None:
                yield self._event(raw, start, said.row, said.values, said.prefix)

    def naming(self, raw: RawLine, wanted: Callable[[bytes], bool]) -> Iterator[Event]:
        """The same for a line found by a search; if no row reads it, an event whose row has the id ""."""
        for start, text in split_joined_lines(raw.line):
            if start and not wanted(text):
                continue
            said = self._speech.match(text, self._speakers)
            if said is not None:
                yield self._event(raw, start, said.row, said.values, said.prefix)
            elif wanted(text) or len(text) == len(raw.line):
                yield self._event(raw, start, self._unread, _NOTHING, split(text))

    def instant(self, line: bytes) -> Instant | None:
        stamp = stamp_of(cut(line))
        return self._clock.read(stamp) if stamp is not None else None

    def _event(self, raw: RawLine, start: int, row: Row, values: Mapping[str, str], prefix: Prefix) -> Event:
        instant = self._clock.read(prefix.stamp) if prefix.stamp else None
        t, uncertainty = instant or (None, 0.0)
        place = (
            Place(raw.place.file, raw.place.line, raw.place.offset + start, raw.place.origin) if start else raw.place
        )
        return Event(
            self._instance, self._role or row.role, prefix.ranks, row, values, t, uncertainty, place, prefix.message
        )


class CachedSpeech(Speech):
    def __init__(self, speech: Speech) -> None:
        vars(self).update(vars(speech))  # reuse its tables: building them takes longer than most queries
        self._heard: dict[bytes, Said | None] = {}

    def match(self, raw: bytes, speakers: frozenset[Speaker] | None = None) -> Said | None:
        """As Speech.match, cached: the row that wins among all rows also wins among those of its own speaker."""
        if raw in self._heard:
            said = self._heard[raw]
            if said is None or speakers is None or speaks_any(speakers, said.row.speaker):
                return said
        found = super().match(raw, speakers)
        if speakers is None and len(self._heard) < MOST_CACHED:
            self._heard[raw] = found
        return found
