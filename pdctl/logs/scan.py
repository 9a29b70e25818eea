"""Find whole lines that contain a room's number, a request id or another text, by searching bytes."""

from __future__ import annotations

import os
import re
from collections import deque
from functools import lru_cache
from typing import TYPE_CHECKING

from pdctl.errors import UsageError
from pdctl.logs.blocks import LINE, SIZE, Buffer, LineNumbers, blocks, count_lines, count_newlines
from pdctl.logs.event import Place, RawLine
from pdctl.logs.part import open_part
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Future

    from pdctl.engines.base import Row
    from pdctl.logs.blocks import Block
    from pdctl.logs.part import LogPart, Note
    from pdctl.logs.source import Log

LONGEST_TERM = 512  # bytes; fits into blocks.OVERLAP with its neighbours
_DIGITS = b"0123456789"
_WORD = _DIGITS + b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
_LONG = 9  # digits from which a number is unlikely to be anything but a room
# `room=7`, `"bootstrap_room": 7`, `room 7`: what must precede a short room, besides the words in the dialect's rows.
_ANCHORS = (b"room=", b"room ", b"room: ", b'room":', b'room": ', b"room='")
_LETTERS = 3  # fewer letters would occur before anything
_ROOM_GROUP = re.compile(r"(?<!\?)((?:[A-Za-z_ :=\"']|\\[ .(=:])+)\(\?P<room>")
SPAN = 1 << 24  # bytes of a plain part that one thread reads at a time
_SEEK = 1 << 20  # bytes within which a line must end for a part to be split there
PARALLEL = 1 << 29  # bytes below which starting more processes costs more than it saves
_ALONE = 1 << 23  # bytes below which threads cost more than they save
_WORKERS = 8
_AHEAD = 3  # spans per thread that may be read ahead of the one needed next
ENDLESS = 1 << 62


class SearchTerm(NamedTuple):
    """`text` without any byte of `apart` before or after it; `prefix` ("0x") is allowed before it all the same."""

    text: bytes
    apart: bytes = b""
    prefix: bytes = b""

    def stands(self, data: bytearray | bytes, at: int, start: int, end: int) -> bool:
        """Whether the occurrence at `at` is a match by its neighbours; start and end bound the bytes to examine."""
        behind = at + len(self.text)
        if behind < end and data[behind] in self.apart:
            return False
        if at <= start or data[at - 1] not in self.apart:
            return True
        before = at - len(self.prefix)
        return bool(self.prefix) and before >= start and data[before:at] == self.prefix

    def among(self, text: bytes) -> bool:
        """Whether `text`, one line, contains a match."""
        at = text.find(self.text)
        while at >= 0:
            if self.stands(text, at, 0, len(text)):
                return True
            at = text.find(self.text, at + 1)
        return False


def literal_term(text: bytes) -> SearchTerm:
    """A term for a number must not touch other digits; any other text matches anywhere."""
    return SearchTerm(text, _DIGITS if text.isdigit() else b"")


def room_terms(number: int, rows: Iterable[Row] = ()) -> tuple[SearchTerm, ...]:
    """Terms for the decimal room. A short number counts only after words that announce a room (`rows`, _ANCHORS)."""
    text = b"%d" % number
    if len(text) >= _LONG:
        return (SearchTerm(text, _DIGITS),)
    anchors = dict.fromkeys((*_ANCHORS, *filter(None, (words_before_room(row.pattern) for row in rows))))
    shortest = [each for each in anchors if not any(each != other and each.endswith(other) for other in anchors)]
    # The left neighbour is part of the anchor, so nothing before it matters.
    return tuple(SearchTerm(anchor + text, _DIGITS) for anchor in shortest)


def hex_room_terms(number: int) -> tuple[SearchTerm, ...]:
    """Terms for the room in hex, as in OTLP spans: `0x1dcf…`; the 0x is optional if it cannot be a decimal number."""
    digits = b"%x" % number
    if len(digits) >= _LONG and not digits.isdigit():
        return (SearchTerm(digits, _WORD, b"0x"),)
    return (SearchTerm(b"0x" + digits, _WORD),)


def is_searchable(rid: str) -> bool:
    """Whether `request_terms` accepts it: a mangled line may give a request an id of thousands of characters."""
    text = rid.encode()
    return 0 < len(text) <= LONGEST_TERM and b"\n" not in text


def request_terms(rids: Iterable[str]) -> tuple[SearchTerm, ...]:
    names = tuple(rids)
    if not all(map(is_searchable, names)):
        raise UsageError("--rid is empty, too long or not one line", f"give 1 to {LONGEST_TERM} bytes")
    return tuple(SearchTerm(name.encode(), _WORD + b"-") for name in names)


@lru_cache(maxsize=4096)
def words_before_room(pattern: str) -> bytes:
    """The words before a row's room: `Request ` in `Request (?P<room>\\d+) waiting_timeout`; empty if none."""
    found = _ROOM_GROUP.search(pattern) if "(?P<room>" in pattern else None
    text = found[1].replace("\\", "").encode()[-16:] if found else b""
    return text if sum(map(str.isalpha, text.decode())) >= _LETTERS else b""


class LineHit(NamedTuple):
    """offset: of the line's first byte; line: its number, 0 if it was not counted (plain parts: see LineNumbers)."""

    offset: int
    text: bytes
    line: int


