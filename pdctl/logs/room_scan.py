"""One pass over a part that finds every room in it: which rows name it, and when it appears first and last.

Most lines about rooms are of a few kinds. The bytes right before and after the number identify the kind, as far as the
dialect's own examples show that they do; only other lines are read in full.
"""

from __future__ import annotations

import contextlib
import gc
import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from pdctl.engines import numerals
from pdctl.engines.prefix import split
from pdctl.engines.row_matching import Speech
from pdctl.logs.blocks import SIZE, Buffer, blocks
from pdctl.logs.clock import Clock
from pdctl.logs.part import open_part
from pdctl.named_tuple import NamedTuple

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterator, Sequence, Set

    from pdctl.engines.base import Row, Speaker
    from pdctl.logs.part import LogPart

RECORD = struct.Struct("<QddQI")  # room, first (inf: untimed), last (-inf: untimed), kinds (one bit each), lines
BUCKETS = 64
_ROOM = rb"room[=\": '\[(]{1,4}"
_NUMBER = rb"(\d+)"
_BEFORE, _BEHIND = 7, 8  # bytes around a number that identify the kind of line
_HELD = 20_000  # rooms, and cached times, held in memory
_FLUSHED = 1 << 16  # bytes of a bucket above which it is written out
KINDS = 63  # the last bit of a record
_STAMPED = 21  # bytes of sglang's stamp of whole seconds
_WHOLE_SECONDS = re.compile(rb"\[(\d{4}-\d\d-\d\d \d\d:\d\d):(\d\d)[\] ]")
UNTIMED = float("-inf")
_NEVER = float("inf")


class RoomScanTask(NamedTuple):
    """One part and all that is known about it. Can be sent to another process.

    bounds: bytes to read. rows: those its speaker writes; role: "" if unknown. anchors: words other than `room` that
    precede a room in it. undated, timed: see Clock. since, until: epoch seconds; lines outside do not count. spill:
    path of a new file.
    """

    part: LogPart
    bounds: tuple[int, int]
    speaker: Speaker | None
    role: str
    rows: tuple[Row, ...]
    anchors: tuple[bytes, ...]
    zone: dt.tzinfo | None
    undated: float
    timed: bool
    since: float
    until: float
    spill: str


class RoomScanResult(NamedTuple):
    """kinds: row ids by bit. segments: (bucket, offset, size) of records in the spill file. notes: what went wrong."""

    kinds: tuple[str, ...]
    segments: tuple[tuple[int, int, int], ...]
    notes: tuple[str, ...]


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Turn the garbage collector off: it would scan many thousands of records again and again, none in a cycle."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def scan_rooms(task: RoomScanTask, progress: Callable[[int], None] | None = None) -> RoomScanResult:
    with Path(task.spill).open("wb") as spill, uncollected():
        running = _RoomScan(task, spill)
        for size in running.run():
            if progress:
                progress(size)
        return running.finish()


