"""The index of rooms: which blocks of a part contain a number of 15 to 20 digits. Built once, then only appended to.

A room is looked up by searching for its eight bytes in the table, which is about 1% of the log and is read at memory
speed; the blocks found are then scanned as usual, so the table can make a search fast but not wrong. Rooms of fewer
digits (one in ninety of those drawn below 2^53, hardly any of those below 2^63) are not in it and are scanned for.

    header    <8sQQQqQ16sQI    magic, device, inode, size, modified (ns), covered, digest, bytes in use, CRC of these
    segments  <QQII            offset of a block in the decompressed part, its size, lines that end in it, numbers in it
              <Q each          the numbers
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from bisect import bisect_left
from typing import TYPE_CHECKING, BinaryIO
from zlib import crc32

from pdctl.logs import log_cache, scan
from pdctl.logs.blocks import SIZE, Buffer, blocks, count_lines
from pdctl.logs.log_cache import Fingerprint
from pdctl.logs.part import open_part
from pdctl.logs.scan import ByteSpan
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from io import FileIO
    from pathlib import Path

    from pdctl.logs.part import LogPart, Stream

MAGIC = b"PDROOMS1"
SHORTEST, _LONGEST = 15, 20  # digits
_HEADER = struct.Struct("<8sQQQqQ16sQI")
_START = 96  # where segments begin: everything is aligned to eight bytes
_SEGMENT = struct.Struct("<QQII")
_RUN = b"0" * SHORTEST
_DIGITS = bytes(48 if 48 <= byte < 58 else 32 for byte in range(256))


class IndexedPlaces(NamedTuple):
    """Where the room can be in the first `covered` bytes on disk. lines: (offset, line number) of those places."""

    spans: tuple[ByteSpan, ...]
    lines: tuple[tuple[int, int], ...]
    covered: int


class _Header(NamedTuple):
    of: Fingerprint
    used: int


class RoomIndex:
    """The tables of all parts; none if not `enabled`."""

    def __init__(self, environ: Mapping[str, str], enabled: bool) -> None:
        self._environ = environ
        self._enabled = enabled

    def where(self, part: LogPart, room: int) -> IndexedPlaces | None:
        """Where the room can be; None if the part has no valid table, or tables do not hold rooms this short."""
        if not self._enabled or room < 10 ** (SHORTEST - 1):
            return None
        try:
            with self._file(part).open("rb", buffering=0) as table:
                header = _header(table)
                if header is None or not log_cache.still_matches(header.of, part):
                    return None
                return _look(table, header, part, room)
        except OSError:
            return None

    def build(self, part: LogPart, progress: Callable[[int], None] | None = None) -> bool:
        """Update the part's table. False: it cannot be stored, another command is building it, or the part changed."""
        if not self._enabled or part.spool is not None:
            return False
        file = self._file(part)
        with contextlib.suppress(OSError), _locked(file.with_suffix(".lock")) as locked:
            built = locked and _update(file, part, progress)
            log_cache.forget_oldest(file.parent)
            return built
        return False

    def _file(self, part: LogPart) -> Path:
        return log_cache.cache_directory(part, self._environ) / f"{part.device:x}-{part.inode:x}.rooms"


def long_numbers(data: bytearray, start: int, end: int) -> set[int]:
    """All numbers of 15 to 20 digits that fit into 64 bits."""
    flat = data[start:end].translate(_DIGITS)
    runs: set[bytes] = set()
    at = flat.find(_RUN)
    while at >= 0:
        behind = flat.find(b" ", at + SHORTEST)
        behind = len(flat) if behind < 0 else behind
        if behind - at <= _LONGEST:
            runs.add(bytes(data[start + at : start + behind]))
        at = flat.find(_RUN, behind)
    return {number for number in map(int, runs) if number < 1 << 64}


def _header(table: BinaryIO | FileIO) -> _Header | None:
    data = table.read(_HEADER.size)
    if len(data) != _HEADER.size or crc32(data[:-4]) != int.from_bytes(data[-4:], "little"):
        return None
    magic, *of, used, _ = _HEADER.unpack(data)
    return _Header(Fingerprint(*of), used) if magic == MAGIC else None


def _packed(header: _Header) -> bytes:
    data = _HEADER.pack(MAGIC, *header.of, header.used, 0)[:-4]
    return data + crc32(data).to_bytes(4, "little")


def _look(table: FileIO, header: _Header, part: LogPart, room: int) -> IndexedPlaces:
    places = sorted(_places(table, header.used, room.to_bytes(8, "little")))
    spans: list[ByteSpan] = []
    lines: list[tuple[int, int]] = []
    line = 1
    for at, offset, size, newlines, numbers in _segments(table, header.used) if places else ():
        first = bisect_left(places, at)
        if first < len(places) and places[first] < at + _SEGMENT.size + numbers * 8:
            if spans and spans[-1].start == offset:  # pieces of one long line
                spans.pop()
            spans.append(ByteSpan(part, offset, offset + size))
            lines.append((offset, line))
        line += newlines
    if spans and not part.plain:  # compressed: no seeking into the middle
        spans = [ByteSpan(part, 0, spans[-1].end)]
    return IndexedPlaces(tuple(spans), tuple(lines), header.of.covered)


