"""The router's log: SGLang's line prefix, so that one reader serves router and engines alike."""

from __future__ import annotations

import logging
import sys
import time

logger = logging.getLogger("pdctl.router")


class _Formatter(logging.Formatter):
    """`[YYYY-mm-dd HH:MM:SS] message`. The prefix is made once a second: it would otherwise cost more than the line."""

    def __init__(self) -> None:
        super().__init__()
        self._second = 0
        self._prefix = ""

    def format(self, record: logging.LogRecord) -> str:
        second = int(record.created)
        if second != self._second:
            self._second = second
            self._prefix = time.strftime("[%Y-%m-%d %H:%M:%S] ", time.localtime(second))
        level = "" if record.levelno <= logging.INFO else record.levelname + " "
        line = self._prefix + level + record.getMessage()
        return line + "\n" + self.formatException(record.exc_info) if record.exc_info else line


def configure(level: str) -> None:
    """Log to standard error from `level` on."""
    # No line shows the caller or the thread, and finding them out is half of a record's cost.
    logging._srcfile = None
    logging.logThreads = False
    logging.logProcesses = False
    logging.logMultiprocessing = False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter())
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.WARNING)
    logger.setLevel(level.upper())