class _RoomScan:
    def __init__(self, task: RoomScanTask, spill: BinaryIO) -> None:
        self._task = task
        self._speech = Speech(task.rows)
        self._patterns = [(b"room", re.compile(_ROOM + _NUMBER))]
        self._patterns += [(each, re.compile(re.escape(each) + _NUMBER)) for each in task.anchors]
        self._sure = self._contexts()
        self._alike = {key: rows for key, ids in self._sure.items() if (rows := self._rows_alike(ids))}
        self._bytes_patterns: dict[str, re.Pattern[bytes]] = {}
        self._bits: dict[str, int] = {}
        self._memo: dict[bytes, int] = {}
        self._clock = Clock(task.zone, lambda: task.undated, timed=task.timed)
        self._limited = task.since > float("-inf") or task.until < float("inf")
        self._times: dict[bytes, float] = {}
        self._minutes: dict[bytes, float] = {}  # epoch seconds at which each began
        self._rooms: dict[bytes, list[Any]] = {}  # first, last, lines, kinds
        self._spill = spill
        self._buckets = [bytearray() for _ in range(BUCKETS)]
        self._segments: list[tuple[int, int, int]] = []
        self._notes: list[str] = []

    def run(self) -> Iterator[int]:
        """Scan; yield the bytes read in each step."""
        start, end = self._task.bounds
        buffer = Buffer(SIZE)
        stream = open_part(self._task.part, start, self._notes.append, end)
        try:
            for block in blocks(stream, buffer, start):
                for literal, pattern in self._patterns:
                    if buffer.find(literal, block.start, block.end) >= 0:
                        self._mentions(pattern, bytes(buffer.view[block.start : block.end]))
                if len(self._rooms) >= _HELD:
                    self._write_out()
                yield block.end - block.start
        finally:
            stream.close()

    def finish(self) -> RoomScanResult:
        self._write_out()
        for bucket in range(BUCKETS):
            self._flush(bucket)
        return RoomScanResult(tuple(self._bits), tuple(self._segments), tuple(self._notes))

    def _mentions(self, pattern: re.Pattern[bytes], text: bytes) -> None:
        """The hot loop, under a microsecond per announced number: on its fast path it calls no Python function."""
        memo, seen, rfind, times = self._memo.get, self._rooms.get, text.rfind, self._times.get
        rooms, limited, alike = self._rooms, self._limited, self._alike
        stamp, t = b"", 0.0
        done = -1  # the last line that was read in full
        for match in pattern.finditer(text):
            first, last = match.span(1)
            key = text[first - _BEFORE : first] + text[last : last + _BEHIND]
            kind = memo(key)
            line = rfind(b"\n", 0, first) + 1
            if kind is None and key in alike and line != done and not limited:
                kind = self._kind_of_alike(alike[key], text, line, first)
                if kind is not None:
                    done = line  # what it says further on of its room, or of others, is not about this kind
            if kind is None or limited:
                if line != done:
                    done = line
                    self._read(text, line, key)
                continue
            head = text[line : line + _STAMPED]
            if head != stamp:
                stamp = head
                found = times(head)
                if found is None:
                    found = self._time(text, line, head)
                    stamp = b""
                t = found
            room = text[first:last]
            record = seen(room)
            if record is None:
                rooms[room] = [t, t, 1, kind]
                continue
            if t > record[1]:
                record[1] = t
            elif t < record[0]:
                record[0] = t
            record[2] += 1
            record[3] |= kind

    def _kind_of_alike(self, rows: Sequence[Row], text: bytes, line: int, room: int) -> int | None:
        """The kind of a line that begins with the words of these rows, by the first that fits; None if none does."""
        start = text.rfind(rows[0].literal, line, room)
        end = text.find(b"\n", room)
        for row in rows if start >= 0 else ():
            if self._compiled(row).match(text, start, end if end >= 0 else len(text)):
                return 1 << self._bits.setdefault(row.id, min(len(self._bits), KINDS))
        return None

    def _compiled(self, row: Row) -> re.Pattern[bytes]:
        if row.id not in self._bytes_patterns:
            self._bytes_patterns[row.id] = re.compile(row.pattern.encode())
        return self._bytes_patterns[row.id]

    def _note(self, room: bytes, t: float, kind: int) -> None:
        if t != UNTIMED and not self._task.since <= t <= self._task.until:
            return
        record = self._rooms.setdefault(room, [t, t, 0, 0])
        record[0], record[1] = min(record[0], t), max(record[1], t)
        record[2] += 1
        record[3] |= kind

    def _read(self, text: bytes, line: int, key: bytes) -> None:
        """Read one line in full; its kind is cached under `key` if no other kind of line has the same key."""
        behind = text.find(b"\n", line)
        whole = text[line : behind if behind >= 0 else len(text)]
        said = self._speech.match(whole)
        if said is None:
            return
        rooms = (said.values.get("room", ""), *map(str, numerals.wholes(said.values.get("rooms", ""))))
        instant = self._clock.read(said.prefix.stamp) if said.prefix.stamp else None
        kind = 1 << self._bits.setdefault(said.row.id, min(len(self._bits), KINDS))
        for room in dict.fromkeys(rooms):
            if room:
                self._note(room.encode(), instant.t if instant else UNTIMED, kind)
        if self._sure.get(key) == {said.row.id}:
            self._memo[key] = kind

    def _time(self, text: bytes, line: int, head: bytes) -> float:
        """The line's time, cached only if `head` is a complete stamp; one stamp of each minute is parsed in full."""
        whole = _WHOLE_SECONDS.fullmatch(head)
        minute = self._minutes.get(whole[1]) if whole is not None else None
        if whole is None or minute is None:
            behind = text.find(b"\n", line)
            stamp = split(text[line : behind if behind >= 0 else len(text)]).stamp
            instant = self._clock.read(stamp) if stamp else None
            t = instant.t if instant else UNTIMED
            if whole is None or instant is None:
                return t
            minute = self._minutes[whole[1]] = t - int(whole[2])
        t = minute + int(whole[2])
        if len(self._times) > _HELD:
            self._times.clear()
        self._times[head] = t
        return t

    def _contexts(self) -> dict[bytes, set[str]]:
        """Row ids by the bytes around the room in their examples; several if only the rest of a line tells."""
        found: dict[bytes, set[str]] = {}
        alike: dict[bytes, set[str]] = {}  # by shared literal: a request that finished, or was cut short
        written = [row for row in self._task.rows if not self._task.role or row.role in ("", self._task.role)]
        for row in written:
            alike.setdefault(row.literal, set()).add(row.id)
        for row in written:
            if "(?P<room" not in row.pattern:
                continue
            text = row.example.encode()
            said = self._speech.match(text)
            for _, pattern in self._patterns if said else ():
                for match in pattern.finditer(text):
                    first, last = match.span(1)
                    key = text[first - _BEFORE : first] + text[last : last + _BEHIND]
                    found.setdefault(key, set()).update(alike[said.row.literal] if said else {""})
        return found

    def _rows_alike(self, ids: Set[str]) -> list[Row]:
        """Several rows that begin with the same words, in the order in which they are tried; else none."""
        rows = [row for row in self._task.rows if row.id in ids]
        words = {row.literal for row in rows}
        first = [row.pattern.replace("\\", "").startswith(row.literal.decode()) for row in rows]  # escapes aside
        return rows if len(words) == 1 and len(rows) == len(ids) > 1 and all(first) else []

    def _write_out(self) -> None:
        buckets, pack = self._buckets, RECORD.pack
        for text, (first, last, lines, kinds) in self._rooms.items():
            room = numerals.whole(text.decode())
            if room is not None:
                buckets[room % BUCKETS] += pack(room, first if first != UNTIMED else _NEVER, last, kinds, lines)
        self._rooms.clear()
        for bucket in range(BUCKETS):
            if len(buckets[bucket]) > _FLUSHED:
                self._flush(bucket)

    def _flush(self, bucket: int) -> None:
        data = self._buckets[bucket]
        if data:
            self._segments.append((bucket, self._spill.tell(), len(data)))
            self._spill.write(data)
            self._buckets[bucket] = bytearray()
