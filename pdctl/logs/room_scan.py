"""One pass over a part that finds every room in it: which rows name it, and when it appears first and last.

Most lines about rooms are of a few kinds. The bytes right before and after the number identify the kind, as far as the
dialect's own examples show that they do, if the number stands where the row has its room: a client may call its request
`room=1`. Other lines are read in full.
"""

from __future__ import annotations

import contextlib
import gc
import io
import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from pdctl.engines import numerals
from pdctl.engines.prefix import cut, cut_once, stamp_of
from pdctl.engines.row_matching import Speech, lead
from pdctl.logs import ripgrep
from pdctl.logs.blocks import SIZE, Buffer, blocks
from pdctl.logs.clock import Clock
from pdctl.logs.part import open_part
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterator

    from pdctl.engines.base import Row, Speaker
    from pdctl.engines.prefix import LineParts
    from pdctl.logs.part import LogPart, Stream

RECORD = struct.Struct("<QddQI")  # room, first (inf: untimed), last (-inf: untimed), kinds (one bit each), lines
BUCKETS = 64
_SEPARATORS = b"=\": '[("  # between the word and the number
_ROOM = b"room[" + re.escape(_SEPARATORS) + b"]{1,4}"
_NUMBER = rb"(\d+)"
_DIGITS = len(str(numerals.LARGEST))
_BEFORE, _BEHIND = 7, 8  # bytes around a number that identify the kind of line
_HELD = 20_000  # rooms, and cached minutes, held in memory
_FLUSHED = 1 << 16  # bytes of a bucket above which it is written out
KINDS = 63  # the last bit of a record
LEAST_FOR_RG = 1 << 24  # bytes of a part from which on a process of rg costs less than it saves
_MINUTE, _STAMPED = 17, 21  # bytes of sglang's stamp of whole seconds: up to the minute, and all of it
_SECONDS = {b":%02d%c" % (second, end): second for second in range(61) for end in b"] "}
_DATED = re.compile(rb"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[\] ]")
_STAMP = ord("[")  # with which sglang's stamp begins
UNTIMED = float("-inf")
_NEVER = float("inf")


