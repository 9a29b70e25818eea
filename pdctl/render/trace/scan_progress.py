"""Progress of reading logs: one line on a terminal, shown after the first second and erased at the end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pdctl.render.trace import wording

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.logs.library import Library
    from pdctl.render.term import Term

PATIENCE = 1.0  # seconds before it shows
REDRAW = 0.1  # seconds
BAR = 24


class Scanning:
    """Call with the bytes read and the total bytes; shows nothing unless the stream is a terminal."""

    def __init__(self, term: Term, clock: Callable[[], float] = time.monotonic) -> None:
        self._term, self._clock = term, clock
        self._began = clock()
        self._drawn = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = self._clock()
        if not self._term.tty or now - self._began < PATIENCE or now - self._drawn < REDRAW:
            return
        self._drawn = now
        self._term.stream.write(f"\r{self._line(done, total, now - self._began)}\x1b[K")
        self._term.stream.flush()

    def close(self) -> None:
        """Erase the line."""
        if self._drawn:
            self._term.stream.write("\r\x1b[K")
            self._term.stream.flush()
            self._drawn = 0.0

    def _line(self, done: int, total: int, seconds: float) -> str:
        share = min(1.0, done / total) if total else 0.0
        full, empty = self._term.symbol("━", "#"), self._term.symbol("╌", ".")
        bar = full * round(share * BAR) + empty * (BAR - round(share * BAR))
        rate = wording.speed(done / 1e9 / seconds) if seconds else ""
        return f"reading {bar} {wording.size(done)} of {wording.size(total)}, {rate}"


def read_stats(library: Library, seconds: float, term: Term) -> None:
    """Write what an answer cost: `4 logs of 1.2 GB, answered in 0.61 s: 1.2 GB read (1.97 GB/s), 12 lines hit`."""
    tally, count = library.stats, len(library.logs)
    rate = f" ({wording.speed(tally.scanned / 1e9 / tally.seconds)})" if tally.seconds and tally.scanned else ""
    parts = [f"{wording.size(tally.scanned)} read{rate}, {tally.hits} lines hit"] if tally.scanned else []
    parts += [f"{tally.remembered} answers remembered"] if tally.remembered else []
    parts += [f"{tally.looked_up} looked up in the index"] if tally.looked_up else []
    parts += [] if tally.remembered or tally.looked_up else ["no index used"]
    size = wording.size(sum(log.size for log in library.logs))
    head = f"{count} log{'' if count == 1 else 's'} of {size}, answered in {wording.took(seconds)}"
    term.write(": ".join(filter(None, (head, ", ".join(parts)))))
