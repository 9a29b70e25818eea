"""One file of a log on disk: its compression, and its decompressed bytes."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import time
import zlib
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pdctl.errors import MissingExtraError, UsageError
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    Note = Callable[[str], None]

SNIFF = 4096  # bytes examined to detect the compression of a file
_READ = 1 << 17  # bytes of a compressed file per read
SWOLLEN = 64 << 20  # decompressed bytes above which RATIO applies
LINELESS = 64 << 20  # bytes without a line after which a file is not a log; a truncated log may begin with zeros
RATIO = 100  # logs compress to a tenth, those that repeat one line to a fiftieth
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


class Compression(str, Enum):
    PLAIN = "plain"
    GZIP = "gzip"
    ZSTD = "zstd"


class Spool:
    """An unnamed file that holds what came from a stream; deleted with the last part that refers to it."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __del__(self) -> None:
        os.close(self._handle)

    def fileno(self) -> int:
        return self._handle


class LogPart(NamedTuple):
    """size: bytes on disk when the log was opened; a plain part is read up to there, however much it grows later.

    device, inode: identify the file, wherever a rotation moves it. spool: what came from stdin or a pipe, or one
    source's lines of a merged stream, else None. For such a source, `numbers` has each line's number in the stream
    (unsigned 64 bit, native order), and `origin` is the stream's own path; for a run's log it is the path within the
    run's home, which answers show.
    """

    path: str
    form: Compression
    size: int
    device: int
    inode: int
    spool: Spool | None = None
    numbers: Spool | None = None
    origin: str = ""

    @property
    def plain(self) -> bool:
        return self.form is Compression.PLAIN


class Stream(Protocol):
    """Decompressed bytes in order. readinto returns 0 at the end."""

    def readinto(self, target: memoryview, /) -> int: ...

    def close(self) -> None: ...


def examine(path: str, spool: Spool | None = None) -> LogPart:
    """The part at `path`, its compression detected from its first bytes.

    Raise OSError if it cannot be read, UsageError for UTF-16, MissingExtraError for zstd without its package.
    """
    handle = os.open(path, os.O_RDONLY) if spool is None else spool.fileno()
    try:
        state = os.fstat(handle)
        head = os.pread(handle, SNIFF, 0)
    finally:
        if spool is None:
            os.close(handle)
    if head.startswith(_UTF16) or _wide(head):
        raise UsageError(f"{path} is UTF-16, not UTF-8", f"iconv -f UTF-16 -t UTF-8 {path} > {path}.utf8.log")
    form = (
        Compression.GZIP
        if head.startswith(_GZIP)
        else Compression.ZSTD
        if head.startswith(_ZSTD)
        else Compression.PLAIN
    )
    if form is Compression.ZSTD:
        _zstandard(path)
    return LogPart(path, form, state.st_size, state.st_dev, state.st_ino, spool)