class RoomScanTask(NamedTuple):
    """One part and all that is known about it. Can be sent to another process.

    bounds: bytes to read. rows: those its speaker writes; role: "" if unknown. anchors: words other than `room` that
    precede a room in it. undated, timed: see Clock. since, until: epoch seconds; lines outside do not count. spill:
    path of a new file; "": keep the records in memory. others: words of lines that are about no room.
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
    others: tuple[bytes, ...]


class RoomScanResult(NamedTuple):
    """kinds: row ids by bit. segments: (bucket, offset, size) of records in the spill file. notes: what went wrong.

    others: those of the task that occur in the bytes read. records: what the spill file would hold, if there is none.
    """

    kinds: tuple[str, ...]
    segments: tuple[tuple[int, int, int], ...]
    others: frozenset[bytes]
    notes: tuple[str, ...] = ()
    records: bytes = b""


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
    found = _scanned_with_rg(task)
    if found is not None:
        if progress:
            progress(task.part.size)
        return found
    notes: list[str] = []
    start, end = task.bounds
    with contextlib.closing(open_part(task.part, start, notes.append, end)) as stream:
        return _scanned(task, stream, progress)._replace(notes=tuple(notes))


def _scanned_with_rg(task: RoomScanTask) -> RoomScanResult | None:
    """None if rg cannot do it, or if its lines turn out not to be those of the part."""
    part = task.part
    if part.size < LEAST_FOR_RG or task.bounds != (0, part.size) or not ripgrep.able([part]):
        return None
    rooms = "|".join([f"room[{_escaped(_SEPARATORS)}]{{1,4}}", *map(_escaped, task.anchors)])
    words = "|".join([f"(?:{rooms})[0-9]", *map(_escaped, task.others)])
    try:
        lines = ripgrep.MatchingLines(part, f"(?-u){words}")
    except OSError:
        return None
    with contextlib.closing(lines):
        lines.limit_memory()
        found = _scanned(task, lines, None)
    return found if lines.complete() else None


def _escaped(text: bytes) -> str:
    """The bytes as a regular expression of rg."""
    return "".join(f"\\x{byte:02x}" for byte in text)


def _scanned(task: RoomScanTask, stream: Stream, progress: Callable[[int], None] | None) -> RoomScanResult:
    with Path(task.spill).open("wb") if task.spill else io.BytesIO() as spill, uncollected():
        running = _RoomScan(task, spill)
        for size in running.run(stream):
            if progress:
                progress(size)
        found = running.finish()
        return found._replace(records=spill.getvalue()) if isinstance(spill, io.BytesIO) else found


class _RoomScan:
    def __init__(self, task: RoomScanTask, spill: BinaryIO) -> None:
        self._task = task
        self._speech = Speech(task.rows)
        self._patterns = [(b"room", re.compile(_ROOM + _NUMBER))]
        self._patterns += [(each, re.compile(re.escape(each) + _NUMBER)) for each in task.anchors]
        role = task.role
        self._written = [row for row in task.rows if not role or row.role in ("", role)]
        self._around = self._contexts()
        self._sure: dict[bytes, str] = {}
        self._bits: dict[str, int] = {}
        self._memo: dict[bytes, int] = {}
        self._widths: dict[bytes, int] = {}  # of the same keys: how many bytes stand between stamp and room
        self._clock = Clock(task.zone, lambda: task.undated, timed=task.timed)
        self._limited = task.since > float("-inf") or task.until < float("inf")
        self._minutes: dict[bytes, float] = {}  # epoch seconds at which each began
        self._rooms: dict[bytes, list[Any]] = {}  # first, last, lines, kinds
        self._spill = spill
        self._buckets = [bytearray() for _ in range(BUCKETS)]
        self._segments: list[tuple[int, int, int]] = []
        self._others: set[bytes] = set()

    def run(self, stream: Stream) -> Iterator[int]:
        """Scan the lines; yield the bytes read in each step."""
        buffer = Buffer(SIZE)
        for block in blocks(stream, buffer, self._task.bounds[0]):
            for literal, pattern in self._patterns:
                if buffer.find(literal, block.start, block.end) >= 0:
                    self._mentions(pattern, bytes(buffer.view[block.start : block.end]))
            for other in self._task.others:
                if other not in self._others and buffer.find(other, block.start, block.end) >= 0:
                    self._others.add(other)
            if len(self._rooms) >= _HELD:
                self._write_out()
            yield block.end - block.start

    def finish(self) -> RoomScanResult:
        self._write_out()
        for bucket in range(BUCKETS):
            self._flush(bucket)
        return RoomScanResult(tuple(self._bits), tuple(self._segments), frozenset(self._others))

    def _mentions(self, pattern: re.Pattern[bytes], text: bytes) -> None:
        """The hot loop, under a microsecond per announced number: on its fast path it calls no Python function."""
        memo, seen, rfind = self._memo.get, self._rooms.get, text.rfind
        rooms, limited, widths, find = self._rooms, self._limited, self._widths, text.find
        minutes = self._minutes
        stamp, t = b"", 0.0
        done = -1  # the last line that was read in full
        for match in pattern.finditer(text):
            first, last = match.span(1)
            key = text[first - _BEFORE : first] + text[last : last + _BEHIND]
            kind = memo(key)
            line = rfind(b"\n", 0, first) + 1
            if kind is not None and (text[line] != _STAMP or find(b"] ", line, first) + 2 + widths[key] != first):
                kind = None
            if kind is None or limited:
                if line != done:
                    done = line
                    self._read(text, line, key)
                continue
            head = text[line : line + _STAMPED]
            if head != stamp:
                t = self._time(text, line, head)
                stamp = head if head[_MINUTE:] in _SECONDS and head[:_MINUTE] in minutes else b""
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

    def _note(self, room: bytes, t: float, kind: int) -> None:
        if t != UNTIMED and not self._task.since <= t <= self._task.until:
            return
        record = self._rooms.setdefault(room, [t, t, 0, 0])
        record[0], record[1] = min(record[0], t), max(record[1], t)
        record[2] += 1
        record[3] |= kind

    def _read(self, text: bytes, line: int, key: bytes) -> None:
        """Read one line in full; its kind is cached under `key` if no other kind of line has the same key."""
        parts = _parts(text, line)
        said = self._speech.find(parts)
        if said is None:
            return
        name, values = said.row.id, said.values
        kind = 1 << self._bits.setdefault(name, min(len(self._bits), KINDS))
        t = self._time(text, line, text[line : line + _STAMPED])
        room = values.get("room")
        if room:
            self._note(room.encode(), t, kind)
        for number in dict.fromkeys(numerals.wholes(values["rooms"])) if "rooms" in values else ():
            if str(number) != room:
                self._note(b"%d" % number, t, kind)
        only = self._sure.get(key)
        if only is None and key in self._around:
            only = self._sure[key] = self._only(key)
        if only == name:
            words = lead(said.row.pattern)
            if said.row.pattern.replace("\\", "").startswith("(?P<room>", len(words)):
                self._memo[key], self._widths[key] = kind, len(words)

    def _time(self, text: bytes, line: int, head: bytes) -> float:
        """The line's time; of stamps in whole seconds, one of each minute is parsed in full."""
        minute, second = self._minutes.get(head[:_MINUTE]), _SECONDS.get(head[_MINUTE:])
        if minute is not None and second is not None:
            return minute + second
        stamp = stamp_of(_parts(text, line))
        instant = self._clock.read(stamp) if stamp else None
        if instant is None:
            return UNTIMED
        if second is not None and _DATED.fullmatch(head):
            if len(self._minutes) >= _HELD:
                self._minutes.clear()
            self._minutes[head[:_MINUTE]] = instant.t - second
        return instant.t

    def _contexts(self) -> dict[bytes, list[Row]]:
        """Rows by the bytes around the room in their examples."""
        found: dict[bytes, list[Row]] = {}
        for row in self._written:
            if "(?P<room" in row.pattern:
                text = row.example.encode()
                for _, pattern in self._patterns:
                    for match in pattern.finditer(text):
                        first, last = match.span(1)
                        found.setdefault(text[first - _BEFORE : first] + text[last : last + _BEHIND], []).append(row)
        return found

    def _only(self, key: bytes) -> str:
        """The id of the only row that writes these bytes around a room; "" if only the rest of a line tells."""
        found: set[str] = set()
        for row in self._around.get(key, ()):
            said = self._speech.find(cut(row.example.encode()))
            if said is not None:  # rows share a literal where a request finished, or was cut short
                found.update(row.id for row in self._written if row.literal == said.row.literal)
        return found.pop() if len(found) == 1 else ""

    def _write_out(self) -> None:
        buckets, pack = self._buckets, RECORD.pack
        for text, (first, last, lines, kinds) in self._rooms.items():  # ASCII digits
            if len(text) <= _DIGITS and (room := int(text)) <= numerals.LARGEST:
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


def _parts(text: bytes, line: int) -> LineParts:
    behind = text.find(b"\n", line)
    return cut_once(text[line : behind if behind >= 0 else len(text)])
