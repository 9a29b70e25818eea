"""A stream of bytes as blocks of whole lines, in constant memory however long a line is."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.logs.buffer import Buffer
    from pdctl.logs.part import Stream

SIZE = 1 << 19  # bytes of a buffer: stays in the second-level cache, and steps of Python between blocks cost nothing
LINE = 1 << 16  # bytes of a line that are kept; the rest is searched, and dropped
OVERLAP = 1 << 10  # bytes two pieces of one endless line share: longer than anything searched for
_DENSE = 32  # bytes per line below which counting beats splitting


class Giant(NamedTuple):
    """A line longer than the buffer: where it began, and its first LINE bytes."""

    offset: int
    head: bytes


class Block(NamedTuple):
    """buffer.data[start:end], which lies at `offset` in the stream. Valid until the next block is asked for.

    Whole lines, the last of a stream possibly without its newline; or, with `giant`, a piece of one line, and pieces
    overlap by OVERLAP bytes. `newlines` that end lines in it are counted by `count`.
    """

    offset: int
    start: int
    end: int
    giant: Giant | None = None


def blocks(stream: Stream, buffer: Buffer, offset: int = 0) -> Iterator[Block]:
    """`offset`: of the stream's first byte, which begins a line."""
    data, view = buffer.data, buffer.view
    overlap = min(OVERLAP, len(data) // 2)
    held = 0  # bytes of an unfinished line at the front of the buffer
    giant: Giant | None = None
    while got := stream.readinto(view[held:]):
        filled = held + got
        first = 0
        if giant is not None:
            first = data.find(b"\n", held, filled) + 1
            if first:
                yield Block(offset, 0, first, giant)
                giant = None
        if giant is None:
            last = data.rfind(b"\n", max(held, first), filled) + 1
            if last > first:
                yield Block(offset + first, first, last)
            first = max(first, last)
        held = filled - first
        if held == len(data):  # no newline in all of it
            giant = giant or Giant(offset, bytes(data[:LINE]))
            yield Block(offset, 0, held, giant)
            first, held = held - overlap, overlap
        if first:
            data[:held] = data[first : first + held]
            offset += first
    if held:
        yield Block(offset, 0, held, giant)


def count(buffer: Buffer, block: Block) -> int:
    """Lines that end in the block."""
    if block.giant is not None:
        return int(buffer.data[block.end - 1] == 10)
    return newlines(buffer.data, block.start, block.end)


def newlines(data: bytearray, start: int, end: int) -> int:
    """Up to CPython 3.12 splitting into lines is nearly twice as fast as counting bytes, unless lines are tiny."""
    sample = min(end, start + 4096)
    if data.count(b"\n", start, sample) * _DENSE > sample - start:
        return data.count(b"\n", start, end)
    lines = len(BytesIO(memoryview(data)[start:end]).readlines())
    return lines - (end > start and data[end - 1] != 10)
