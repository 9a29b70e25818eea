"""While doctor looks: what it is at, in one line; and with `--watch` what opened or was resolved, as lines or JSON."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from pdctl.render.findings import report_forms, report_text
from pdctl.render.trace.room_json import dumped
from pdctl.render.visible import visible

if TYPE_CHECKING:
    from pdctl.doctor.finding import Watched
    from pdctl.doctor.request import Progress
    from pdctl.render.term import Term


PATIENCE = 1.0  # seconds before it shows


class Looking:
    """Called from several threads; silent where nobody watches."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._began = time.monotonic()
        self._drawn = False
        self._lock = threading.Lock()

    def __call__(self, progress: Progress) -> None:
        if not self._term.tty or time.monotonic() - self._began < PATIENCE:
            return
        count = f" {progress.done} of {progress.total}" if progress.total > 1 else ""
        with self._lock:
            self._drawn = True
            self._term.stream.write(f"\rlooking at {progress.what}{count}\x1b[K")
            self._term.stream.flush()

    def close(self) -> None:
        """Leave an empty line."""
        if self._drawn:
            self._term.stream.write("\r\x1b[K")
            self._term.stream.flush()
            self._drawn = False


def show(watched: Watched, term: Term) -> None:
    stamp = time.strftime("%H:%M:%S")
    for done in watched.resolved:
        mark = term.style(term.symbol("✓", "+"), "green", "bold")
        where = f"  {visible(done.finding.instance, term)}" if done.finding.instance else ""
        name = f"{done.finding.code} {done.finding.slug}{where}"
        term.write(f"{stamp} {mark} resolved after {done.seconds:.0f} s: {name}")
    for found in watched.opened:
        term.write(stamp)
        report_text.finding(found, term)


def to_lines(watched: Watched) -> str:
    """`{"event": "opened"|"resolved", "time", …finding}`, one per line; empty when nothing changed."""
    now = round(time.time(), 3)
    events: list[dict[str, object]] = [
        {"event": "resolved", "time": now, "open_seconds": round(done.seconds, 3), **report_forms.finding(done.finding)}
        for done in watched.resolved
    ]
    events += [{"event": "opened", "time": now, **report_forms.finding(found)} for found in watched.opened]
    return "\n".join(map(dumped, events))