def _wide(head: bytes) -> bool:
    """Whether it is UTF-16 without a byte order mark: every second byte of plain ASCII is zero."""
    pairs = head[: len(head) // 2 * 2]
    zeros = max(pairs[::2].count(0), pairs[1::2].count(0))
    others = min(pairs[::2].count(0), pairs[1::2].count(0))
    return len(pairs) >= 16 and zeros >= len(pairs) * 0.45 and others == 0


def open_part(part: LogPart, start: int = 0, note: Note | None = None, end: int | None = None) -> Stream:
    """Read from decompressed byte `start`; `end` bounds a plain part. A broken part ends early and is noted."""
    say = note or _silent
    try:
        handle = _handle(part)
    except OSError as error:
        say(f"{part.path} cannot be read any more: {error.strerror}")
        return _Nothing()
    if part.form is Compression.GZIP:
        return _skip(_Gzip(handle, part, say), start)
    if part.form is Compression.ZSTD:
        return _skip(_Zstd(handle, part, say), start)
    return _Plain(handle, start, part.size if end is None else min(end, part.size))


def lineless(part: LogPart) -> str:
    """Why the part is not a log: nothing was ever written to it, or no line ends in its first 64 MiB. "" if it is one.

    A file that was truncated while its process went on writing begins with a hole, which is skipped.
    """
    start = _written(part) if part.plain and part.spool is None else 0
    if part.size and start >= part.size:
        return f"{part.path} is no log: nothing was ever written to its {part.size} bytes"
    stream = open_part(part, start)
    scrap = bytearray(_READ)
    seen = 0
    try:
        while seen < LINELESS:
            got = stream.readinto(memoryview(scrap))
            if not got or scrap.find(b"\n", 0, got) >= 0:
                return ""
            seen += got
    finally:
        stream.close()
    return f"{part.path} is no log: no line ends in its first {LINELESS >> 20} MiB"


def _written(part: LogPart) -> int:
    """Offset of the first byte of a plain part ever written; its size if none was; 0 if the system cannot tell."""
    try:
        handle = _handle(part)
    except OSError:
        return 0
    try:
        return os.lseek(handle, 0, os.SEEK_DATA)
    except OSError as error:
        return part.size if error.errno == errno.ENXIO else 0
    finally:
        os.close(handle)


def modified(part: LogPart) -> float:
    """Epoch seconds at which the file was last written to; now if it is gone."""
    try:
        return os.fstat(part.spool.fileno()).st_mtime if part.spool else Path(part.path).stat().st_mtime
    except OSError:
        return time.time()


def _silent(text: str) -> None:
    """Discard the note."""


def _handle(part: LogPart) -> int:
    """An open descriptor of the examined file, even if it was rotated to another name since; else FileNotFoundError."""
    if part.spool is not None:
        return os.dup(part.spool.fileno())
    for path in _names(part.path):
        try:
            handle = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        state = os.fstat(handle)
        if (state.st_dev, state.st_ino) == (part.device, part.inode):
            return handle
        os.close(handle)
    raise FileNotFoundError(2, "it was rotated away or removed", part.path)


def _names(path: str) -> Iterator[str]:
    """The path itself, which nearly always fits; then names that a rotation may have given the file."""
    yield path
    file = Path(path)
    with contextlib.suppress(OSError):
        yield from sorted(str(beside) for beside in file.parent.iterdir() if beside.name.startswith(file.stem))


class _Nothing:
    def readinto(self, target: memoryview, /) -> int:
        return 0

    def close(self) -> None:
        """Nothing is open."""


class _Plain:
    """Reads with pread only: several readers share one spool without moving each other's position."""

    def __init__(self, handle: int, start: int, end: int) -> None:
        self._handle, self._at, self._end = handle, start, end

    def readinto(self, target: memoryview, /) -> int:
        room = min(len(target), self._end - self._at)
        if room <= 0:
            return 0
        got = os.preadv(self._handle, [target[:room]], self._at)
        self._at += got
        return got

    def close(self) -> None:
        os.close(self._handle)


class _Compressed:
    """Bytes of the compressed file in order, never beyond the size it had when it was examined."""

    def __init__(self, handle: int, part: LogPart, note: Note) -> None:
        self._source = _Plain(handle, 0, part.size)
        self._part, self._note = part, note
        self._buffer = bytearray(_READ)
        self._given = 0

    def _more(self) -> bytes:
        got = self._source.readinto(memoryview(self._buffer))
        return bytes(self._buffer[:got])

    def _swells(self, more: int) -> bool:
        """Whether it expands as no log does; if so, note it once, and the caller stops reading."""
        grown = self._given + more
        if grown <= SWOLLEN or grown <= self._part.size * RATIO:
            return False
        self._broken(f"a bomb, or no log (more than {RATIO} times its size)")
        return True

    def _broken(self, why: str) -> None:
        self._note(f"{self._part.path} is {why}: its first {self._given} bytes (decompressed) were read")

    def close(self) -> None:
        self._source.close()


class _Gzip(_Compressed):
    """Any number of members; zero bytes between and after them are padding."""

    def __init__(self, handle: int, part: LogPart, note: Note) -> None:
        super().__init__(handle, part, note)
        self._inflate = zlib.decompressobj(31)
        self._ended = False

    def readinto(self, target: memoryview, /) -> int:
        while not self._ended:
            try:
                data = self._step(len(target))
            except zlib.error:
                self._ended = True
                self._broken("damaged")
                break
            if data and self._swells(len(data)):
                self._ended = True
                break
            if data:
                target[: len(data)] = data
                self._given += len(data)
                return len(data)
        return 0

    def _step(self, room: int) -> bytes:
        """The next decompressed bytes; may be empty between two members and at the end."""
        if self._inflate.eof:
            rest = self._inflate.unused_data.lstrip(b"\0") or self._more().lstrip(b"\0")
            self._ended = not rest
            self._inflate = zlib.decompressobj(31)
            return self._inflate.decompress(rest, room) if rest else b""
        pending = self._inflate.unconsumed_tail or self._more()
        data = self._inflate.decompress(pending, room)
        if not pending and not data and not self._inflate.eof:
            self._ended = True
            self._broken("cut off")
        return data


class _Zstd(_Compressed):
    def __init__(self, handle: int, part: LogPart, note: Note) -> None:
        super().__init__(handle, part, note)
        zstandard = _zstandard(part.path)
        self._error: type[Exception] = zstandard.ZstdError
        self._ended = False
        self._expected = _promised(zstandard, os.pread(handle, 64, 0))
        self._reader = zstandard.ZstdDecompressor().stream_reader(self, read_across_frames=True)

    def read(self, size: int = -1) -> bytes:
        """The compressed bytes, for zstandard to read."""
        return self._more()

    def readinto(self, target: memoryview, /) -> int:
        try:
            got: int = self._reader.readinto(target)
        except self._error:
            self._broken("damaged")
            return 0
        if self._ended or (got and self._swells(got)):
            self._ended = True
            return 0
        self._given += got
        if not got and self._given < self._expected:
            self._broken("cut off")
        return got


def _promised(zstandard: ModuleType, head: bytes) -> int:
    """Number of bytes the first frame says it holds; 0 if it does not say."""
    try:
        size: int = zstandard.frame_content_size(head)
    except zstandard.ZstdError:
        return 0
    return max(size, 0)


def _skip(stream: _Gzip | _Zstd, start: int) -> Stream:
    scrap = memoryview(bytearray(_READ))
    while start > 0:
        got = stream.readinto(scrap[: min(start, _READ)])
        if not got:
            break
        start -= got
    return stream


def _zstandard(path: str) -> ModuleType:
    try:
        return importlib.import_module("zstandard")
    except ImportError:
        raise MissingExtraError(f"{path} is compressed with zstd", "pip install zstandard") from None
