"""Split a merged stream: each source's lines go to an unnamed file of their own, with their numbers in the original.

Memory is bounded: lines are written out as they are read. Bytes beyond LIMIT are not read, and a note says so.
"""

from __future__ import annotations

import errno
import os
import sys
from array import array
from typing import TYPE_CHECKING

from pdctl import user_files
from pdctl.errors import NotProbedError
from pdctl.logs import collector_format
from pdctl.logs.part import Compression, LogPart, Spool, modified, open_part
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Iterable, Iterator

    from pdctl.engines.identify import Identity
    from pdctl.logs.collector_format import CollectorLine

LIMIT = 1 << 32  # bytes of a merged stream that are split (decompressed)
SOURCES = 256  # sources of one stream; lines of further ones are left out, and a note says so
LONGEST = 1 << 20  # bytes of a line that are kept
UNNAMED = "unnamed"  # the name of the source of lines without one
_CHUNK = 1 << 20
_HELD = 1 << 18  # bytes of a source's lines held in memory


class StreamSource(NamedTuple):
    """One source of a stream. name: unique in it. mixed: holds lines of several processes that cannot be told apart."""

    name: str
    part: LogPart
    mixed: bool = False


def first_bytes(part: LogPart) -> bytes:
    """The first bytes of a part, decompressed."""
    stream = open_part(part)
    data = bytearray(collector_format.SAMPLE)
    view, got = memoryview(data), 0
    try:
        while got < len(data) and (more := stream.readinto(view[got:])):
            got += more
    finally:
        stream.close()
    return bytes(data[:got])


def lines_of(
    part: LogPart, limit: int = LIMIT, note: Callable[[str], None] | None = None
) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of each line, without its newline, cut to LONGEST bytes."""
    stream = open_part(part, 0, note)
    data = bytearray(_CHUNK)
    rest, number, read = b"", 1, 0
    try:
        while read < limit and (got := stream.readinto(memoryview(data))):
            read += got
            *whole, rest = (rest + data[:got]).split(b"\n")
            for line in whole:
                yield number, line[:LONGEST]
                number += 1
            if len(rest) > LONGEST + _CHUNK:
                rest = rest[: LONGEST + 1]
    finally:
        stream.close()
    if rest:
        yield number, rest[:LONGEST]
    if read >= limit and note is not None:
        note(f"{part.path}: a merged stream; its first {limit >> 20} MiB were read")


class SourceLines:
    """Collects the lines of one source and writes them to its file."""

    def __init__(self) -> None:
        self._text, self._numbers = _file(), _file()
        self._held = bytearray()
        self._kept = array("Q")

    def add(self, number: int, text: bytes) -> None:
        lines = text.count(b"\n") + 1
        self._held += text
        self._held += b"\n"
        self._kept.append(number)
        if lines > 1:
            self._kept.extend([number] * (lines - 1))
        if len(self._held) >= _HELD:
            self.flush()

    def flush(self) -> None:
        try:
            _write(self._text, self._held)
            _write(self._numbers, self._kept.tobytes())
        except OSError as error:
            raise _unwritten(error) from None
        self._held.clear()
        del self._kept[:]

    def first_bytes(self) -> bytes:
        self.flush()
        return os.pread(self._text.fileno(), collector_format.SAMPLE, 0)

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Number in the stream and bytes of each line."""
        self.flush()
        handles = (os.dup(self._text.fileno()), os.dup(self._numbers.fileno()))
        with os.fdopen(handles[0], "rb") as text, os.fdopen(handles[1], "rb") as numbers:
            text.seek(0)
            numbers.seek(0)
            for line in text:
                yield int.from_bytes(numbers.read(8), sys.byteorder), line.rstrip(b"\n")

    def turn(self) -> None:
        """Reverse the lines: Loki and cloud consoles print the newest first."""
        self.flush()
        text, numbers = self._text, self._numbers
        if not os.fstat(text.fileno()).st_size:
            return
        self._text, self._numbers = _file(), _file()
        with _mapped(text) as data, _mapped(numbers) as known:
            end, at = len(data) - 1, len(known) - 8
            while end >= 0:
                begin = data.rfind(b"\n", 0, end) + 1
                self._held += data[begin : end + 1]
                self._kept.frombytes(known[at : at + 8])
                if len(self._held) >= _HELD:
                    self.flush()
                end, at = begin - 1, at - 8
        self.flush()

    def part(self, name: str, origin: LogPart) -> LogPart:
        self.flush()
        state = os.fstat(self._text.fileno())
        when = modified(origin)
        os.utime(self._text.fileno(), (when, when))
        stream = origin.origin or origin.path
        return LogPart(
            f"{stream}[{name}]",
            Compression.PLAIN,
            state.st_size,
            state.st_dev,
            state.st_ino,
            self._text,
            self._numbers,
            stream,
        )


def _file() -> Spool:
    import tempfile  # late, as mmap and heapq below: most logs are not merged streams

    where = user_files.temporary_directory()
    try:
        with tempfile.TemporaryFile(prefix="pdctl-", buffering=0, dir=where) as file:
            return Spool(os.dup(file.fileno()))
    except OSError as error:
        raise _unwritten(error) from None


