"""Whole lines that hold a text, found by bytes alone: nothing is decoded, no other line is looked at."""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from pdctl.logs import needle
from pdctl.logs.block import LINE, SIZE, blocks, count, newlines
from pdctl.logs.buffer import Buffer
from pdctl.logs.event import Place
from pdctl.logs.numbering import Lines
from pdctl.logs.part import open_part

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Future

    from pdctl.logs.block import Block
    from pdctl.logs.needle import Needle
    from pdctl.logs.part import Note, Part
    from pdctl.logs.source import Log

SPAN = 1 << 24  # bytes of a plain part that one thread reads at a time
_SEEK = 1 << 20  # bytes in which a line must end for a part to be split there
_ALONE = 1 << 23  # bytes below which threads cost more than they bring
_WORKERS = 8
_AHEAD = 3  # spans a thread may be ahead of the one whose hits are wanted next
ENDLESS = 1 << 62


class Raw(NamedTuple):
    """A line as it stands in the file, without its newline, cut to 64 KiB; place.offset is right all the same."""

    place: Place
    line: bytes
    part: Part


class Hit(NamedTuple):
    """`offset` of the line's first byte; `line`: its number, 0 where it was not counted (plain parts: see Lines)."""

    offset: int
    text: bytes
    line: int


class Span(NamedTuple):
    """Decompressed bytes [start, end) of a part, both where a line begins. A compressed part is one span to ENDLESS."""

    part: Part
    start: int
    end: int


class Job(NamedTuple):
    """A span, and what is searched for in it."""

    span: Span
    needles: Sequence[Needle]


class Found(NamedTuple):
    """What one span held. notes: why it ended early, when it did."""

    span: Span
    hits: tuple[Hit, ...]
    notes: tuple[str, ...]


def find(log: Log, needles: Sequence[bytes]) -> Iterator[Raw]:
    """Lines of `log` that hold any of `needles`, in file order; digits only where no other digit stands beside them."""
    wanted = tuple(needle.of(text) for text in needles)
    buffer = Buffer(SIZE)
    for part in log.parts:
        lines = Lines(part)
        for hit in search(Span(part, 0, part.size if part.plain else ENDLESS), wanted, buffer):
            yield Raw(Place(part.path, hit.line or lines.at(hit.offset), hit.offset, part.origin), hit.text, part)


def search(span: Span, needles: Sequence[Needle], buffer: Buffer, note: Note | None = None) -> Iterator[Hit]:
    """Hits in order. Lines are counted on the way only where the part would have to be decompressed again for it."""
    stream = open_part(span.part, span.start, note, span.end)
    counting = not span.part.plain
    line, giant = 1, -1
    try:
        for block in blocks(stream, buffer, span.start):
            if counting and block.offset >= span.end:
                break
            if block.giant is not None:
                if block.giant.offset != giant and _in_piece(buffer, block, needles):
                    giant = block.giant.offset
                    yield Hit(giant, block.giant.head, line if counting else 0)
                line += count(buffer, block) if counting else 0
                continue
            at = block.start
            for first, last in _lines(buffer, block, needles):
                if counting:
                    line += newlines(buffer.data, at, first)
                    at = first
                text = bytes(buffer.data[first : min(last, first + LINE)])
                yield Hit(block.offset + first - block.start, text, line if counting else 0)
            line += newlines(buffer.data, at, block.end) if counting else 0
    finally:
        stream.close()


def _lines(buffer: Buffer, block: Block, needles: Sequence[Needle]) -> list[tuple[int, int]]:
    """Begin and end in the buffer of every line that holds a needle, in order."""
    found: dict[int, int] = {}
    data, start, end = buffer.data, block.start, block.end
    for each in needles:
        at = buffer.find(each.text, start, end)
        while at >= 0:
            behind = at + 1
            if each.stands(data, at, start, end):
                first = data.rfind(b"\n", start, at) + 1 or start
                last = data.find(b"\n", at, end)
                behind = found[first] = last if last >= 0 else end
            at = buffer.find(each.text, behind, end)
    return sorted(found.items())


def _in_piece(buffer: Buffer, block: Block, needles: Sequence[Needle]) -> bool:
    """Whether a piece of an endless line holds a needle with both neighbours; one at an edge is in two pieces."""
    giant = block.giant
    opens = giant is not None and giant.offset == block.offset
    closes = buffer.data[block.end - 1] == 10 or block.end < len(buffer.data)
    for each in needles:
        at = buffer.find(each.text, block.start + (not opens), block.end)
        while at >= 0:
            whole = closes or at + len(each.text) < block.end
            if whole and each.stands(buffer.data, at, block.start, block.end):
                return True
            at = buffer.find(each.text, at + 1, block.end)
    return False


def scan(work: Iterable[Job], threads: int = 1) -> Iterator[Found]:
    """Every span's hits, in the order of `work`; with several threads a few spans are read ahead."""
    if threads <= 1:
        buffers = [Buffer(SIZE)]
        for job in work:
            yield _searched(job, buffers)
        return
    from concurrent.futures import ThreadPoolExecutor  # late: small logs need no pool

    buffers = [Buffer(SIZE) for _ in range(threads)]
    waiting: deque[Future[Found]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="pdctl-logs")
    try:
        for job in work:
            waiting.append(pool.submit(_searched, job, buffers))
            if len(waiting) > threads * _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _searched(job: Job, buffers: list[Buffer]) -> Found:
    notes: list[str] = []
    buffer = buffers.pop()  # as many as there are threads
    try:
        return Found(job.span, tuple(search(job.span, job.needles, buffer, notes.append)), tuple(notes))
    finally:
        buffers.append(buffer)


def threads(size: int) -> int:
    """How many are worth starting for so many bytes."""
    if size < _ALONE:
        return 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, _WORKERS, size // _ALONE))


def spans(part: Part, start: int = 0, end: int | None = None) -> Iterator[Span]:
    """[start, end) of a plain part, which begins with a line, in pieces that do; a compressed part as one."""
    end = part.size if end is None else end
    while part.plain and end - start > SPAN + _SEEK:
        cut = _line_after(part, start + SPAN)
        if not start < cut < end:
            break
        yield Span(part, start, cut)
        start = cut
    if not part.plain:
        end = ENDLESS
    if start < end:
        yield Span(part, start, end)


def _line_after(part: Part, offset: int) -> int:
    """Where the first line behind `offset` begins; 0 when none does soon."""
    window = memoryview(bytearray(1 << 12))
    stream = open_part(part, offset)
    try:
        for at in range(offset, offset + _SEEK, len(window)):
            found = bytes(window[: stream.readinto(window)]).find(b"\n")
            if found >= 0:
                return at + found + 1
    finally:
        stream.close()
    return 0
