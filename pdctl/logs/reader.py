"""Lines to events: a row of the dialect reads each, a clock gives it its time."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from pdctl.engines.prefix import split
from pdctl.engines.row import Level, Row, Speaker
from pdctl.logs.event import Event, Place
from pdctl.logs.glued import pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pdctl.engines.identify import Identity
    from pdctl.engines.prefix import Prefix
    from pdctl.engines.speech import Speech
    from pdctl.logs.clock import Clock, Instant
    from pdctl.logs.scan import Raw

_NOTHING: Mapping[str, str] = MappingProxyType({})


class Reader:
    """Reads the lines of one log."""

    def __init__(self, instance: str, identity: Identity, speech: Speech, clock: Clock) -> None:
        self._instance = instance
        self._role = identity.role
        self._speech = speech
        self._clock = clock
        self._speakers = None if identity.speaker is None else frozenset({identity.speaker})
        self._unread = Row("", identity.speaker or Speaker.SGLANG, Level.INFO, "", b"", "", "")

    def known(self, raw: Raw) -> Iterator[Event]:
        """What rows of the dialect read in the line: one event as a rule, none for a line nobody knows."""
        for start, text in pieces(raw.line):
            said = self._speech.match(text, self._speakers)
            if said is not None:
                yield self._event(raw, start, said.row, said.values, said.prefix)

    def naming(self, raw: Raw, wanted: Callable[[bytes], bool]) -> Iterator[Event]:
        """The same for a line that was searched for; where no row reads it, an event whose row has the id ""."""
        for start, text in pieces(raw.line):
            if start and not wanted(text):
                continue
            said = self._speech.match(text, self._speakers)
            if said is not None:
                yield self._event(raw, start, said.row, said.values, said.prefix)
            elif wanted(text) or len(text) == len(raw.line):
                yield self._event(raw, start, self._unread, _NOTHING, split(text))

    def instant(self, line: bytes) -> Instant | None:
        stamp = split(line).stamp
        return self._clock.read(stamp) if stamp is not None else None

    def _event(self, raw: Raw, start: int, row: Row, values: Mapping[str, str], prefix: Prefix) -> Event:
        instant = self._clock.read(prefix.stamp) if prefix.stamp else None
        t, uncertainty = instant or (None, 0.0)
        place = (
            Place(raw.place.file, raw.place.line, raw.place.offset + start, raw.place.origin) if start else raw.place
        )
        return Event(
            self._instance, self._role or row.role, prefix.ranks, row, values, t, uncertainty, place, prefix.message
        )