class ByteSpan(NamedTuple):
    """Decompressed bytes [start, end) of a part, both where a line begins. A compressed part is one span to ENDLESS."""

    part: LogPart
    start: int
    end: int


class ScanJob(NamedTuple):
    """A span and the terms to search for in it."""

    span: ByteSpan
    terms: Sequence[SearchTerm]


class ScanResult(NamedTuple):
    """The hits of one span. notes: why it ended early, if it did."""

    span: ByteSpan
    hits: tuple[LineHit, ...]
    notes: tuple[str, ...]


def find_lines(log: Log, terms: Sequence[bytes]) -> Iterator[RawLine]:
    """Lines of `log` that contain any of `terms`, in file order; numbers only where no other digit touches them."""
    wanted = tuple(literal_term(text) for text in terms)
    buffer = Buffer(SIZE)
    for part in log.parts:
        lines = LineNumbers(part)
        for hit in search(ByteSpan(part, 0, part.size if part.plain else ENDLESS), wanted, buffer):
            yield RawLine(Place(part.path, hit.line or lines.at(hit.offset), hit.offset, part.origin), hit.text, part)


def search(span: ByteSpan, terms: Sequence[SearchTerm], buffer: Buffer, note: Note | None = None) -> Iterator[LineHit]:
    """Hits in order. Lines are counted on the way only for compressed parts, which would otherwise be read again."""
    stream = open_part(span.part, span.start, note, span.end)
    counting = not span.part.plain
    line, long_line = 1, -1
    try:
        for block in blocks(stream, buffer, span.start):
            if counting and block.offset >= span.end:
                break
            if block.long_line is not None:
                if block.long_line.offset != long_line and _in_piece(buffer, block, terms):
                    long_line = block.long_line.offset
                    yield LineHit(long_line, block.long_line.head, line if counting else 0)
                line += count_lines(buffer, block) if counting else 0
                continue
            at = block.start
            for first, last in _lines(buffer, block, terms):
                if counting:
                    line += count_newlines(buffer.data, at, first)
                    at = first
                text = bytes(buffer.data[first : min(last, first + LINE)])
                yield LineHit(block.offset + first - block.start, text, line if counting else 0)
            line += count_newlines(buffer.data, at, block.end) if counting else 0
    finally:
        stream.close()


def _lines(buffer: Buffer, block: Block, terms: Sequence[SearchTerm]) -> list[tuple[int, int]]:
    """Begin and end in the buffer of every line that contains a term, in order."""
    found: dict[int, int] = {}
    data, start, end = buffer.data, block.start, block.end
    for each in terms:
        at = buffer.find(each.text, start, end)
        while at >= 0:
            behind = at + 1
            if each.stands(data, at, start, end):
                first = data.rfind(b"\n", start, at) + 1 or start
                last = data.find(b"\n", at, end)
                behind = found[first] = last if last >= 0 else end
            at = buffer.find(each.text, behind, end)
    return sorted(found.items())


def _in_piece(buffer: Buffer, block: Block, terms: Sequence[SearchTerm]) -> bool:
    """Whether a piece of a long line contains a term with both neighbours; a term at an edge is in two pieces."""
    long_line = block.long_line
    opens = long_line is not None and long_line.offset == block.offset
    closes = buffer.data[block.end - 1] == 10 or block.end < len(buffer.data)
    for each in terms:
        at = buffer.find(each.text, block.start + (not opens), block.end)
        while at >= 0:
            whole = closes or at + len(each.text) < block.end
            if whole and each.stands(buffer.data, at, block.start, block.end):
                return True
            at = buffer.find(each.text, at + 1, block.end)
    return False


def scan(work: Iterable[ScanJob], threads: int = 1) -> Iterator[ScanResult]:
    """Every span's hits, in the order of `work`; with several threads a few spans are read ahead."""
    if threads <= 1:
        buffers = [Buffer(SIZE)]
        for job in work:
            yield _searched(job, buffers)
        return
    from concurrent.futures import ThreadPoolExecutor  # late: small logs need no pool

    buffers = [Buffer(SIZE) for _ in range(threads)]
    waiting: deque[Future[ScanResult]] = deque()
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


def _searched(job: ScanJob, buffers: list[Buffer]) -> ScanResult:
    notes: list[str] = []
    buffer = buffers.pop()  # there are as many as threads
    try:
        return ScanResult(job.span, tuple(search(job.span, job.terms, buffer, notes.append)), tuple(notes))
    finally:
        buffers.append(buffer)


def thread_count(size: int) -> int:
    """The number of threads worth starting for `size` bytes."""
    if size < _ALONE:
        return 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, _WORKERS, size // _ALONE))


def spans(part: LogPart, start: int = 0, end: int | None = None) -> Iterator[ByteSpan]:
    """Split [start, end) of a plain part, where `start` begins a line, into spans that begin with lines.

    A compressed part is one span.
    """
    end = part.size if end is None else end
    while part.plain and end - start > SPAN + _SEEK:
        cut = _line_after(part, start + SPAN)
        if not start < cut < end:
            break
        yield ByteSpan(part, start, cut)
        start = cut
    if not part.plain:
        end = ENDLESS
    if start < end:
        yield ByteSpan(part, start, end)


def _line_after(part: LogPart, offset: int) -> int:
    """Where the first line after `offset` begins; 0 if none does within 1 MiB."""
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