def _places(table: FileIO, used: int, key: bytes) -> Iterator[int]:
    """Where the key occurs; sometimes in the head of a segment, which costs reading one block in vain."""
    buffer = Buffer(SIZE)
    table.seek(_START)
    base = _START
    while base < used and (got := table.readinto(buffer.view)):
        end = min(got, used - base)
        at = buffer.find(key, 0, end)
        while at >= 0:
            if at % 8 == 0:
                yield base + at
            at = buffer.find(key, at + 1, end)
        base += got
        if got % 8:  # a short read: continue at a number's beginning
            base -= got % 8
            table.seek(base)


def _segments(table: FileIO, used: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Position in the table, then offset, size, lines, count of numbers."""
    with mmap.mmap(table.fileno(), used, access=mmap.ACCESS_READ) as whole:
        at = _START
        while at + _SEGMENT.size <= used:
            head = _SEGMENT.unpack_from(whole, at)
            yield (at, *head)
            at += _SEGMENT.size + head[3] * 8


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[bool]:
    """Yield whether this process holds the exclusive lock for writing."""
    import fcntl

    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(file, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(handle)


def _update(file: Path, part: LogPart, progress: Callable[[int], None] | None) -> bool:
    covered = log_cache.whole_lines(part)
    before = log_cache.take_fingerprint(part, covered)
    if before is None:
        return False
    old = _valid(file, part)
    if old is not None and old.of.covered == covered:
        return True
    if old is not None and part.plain:
        with file.open("r+b") as table:  # readers use only what their header covers
            return _append(table, old, part, before, progress)
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with draft.open("w+b") as table:
            nothing = _Header(before._replace(covered=0), _START)
            table.write(_packed(nothing).ljust(_START, b"\0"))
            if not _append(table, nothing, part, before, progress):
                return False
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    return True


def _valid(file: Path, part: LogPart) -> _Header | None:
    try:
        with file.open("rb") as table:
            header = _header(table)
    except FileNotFoundError:
        return None
    return header if header is not None and log_cache.still_matches(header.of, part) else None


def _append(
    table: BinaryIO, old: _Header, part: LogPart, before: Fingerprint, progress: Callable[[int], None] | None
) -> bool:
    """Write segments for what `old` does not cover, then the header that validates them. False if the part changed."""
    notes: list[str] = []
    start = old.of.covered if part.plain else 0
    table.seek(old.used)
    table.truncate()
    stream = open_part(part, start, notes.append, before.covered)
    try:
        for segment, size in _indexed(Buffer(SIZE), stream, start):
            table.write(segment)
            if progress:
                progress(size)
    finally:
        stream.close()
    used = table.tell()
    table.flush()
    os.fsync(table.fileno())  # the header must not reach the disk before the data it covers
    after = log_cache.take_fingerprint(part, before.covered)
    if notes or after is None or after.digest != before.digest:
        return False
    table.seek(0)
    table.write(_packed(_Header(after, used)))
    return True


def _indexed(buffer: Buffer, stream: Stream, start: int) -> Iterator[tuple[bytes, int]]:
    """A segment for every block and the bytes it adds; each piece of a long line is covered from the line's start."""
    behind = start
    for block in blocks(stream, buffer, start):
        numbers = long_numbers(buffer.data, block.start, block.end)
        first = block.offset if block.long_line is None else block.long_line.offset
        end = block.offset + block.end - block.start
        head = _SEGMENT.pack(first, end - first, count_lines(buffer, block), len(numbers))
        yield head + struct.pack(f"<{len(numbers)}Q", *numbers), end - behind
        behind = end


def build_all(
    parts: Sequence[LogPart], environ: Mapping[str, str], progress: Callable[[int, int], None] | None = None
) -> tuple[LogPart, ...]:
    """Update the table of every part; return the parts that have one now."""
    kept = [part for part in parts if part.spool is None]
    total = sum(part.size for part in kept)
    workers = min(scan.thread_count(total), len(kept))
    if total < scan.PARALLEL or workers < 2:
        return _here(kept, environ, total, progress)
    from concurrent.futures import ProcessPoolExecutor, as_completed  # late: it takes a while to load
    from multiprocessing import get_context

    plain = dict(environ)
    done, built = 0, set()
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        largest = sorted(kept, key=lambda part: -part.size)
        waiting = {pool.submit(_one, part, plain): part for part in largest}
        for future in as_completed(waiting):
            part = waiting[future]
            done += part.size
            if future.result():
                built.add(part)
            if progress:
                progress(done, total)
    return tuple(part for part in kept if part in built)


def _one(part: LogPart, environ: Mapping[str, str]) -> bool:
    return RoomIndex(environ, True).build(part)


def _here(
    parts: Sequence[LogPart], environ: Mapping[str, str], total: int, progress: Callable[[int, int], None] | None
) -> tuple[LogPart, ...]:
    done = 0

    def step(size: int) -> None:
        nonlocal done
        done += size
        if progress:
            progress(min(done, total), total)

    tables = RoomIndex(environ, True)
    return tuple(part for part in parts if tables.build(part, step))