def _unwritten(error: OSError) -> NotProbedError:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        said = "each source of a merged stream takes two open files, and no more may be opened"
        return NotProbedError(said, "raise the limit (ulimit -n 4096), or give fewer sources at once")
    return NotProbedError(
        f"a merged stream cannot be taken apart in {user_files.temporary_directory()}: {error.strerror}",
        "free some space there, or set TMPDIR to a directory with as much room as the stream is long",
    )


def _mapped(spool: Spool) -> mmap.mmap:
    import mmap

    return mmap.mmap(spool.fileno(), 0, access=mmap.ACCESS_READ)


def _write(spool: Spool, data: bytes | bytearray) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(spool.fileno(), view) :]


class _Strand:
    """The lines of one process of a source. mixed: the lines of several, which cannot be told apart."""

    def __init__(self, group: str, part: str, pid: str) -> None:
        self.group, self.part, self.pid = group, part, pid
        self.sink = SourceLines()
        self.mixed = False


def split_by_name(
    part: LogPart, form: collector_format.CollectorFormat, note: Callable[[str], None]
) -> tuple[StreamSource, ...]:
    """The sources of a stream whose lines carry their names. A line without one belongs to the source above it."""
    strands: dict[tuple[str, str, str], _Strand] = {}
    last: _Strand | None = None
    left, backwards, forwards, before = 0, 0, 0, ""
    for number, line in lines_of(part, LIMIT, note):
        framed = form.read(line)
        if framed is None:
            if last is not None and line.strip():
                last.sink.add(number, line)
            continue
        if framed.stamp and framed.stamp != before:
            backwards += framed.stamp < before
            forwards += bool(before) and framed.stamp > before
            before = framed.stamp
        found = _strand(strands, framed)
        if found is None:
            left += 1
            continue
        found.sink.add(number, framed.text)
        last = found
    if left:
        note(f"{part.path}: more than {SOURCES} sources; {left} lines of the others were left out")
    if backwards > forwards:
        for strand in strands.values():
            strand.sink.turn()
    return tuple(_named(_united(list(strands.values())), part))


def _united(strands: list[_Strand]) -> list[_Strand]:
    """Merge processes of one unit into one source, as far as their lines show that they belong to one instance.

    An engine has several processes that log through one unit; two units may share a name such as python3.
    """
    units: dict[tuple[str, str], list[_Strand]] = {}
    for each in strands:
        units.setdefault((each.group, each.part), []).append(each)
    found: list[_Strand] = []
    for unit in units.values():
        found += _of_one_unit(unit) if len(unit) > 1 else unit
    return found


def _of_one_unit(unit: list[_Strand]) -> list[_Strand]:
    """One source if all of them belong to one instance, restarts included; else each process joins its server's source.

    If a process whose lines are known could belong to several servers, all become one `mixed` source.
    """
    from pdctl.engines.identify import identify  # late: only journals need it
    from pdctl.engines.row_matching import speech

    known = [identify(each.sink.first_bytes().split(b"\n"), speech()) for each in unit]
    servers: dict[tuple[str, int | None], list[_Strand]] = {}
    others: list[tuple[_Strand, Identity]] = []
    for each, identity in zip(unit, known, strict=True):
        if identity.facts or identity.port is not None:
            servers.setdefault((identity.role, identity.port), []).append(each)
        else:
            others.append((each, identity))
    roles = {identity.role for identity in known if identity.role}
    if len(servers) <= 1 and len(roles) <= 1:
        return [_merged(unit)]
    silent: list[_Strand] = []
    for each, identity in others:
        homes = [key for key in servers if key[0] == identity.role]
        if identity.speaker is None:
            silent.append(each)
        elif identity.role and len(homes) == 1:
            servers[homes[0]].append(each)
        else:
            whole = _merged(unit)
            whole.mixed = True
            return [whole]
    return [*map(_merged, servers.values()), *silent]


def _merged(strands: list[_Strand]) -> _Strand:
    """One strand with all their lines, in the stream's order."""
    if len(strands) == 1:
        return strands[0]
    first = strands[0]
    whole = _Strand(first.group, first.part, first.pid)
    import heapq

    for number, line in heapq.merge(*(each.sink.lines() for each in strands), key=lambda pair: pair[0]):
        whole.sink.add(number, line)
    return whole


def _strand(strands: dict[tuple[str, str, str], _Strand], framed: CollectorLine) -> _Strand | None:
    key = (framed.group, framed.part, framed.pid)
    found = strands.get(key)
    if found is None and len(strands) < SOURCES:
        found = strands[key] = _Strand(*key)
    return found


def _named(strands: Iterable[_Strand], origin: LogPart) -> Iterator[StreamSource]:
    """Name pods by their name, with the container if a pod has several; units likewise, with the host."""
    known = list(strands)
    parts: dict[str, set[str]] = {}
    pids: dict[tuple[str, str], set[str]] = {}
    for each in known:
        parts.setdefault(each.group, set()).add(each.part)
        pids.setdefault((each.group, each.part), set()).add(each.pid)
    for each in known:
        name = each.group or UNNAMED
        if len(parts[each.group]) > 1 and each.part:
            name = f"{name}:{each.part}"
        if len(pids[each.group, each.part]) > 1 and each.pid:
            name = f"{name}[{each.pid}]"
        yield StreamSource(name.replace("/", "."), each.sink.part(name, origin), each.mixed)
