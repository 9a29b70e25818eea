"""What doctor is looking at now: one line on a terminal, after the first second, gone when it is done."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
