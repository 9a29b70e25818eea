"""The bytes of a part as blocks of whole lines in a reused buffer, and the numbers of those lines."""

from __future__ import annotations

import os
import sys
from bisect import bisect_right, insort
from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING

from pdctl.logs.event import Place
from pdctl.logs.part import open_part
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pdctl.logs.part import LogPart, Stream

    Memmem = Callable[[int, int, bytes, int], int | None]

SIZE = 1 << 19  # bytes of a buffer: fits the L2 cache, and large enough that Python's overhead per block is negligible
LINE = 1 << 16  # bytes of a line that are kept; the rest is searched, then dropped
OVERLAP = 1 << 10  # bytes that two pieces of one long line share: more than any search term
_WORTH = 1 << 22  # bytes to search from which on loading ctypes for memmem pays
_DENSE = 32  # bytes per line below which counting beats splitting


class Buffer:
    """A fixed-size buffer: `data` must not be resized, because C code gets its address."""

    def __init__(self, size: int) -> None:
        self.data = bytearray(size)
        self.view = memoryview(self.data)
        self._memmem: Memmem | None = None
        self._address = 0
        self._searched = 0

    def find(self, term: bytes, start: int, end: int) -> int:
        """The first index of `term` in [start, end), or -1, as bytearray.find."""
        if self._memmem is None:
            self._searched += end - start
            if self._searched < _WORTH or (found := memmem()) is None:
                return self.data.find(term, start, end)
            self._memmem, self._address = found, _address(self.data)
        at = self._memmem(self._address + start, max(end - start, 0), term, len(term))
        return -1 if at is None else at - self._address


@lru_cache(maxsize=1)
def memmem() -> Memmem | None:
    """The C library's memmem; None if it has none (then bytearray.find is used, three times slower)."""
    try:
        import ctypes
    except ImportError:
        return None
    try:
        function = ctypes.CDLL(None).memmem
    except (OSError, AttributeError, TypeError):
        return None
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    return function


def _address(data: bytearray) -> int:
    import ctypes

    return ctypes.addressof(ctypes.c_char.from_buffer(data))


class LongLine(NamedTuple):
    """A line longer than the buffer: where it began, and its first LINE bytes."""

    offset: int
    head: bytes


class Block(NamedTuple):
    """buffer.data[start:end], which is at `offset` in the stream. Valid until the next block is requested.

    Whole lines, the last of a stream possibly without its newline; or, with `long_line`, a piece of one line. Pieces
    overlap by OVERLAP bytes. `count_lines` counts the lines that end in a block.
    """

    offset: int
    start: int
    end: int
    long_line: LongLine | None = None


def blocks(stream: Stream, buffer: Buffer, offset: int = 0) -> Iterator[Block]:
    """Read the stream block by block. offset: of the stream's first byte, which begins a line."""
    data, view = buffer.data, buffer.view
    overlap = min(OVERLAP, len(data) // 2)
    held = 0  # bytes of an unfinished line at the front of the buffer
    long_line: LongLine | None = None
    while got := stream.readinto(view[held:]):
        filled = held + got
        first = 0
        if long_line is not None:
            first = data.find(b"\n", held, filled) + 1
            if first:
                yield Block(offset, 0, first, long_line)
                long_line = None
        if long_line is None:
            last = data.rfind(b"\n", max(held, first), filled) + 1
            if last > first:
                yield Block(offset + first, first, last)
            first = max(first, last)
        held = filled - first
        if held == len(data):  # no newline in all of it
            long_line = long_line or LongLine(offset, bytes(data[:LINE]))
            yield Block(offset, 0, held, long_line)
            first, held = held - overlap, overlap
        if first:
            data[:held] = data[first : first + held]
            offset += first
    if held:
        yield Block(offset, 0, held, long_line)


def count_lines(buffer: Buffer, block: Block) -> int:
    """Number of lines that end in the block."""
    if block.long_line is not None:
        return int(buffer.data[block.end - 1] == 10)
    return count_newlines(buffer.data, block.start, block.end)


def count_newlines(data: bytearray, start: int, end: int) -> int:
    """Up to CPython 3.12, splitting into lines is nearly twice as fast as counting bytes, unless lines are tiny."""
    sample = min(end, start + 4096)
    if data.count(b"\n", start, sample) * _DENSE > sample - start:
        return data.count(b"\n", start, end)
    lines = len(BytesIO(memoryview(data)[start:end]).readlines())
    return lines - (end > start and data[end - 1] != 10)


class LineNumbers:
    """Line numbers of one part, found by counting from the nearest known offset."""

    def __init__(self, part: LogPart) -> None:
        self._part = part
        self._known: list[tuple[int, int]] = [(0, 1)]

    def learn(self, offset: int, line: int) -> None:
        """Record that line `line` begins at `offset`."""
        at = bisect_right(self._known, (offset, line))
        if self._known[at - 1] != (offset, line):
            insort(self._known, (offset, line))

    @property
    def path(self) -> str:
        return self._part.path

    @property
    def origin(self) -> str:
        return self._part.origin

    def place(self, offset: int) -> Place:
        """Where the line that begins at `offset` stands; it is counted when its number is asked for."""
        return Place(self._part.path, self.at, offset, self._part.origin)

    def at(self, offset: int) -> int:
        """The number of the line that begins at `offset`; for a source of a merged stream, its number in the stream."""
        return self.told(self._own(offset))

    def told(self, line: int) -> int:
        """The number to report for the part's own line `line`."""
        if self._part.numbers is None:
            return line
        found = os.pread(self._part.numbers.fileno(), 8, (line - 1) * 8)
        return int.from_bytes(found, sys.byteorder) if len(found) == 8 else line

    def _own(self, offset: int) -> int:
        right = bisect_right(self._known, (offset, 1 << 62))
        start, line = self._known[right - 1]
        if start == offset:
            return line
        behind = self._known[right] if right < len(self._known) else None
        if behind is not None and behind[0] - offset < offset - start and self._part.plain:
            line = behind[1] - self._between(offset, behind[0])
        else:
            line += self._between(start, offset)
        self.learn(offset, line)
        return line

    def total(self) -> int:
        """Number of lines of the whole part; a last line without a newline counts."""
        data = bytearray(SIZE)
        stream = open_part(self._part)
        lines, last = 0, 10
        try:
            while got := stream.readinto(memoryview(data)):
                lines += count_newlines(data, 0, got)
                last = data[got - 1]
        finally:
            stream.close()
        return lines + (last != 10)

    def _between(self, start: int, end: int) -> int:
        if not self._part.plain:
            return self._inside(start, end)
        data = bytearray(SIZE)
        stream = open_part(self._part, start, None, end)
        lines = 0
        try:
            while got := stream.readinto(memoryview(data)):
                lines += count_newlines(data, 0, got)
        finally:
            stream.close()
        return lines

    def _inside(self, start: int, end: int) -> int:
        buffer = Buffer(SIZE)
        stream = open_part(self._part, start)
        lines = 0
        try:
            for block in blocks(stream, buffer, start):
                if block.offset + block.end - block.start < end:
                    lines += count_lines(buffer, block)
                    continue
                lines += count_newlines(buffer.data, block.start, block.start + max(0, end - block.offset))
                break
        finally:
            stream.close()
        return lines
