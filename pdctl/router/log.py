"""The router's log. Lines have SGLang's prefix, so that one reader handles router and engine logs alike."""

from __future__ import annotations

import asyncio
import logging
import time

from pdctl.log_lines import LogStream, escaped, traceback_text

logger = logging.getLogger("pdctl.router")
REPEAT = 10.0  # seconds between two lines of one Throttled

_stream = LogStream()


class _Lines(logging.Handler):
    """`[YYYY-mm-dd HH:MM:SS.mmm] message` on standard error, one write for all lines of one turn of the event loop.

    The date is formatted once a second and the write is made once a turn: otherwise each would cost more than the line.
    """

    def __init__(self) -> None:
        super().__init__()
        self._second = 0
        self._prefix = ""
        self._lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        level = "" if record.levelno <= logging.INFO else record.levelname + " "
        error = record.exc_info[1] if record.exc_info else None
        self.line(level + record.getMessage(), "\n" + traceback_text(error) if error is not None else "")

    def line(self, text: str, behind: str = "") -> None:
        """Write one line, whatever a client sent, followed by the traceback lines in `behind`."""
        now = time.time()
        second = int(now)
        if second != self._second:
            self._second = second
            self._prefix = time.strftime("[%Y-%m-%d %H:%M:%S.", time.localtime(second))
        self._lines.append(f"{self._prefix}{int((now - second) * 1000):03d}] {escaped(text)}{behind}\n")
        if len(self._lines) > 1:
            return  # the write is already scheduled
        try:
            asyncio.get_running_loop().call_soon(self.flush)
        except RuntimeError:  # before the loop runs and after it has ended
            self.flush()

    def flush(self) -> None:
        lines, self._lines = self._lines, []
        _stream.write("".join(lines))


_lines = _Lines()


def configure(level: str) -> None:
    """Log to standard error, from `level` up."""
    # No line shows the caller or the thread, and finding them is half the cost of a record.
    logging._srcfile = None
    logging.logThreads = False
    logging.logProcesses = False
    logging.logMultiprocessing = False
    logging.getLogger().addHandler(_lines)
    logging.getLogger().setLevel(logging.WARNING)
    logger.setLevel(level.upper())


class Throttled:
    """A warning that may be due a thousand times a second: one line per `REPEAT` seconds, with how often it was due."""

    def __init__(self) -> None:
        self._due = 0
        self._next = 0.0

    def warn(self, text: str) -> None:
        self._due += 1
        now = time.monotonic()
        if now < self._next:
            return
        often = f" ({self._due} times since the last such line)" if self._due > 1 else ""
        logger.warning("%s%s", text, often)
        self._due, self._next = 0, now + REPEAT


def requests_shown() -> bool:
    """Return whether lines about single requests are written; asked once, not per request."""
    return logger.isEnabledFor(logging.INFO)


def line(text: str) -> None:
    """Write one INFO line directly, without a log record: there are two for every request."""
    _lines.line(text)
