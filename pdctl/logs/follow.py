"""A log as it grows: new whole lines, through rotation by renaming and through truncation."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pdctl.logs.blocks import LINE, LineNumbers
from pdctl.logs.event import Place
from pdctl.logs.log_cache import whole_lines
from pdctl.logs.part import examine
from pdctl.logs.scan import RawLine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pdctl.logs.part import LogPart
    from pdctl.logs.source import Log

POLL = 0.2  # seconds between looks at a file that does not grow
_CHUNK = 1 << 16


class _Open(NamedTuple):
    """`part`: what the open file was when it was opened."""

    handle: int
    part: LogPart


class _Follower:
    """The newest file of a log. One that is not there is waited for."""

    def __init__(self, log: Log) -> None:
        self._known = log.parts[-1]
        self._path = Path(self._known.path)
        self._open: _Open | None = None
        self._offset = 0  # of the line that is being read
        self._line = 1
        self._begun = b""  # its first bytes
        self._size = 0  # all of its bytes so far

    def begin(self, start: int | None) -> None:
        self._open = self._opened()
        now = self._open.part if self._open else None
        if now is None or now.inode != self._known.inode or now.size < self._known.size:
            return  # another file by now, or cut off (inodes are used again): all of it is new
        self._offset = whole_lines(self._known) if start is None else start
        self._line = LineNumbers(now).at(self._offset)

    def lines(self) -> Iterator[RawLine]:
        """Whole lines added since the last call; of a file that was renamed away, first what is still written to it."""
        self._open = self._open or self._opened()
        if self._open is None:
            return
        if os.fstat(self._open.handle).st_size < self._offset + self._size:  # cut off in place
            self._restart()
        moved = self._moved(self._open)
        before = self._offset + self._size
        yield from self._read(self._open)
        if moved and self._offset + self._size == before:
            if self._size:  # the last words of a process that ended without a newline
                yield self._whole(self._open.part)
            self.close()
            self._restart()

    def close(self) -> None:
        if self._open is not None:
            os.close(self._open.handle)
            self._open = None

    def _opened(self) -> _Open | None:
        try:
            part = examine(str(self._path))
            return _Open(os.open(self._path, os.O_RDONLY), part)
        except OSError:
            return None

    def _moved(self, source: _Open) -> bool:
        """Whether another file has taken the name."""
        state = os.fstat(source.handle)
        try:
            now = self._path.stat()
        except OSError:
            return False  # between two names: the old file may still be written to
        return (state.st_dev, state.st_ino) != (now.st_dev, now.st_ino)

    def _restart(self) -> None:
        self._offset, self._line, self._begun, self._size = 0, 1, b"", 0

    def _read(self, source: _Open) -> Iterator[RawLine]:
        while chunk := os.pread(source.handle, _CHUNK, self._offset + self._size):
            *ended, rest = chunk.split(b"\n")
            for piece in ended:
                self._take(piece)
                self._size += 1
                yield self._whole(source.part)
            self._take(rest)

    def _take(self, piece: bytes) -> None:
        if len(self._begun) < LINE:
            self._begun = (self._begun + piece)[:LINE]
        self._size += len(piece)

    def _whole(self, part: LogPart) -> RawLine:
        raw = RawLine(Place(part.path, self._line, self._offset), self._begun, part)
        self._offset += self._size
        self._line += 1
        self._begun, self._size = b"", 0
        return raw


def follow(log: Log, stop: Callable[[], bool], *, start: int | None = None, poll: float = POLL) -> Iterator[RawLine]:
    """New whole lines of the log's newest file, until `stop` says so and everything written before has been handed on.

    start: offset where a line begins; None: behind the last whole line there was when the log was opened. A line is
    whole once its newline is written, or its file has been renamed away and is written to no more. Lines are cut to
    64 KiB. Between looks at a file that does not grow it sleeps `poll` seconds.
    """
    follower = _Follower(log)
    follower.begin(start)
    pause = threading.Event()
    try:
        while True:
            last = stop()
            grew = False
            for raw in follower.lines():
                grew = True
                yield raw
            if last:
                return
            if not grew:
                pause.wait(poll)
    finally:
        follower.close()
