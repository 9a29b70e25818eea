"""SGLang's log format for every process of the engine: `[2026-11-21 02:06:24.123 DP0 TP1] message`.

sglang 0.5.23 writes it with SGLANG_LOG_MS (srt/utils): milliseconds give the lines of several logs an order. Lines of
the HTTP process, the DP controller and the bootstrap server have no rank. The level is not printed, as in SGLang; the
HTTP server's own lines keep uvicorn's `INFO:     ` in front of the message, as in SGLang too.
"""

from __future__ import annotations

import logging
import time
from copy import copy
from typing import TYPE_CHECKING

from pdctl.log_lines import LogStream, cut, escaped, traceback_text

if TYPE_CHECKING:
    from logging import Logger
    from types import TracebackType

    from pdctl.engine.config.instance_args import ServerArgs
    from pdctl.layout.shape import RankPlace

STREAM = LogStream()
TIME_FORMAT = "%Y-%m-%d %H:%M:%S"
STAMP = "%(asctime)s.%(msecs)03d"
BURST = 20  # lines that a LogRate writes without limit
INTERVAL = 1.0  # seconds per line after that


def decorations(args: ServerArgs, rank: RankPlace | None) -> str:
    """` DP0 PP1 TP3 EP1`: sglang 0.5.13+ writes only the dimensions that are wider than one, in this order."""
    if rank is None:
        return ""
    shape = args.shape
    wide = (
        ("DP", rank.dp_rank, shape.dp_ranks),
        ("PP", rank.pp_rank, shape.pp),
        ("TP", rank.tp_rank, shape.tp),
        ("EP", rank.moe_ep_rank, shape.ep_size),
    )
    return "".join(f" {name}{number}" for name, number, size in wide if size > 1)


def hit_an_exception(log: logging.Logger, who: str, error: BaseException) -> None:
    """Log SGLang's line for an exception that ends a process: the traceback starts on it and continues below."""
    first, _, rest = traceback_text(error).partition("\n")
    log.error("%s hit an exception: %s", who, first, extra={"below": rest})


class OneLine(logging.Formatter):
    """Write a record as one line after our prefix, whatever a client sent; the lines of a traceback follow it."""

    def format(self, record: logging.LogRecord) -> str:
        below = getattr(record, "below", "")
        return super().format(record) + (f"\n{below}" if below else "")

    def formatMessage(self, record: logging.LogRecord) -> str:
        head, end, text = super().formatMessage(record).partition("] ")
        return head + end + escaped(text)

    def formatException(
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
    ) -> str:
        return traceback_text(ei[1]) if ei[1] is not None else ""


def configure(args: ServerArgs, rank: RankPlace | None = None) -> None:
    """Write the records of this process at `--log-level` and above to stderr, with one flushed write per line."""
    handler = logging.StreamHandler(STREAM)
    prefix = decorations(args, rank)
    handler.setFormatter(OneLine(f"[{STAMP}{prefix}] %(message)s", datefmt=TIME_FORMAT))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # Below WARNING, libraries log nothing about a room, and their debug lines would drown ours.
    root.setLevel(logging.WARNING)
    logging.getLogger("pdctl").setLevel(args.log_level.upper())


def configure_access(args: ServerArgs) -> None:
    """Put uvicorn's own lines behind our prefix: `[…] INFO:     127.0.0.1:49348 - "POST /generate HTTP/1.1" 200 OK`."""
    from uvicorn.logging import AccessFormatter, DefaultFormatter

    class Lines(OneLine, DefaultFormatter):
        pass

    class Access(OneLine, AccessFormatter):
        def formatMessage(self, record: logging.LogRecord) -> str:
            address, method, path, *others = record.args  # type: ignore[misc]
            record = copy(record)
            record.args = (address, method, cut(str(path)), *others)
            return super().formatMessage(record)

    formats = {
        "uvicorn": Lines(f"[{STAMP}] %(levelprefix)s %(message)s", TIME_FORMAT, use_colors=False),
        "uvicorn.access": Access(
            f'[{STAMP}] %(levelprefix)s %(client_addr)s - "%(request_line)s" %(status_code)s',
            TIME_FORMAT,
            use_colors=False,
        ),
    }
    for name, formatter in formats.items():
        handler = logging.StreamHandler(STREAM)
        handler.setFormatter(formatter)
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
        logger.setLevel(args.log_level.upper())
    logging.getLogger("uvicorn.access").addFilter(_not_a_look)


def _not_a_look(record: logging.LogRecord) -> bool:
    """Filter out 200 answers to /ready, which routers poll twice a second."""
    words = record.args
    return not (isinstance(words, tuple) and len(words) == 5 and words[2] == "/ready" and words[4] == 200)


class LogRate:
    """Limits the rate of log lines. Not thread-safe: each thread that reads a socket has its own."""

    def __init__(self, log: Logger, burst: int = BURST, interval: float = INTERVAL) -> None:
        self._log = log
        self._burst = burst
        self._interval = interval
        self._allowed = float(burst)
        self._at = time.monotonic()
        self._left_out = 0

    def warning(self, text: str, *values: object) -> None:
        self._write(logging.WARNING, text, values)

    def error(self, text: str, *values: object) -> None:
        self._write(logging.ERROR, text, values)

    def _write(self, level: int, text: str, values: tuple[object, ...]) -> None:
        now = time.monotonic()
        self._allowed = min(float(self._burst), self._allowed + (now - self._at) / self._interval)
        self._at = now
        if self._allowed < 1.0:
            self._left_out += 1
            return
        self._allowed -= 1.0
        if self._left_out:
            text, values, self._left_out = text + " (%d such lines left out before)", (*values, self._left_out), 0
        self._log.log(level, text, *values)
