"""Line numbers, counted only for the lines somebody looks at."""

from __future__ import annotations

import os
import sys
from bisect import bisect_right, insort
from typing import TYPE_CHECKING

from pdctl.logs.block import SIZE, blocks, count, newlines
from pdctl.logs.buffer import Buffer
from pdctl.logs.event import Place
from pdctl.logs.part import open_part

if TYPE_CHECKING:
    from pdctl.logs.part import Part


class Lines:
    """Line numbers of one part. What lies between an offset and the nearest known one is read once more for it."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._known: list[tuple[int, int]] = [(0, 1)]

    def learn(self, offset: int, line: int) -> None:
        """Line `line` begins at `offset`."""
        at = bisect_right(self._known, (offset, line))
        if self._known[at - 1] != (offset, line):
            insort(self._known, (offset, line))

    @property
    def origin(self) -> str:
        return self._part.origin

    def at(self, offset: int) -> int:
        """Of the line that begins at `offset`; of a source of a merged stream, its number in the stream."""
        return self.told(self._own(offset))

    def told(self, line: int) -> int:
        """The number to tell of the part's own line `line`."""
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
        """Lines of the whole part; a last one without a newline counts."""
        data = bytearray(SIZE)
        stream = open_part(self._part)
        lines, last = 0, 10
        try:
            while got := stream.readinto(memoryview(data)):
                lines += newlines(data, 0, got)
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
                lines += newlines(data, 0, got)
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
                    lines += count(buffer, block)
                    continue
                lines += newlines(buffer.data, block.start, block.start + max(0, end - block.offset))
                break
        finally:
            stream.close()
        return lines


class Unnumbered(Place):
    """A place whose line is counted when it is first asked for."""

    __slots__ = ("_lines",)
    _lines: Lines

    def __init__(self, file: str, offset: int, lines: Lines) -> None:
        object.__setattr__(self, "file", file)
        object.__setattr__(self, "offset", offset)
        object.__setattr__(self, "_lines", lines)
        object.__setattr__(self, "origin", lines.origin)

    @property
    def line(self) -> int:
        return self._lines.at(self.offset)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and (self.file, self.offset) == (other.file, other.offset)

    def __hash__(self) -> int:
        return hash((self.file, self.offset))
