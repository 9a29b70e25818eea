"""A few windows of a log, read once: who wrote it, when it begins and ends, how it writes rooms."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING

from pdctl.engines.identify import Identity, identify
from pdctl.engines.prefix import split
from pdctl.engines.sign import Sign
from pdctl.logs import window
from pdctl.logs.worker_lists import unwrapped

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdctl.engines.prefix import Stamp
    from pdctl.engines.speech import Speech
    from pdctl.logs.source import Log
    from pdctl.logs.window import Numbers

HEAD, TAIL = 1 << 15, 1 << 13  # bytes
START = 1 << 16  # bytes of a head in which a process starts: it says more about itself
SAMPLES, SAMPLE = 2, 1 << 12
# `"bootstrap_room","value":{"stringValue":"0x1dcf…"}`, `bootstrap_room: Str(0x1dcf…)`, `room=1dcf…`
_HEX = re.compile(
    rb"room[^0-9\n]{1,60}?0x[0-9a-f]{1,16}(?![0-9a-zA-Z])"
    rb"|room[=\"': ]{1,6}(?=[0-9]{0,15}[a-f])[0-9a-f]{9,16}(?![0-9a-zA-Z-])"
)


class Glance:
    def __init__(self, log: Log, speech: Speech, numbers: Numbers) -> None:
        self._log, self._speech, self._numbers = log, speech, numbers

    @cached_property
    def head(self) -> tuple[bytes, ...]:
        short = tuple(raw.line for raw in unwrapped(window.head(self._log, HEAD, self._numbers)))
        literals = [row.literal for row in self._speech.rows if Sign.STARTED in row.proves]
        if not any(literal in line for line in short for literal in literals):
            return short
        return tuple(raw.line for raw in unwrapped(window.head(self._log, START, self._numbers)))

    @cached_property
    def rest(self) -> tuple[bytes, ...]:
        """Lines of the middle and of the end; of compressed parts the end is not worth decompressing all of it."""
        if not all(part.plain for part in self._log.parts) or self._log.size <= HEAD:
            return ()
        between = window.samples(self._log, SAMPLES, SAMPLE)
        return (*(raw.line for raw in between), *(raw.line for raw in window.tail(self._log, TAIL, self._numbers)))

    @cached_property
    def identity(self) -> Identity:
        return identify((*self.head, *self.rest), self._speech)

    @cached_property
    def hexadecimal(self) -> bool:
        """Whether rooms may stand in it in hex: no line seen is an engine's or a router's, or one has a room in hex."""
        known = any(self._speech.match(line) for line in (*self.head, *self.rest))
        return not known or any(_HEX.search(line) for line in (*self.head, *self.rest))

    @cached_property
    def stamps(self) -> tuple[Stamp, ...]:
        """The first and the last of the windows."""
        found = (_first(self.head), _first(reversed(self.rest or self.head)))
        return tuple(stamp for stamp in found if stamp is not None)


def _first(lines: Iterable[bytes]) -> Stamp | None:
    return next((stamp for line in lines if (stamp := split(line).stamp) is not None), None)
