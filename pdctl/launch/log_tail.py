"""Read growing log files: whole lines only, several files merged into one stream."""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
from collections import deque
from dataclasses import dataclass
from heapq import merge
from typing import TYPE_CHECKING

from pdctl.quick_definitions import NamedTuple
from pdctl.user_files import unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

CHUNK = 1 << 16
MAX_LINE = 1 << 20  # bytes; a longer line is passed on in pieces
POLL = 0.1  # seconds between looks at a file that does not grow
# The paths of our own and the router's probes in an engine's access log.
ASKED = "health|route|readiness|workers|server_info|get_server_info|model_info|v1/loads|metrics"
PROBE = re.compile(rf'"GET /({ASKED})\b[^"]* HTTP/1')
# Local time, as written by sglang (in brackets), and by sglang-router and smg (after a colour code).
STAMP = re.compile(r"(?:\[|(?:\x1b\[\d{0,3}m)?(?=20))(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{3})?)")
# The line that process.close_generation adds: callers that show last lines have already said how the process ended.
EPITAPH = re.compile(rb"\] pdctl: \S+ generation \d+ (?:was killed by|was lost|left with)")


@dataclass(frozen=True, slots=True)
class LogLine:
    source: str
    text: str


class StoppedInstance(NamedTuple):
    """An instance whose processes live and are stopped (SIGSTOP, Ctrl-Z, a debugger). fix: what continues them."""

    name: str
    what: str
    fix: str


class LogFiles(NamedTuple):
    """`names`: path → instance. `shown`: path → its name in answers, for example `RUN/logs/router.log`.

    `lost`: since when and why lines were not written; "" if all were, as far as is known. `ended`: what no log tells
    of the run's end: that the supervisor died, or how the run failed while lines were lost; "" where the logs tell it.
    `stopped`: the instances that write nothing now because they are stopped; `unwatched`: that the supervisor is.
    """

    names: Mapping[str, str]
    shown: Mapping[str, str]
    lost: str = ""
    ended: str = ""
    stopped: tuple[StoppedInstance, ...] = ()
    unwatched: str = ""


class LogQuestion(NamedTuple):
    """Which lines are wanted. `tail`: per instance; `since`: seconds since the epoch; `raw`: without instance names."""

    instances: Sequence[str] = ()
    follow: bool = False
    tail: int | None = None
    since: float | None = None
    raw: bool = False


def part(log: Path, generation: int) -> Path:
    """The log file of a generation, on a target where a lost generation may still be writing to its own file."""
    return log if generation < 2 else log.with_suffix(f".g{generation}.log")


def parts(log: Path) -> Iterator[Path]:
    """The first generation's log file and those of later generations that exist."""
    yield log
    for generation in itertools.count(2):
        later = part(log, generation)
        if not later.exists():
            return
        yield later


class LogTail:
    """Read one log from an offset on, across the files of its generations. A file that does not exist yet is empty."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset
        self._first = path
        self._generation = 1
        self._partial = b""

    def lines(self) -> Iterator[str]:
        """The complete lines that were added since the last call."""
        yield from self._lines()
        while (later := part(self._first, self._generation + 1)).exists():
            yield from self._lines()  # lines that were written before the next generation began
            rest = self.rest()
            if rest:
                yield rest
            self.path, self.offset = later, 0
            self._generation += 1
            yield from self._lines()

    def _lines(self) -> Iterator[str]:
        try:
            stream = self.path.open("rb")
        except FileNotFoundError:
            return
        except PermissionError as error:
            raise unreadable(self.path, error) from None
        with stream:
            stream.seek(self.offset)
            while chunk := stream.read(CHUNK):
                self.offset += len(chunk)
                *whole, self._partial = (self._partial + chunk).split(b"\n")
                yield from (_text(line) for line in whole)
                if len(self._partial) > MAX_LINE:
                    yield self.rest()

    def rest(self) -> str:
        """The text after the last newline, left by a process that was cut off in the middle of a line."""
        text, self._partial = _text(self._partial), b""
        return text


def _text(line: bytes) -> str:
    return line.decode("utf-8", errors="replace").rstrip("\r")


def last_lines(path: Path, count: int, start: int = 0) -> tuple[str, ...]:
    """The last `count` non-empty lines that a process wrote after byte `start`, without reading the whole file."""
    try:
        with path.open("rb") as stream:
            end = stream.seek(0, 2)
            begin = max(start, end - count * 4096)
            stream.seek(begin)
            data = stream.read(end - begin)
    except FileNotFoundError:
        return ()
    except PermissionError as error:
        raise unreadable(path, error) from None
    lines = [_text(line) for line in data.split(b"\n") if line.strip() and not EPITAPH.search(line)]
    if begin > start and len(lines) > count:
        del lines[0]  # most likely cut in the middle
    return tuple(lines[-count:])


def history(files: Mapping[str, LogTail], tail: int | None = None, since: str = "") -> Iterator[LogLine]:
    """The lines of the files in the order of their timestamps; a line without one stays behind the line before it.

    `since`: local time with milliseconds, as `2026-11-22 20:01:59.000`; earlier lines are left out, and so are lines
    before a file's first timestamp. A timestamp in whole seconds counts as the end of its second.
    """

    def late(stamp: str) -> bool:
        return not since or (stamp if "." in stamp or not stamp else f"{stamp}.999") >= since

    def stamped(source: str, file: LogTail) -> Iterator[tuple[str, str, str]]:
        entries = dated(source, file)
        yield from entries if tail is None else deque(entries, maxlen=tail)

    def dated(source: str, file: LogTail) -> Iterator[tuple[str, str, str]]:
        stamp = ""
        for text in file.lines():
            found = STAMP.match(text)
            stamp = found[1] if found else stamp
            if late(stamp):
                yield stamp, source, text

    streams = [stamped(source, file) for source, file in files.items()]
    for _, source, text in merge(*streams, key=lambda entry: entry[0]):
        yield LogLine(source, text)


class LogFollower:
    """A thread that passes on every new line of several files until it is closed, including lines unread by then."""

    def __init__(self, files: Mapping[str, LogTail], emit: Callable[[LogLine], None]) -> None:
        self._files = dict(files)
        self._emit = emit
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="logs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Return when everything written so far has been passed on, or after two seconds if the terminal blocks."""
        self._closing.set()
        self._thread.join(timeout=2.0)

    def _run(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # nobody reads any more: the run continues unwatched
            while not self._closing.wait(POLL):
                self._pass()
            self._pass()
            for source, file in self._files.items():
                rest = file.rest()
                if rest:
                    self._emit(LogLine(source, rest))

    def _pass(self) -> None:
        for line in history(self._files):
            self._emit(line)
