"""What is cached about logs between commands: where, whether it is still valid, and answers to earlier searches."""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl import user_files
from pdctl.errors import UsageError
from pdctl.logs.part import open_part
from pdctl.logs.scan import LineHit
from pdctl.quick_definitions import NamedTuple

try:  # where hashlib has it from, which would load OpenSSL too: a quarter of a bare Python
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pdctl.logs.part import LogPart
    from pdctl.logs.scan import SearchTerm

DIGEST_SIZE = 16  # bytes of a digest
_WHOLE = 1 << 17  # bytes up to which the whole file is digested
_SAMPLES, _SAMPLE = 24, 1 << 12
_BACK = 1 << 16  # bytes from the end searched for the last newline, then sixteen times that
MAGIC = b"PDASKED1"
ANSWER = ".asked"  # ending of a file of answers
_PART = struct.Struct("<QQQqQ16s8sI")
_HIT = struct.Struct("<QQI")
_LARGEST = 8 << 20  # bytes of an answer above which searching again is cheaper than caching
MOST_ANSWERS = 64  # files in one directory
MOST_LOGS = 1024  # tables and answers in one directory
MOST_BYTES = 1 << 30  # in one directory; a table is about 1% of its log


def cache_directory(part: LogPart, environ: Mapping[str, str]) -> Path:
    beside = Path(part.path).parent.parent
    if Path(part.path).parent.name == "logs" and (beside / "run.json").is_file():
        return beside / "index"
    cache = environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return user_files.expanded(cache) / "pdctl" / "logs"
    except UsageError:  # no home directory: nothing is cached
        return Path(os.devnull) / "pdctl"


def write_error(folder: Path) -> OSError | None:
    """Why nothing can be written to `folder` now; None if something can."""
    import tempfile  # late: only a failure needs it

    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_SAMPLE))
            file.flush()
    except OSError as error:
        return error
    return None


def read_file(file: Path) -> bytes | None:
    """The file's bytes; None if it cannot be read."""
    try:
        return file.read_bytes()
    except OSError:
        return None


class Fingerprint(NamedTuple):
    """Identifies bytes [0, covered) on disk, when the file was `size` long and last changed at `modified` (ns)."""

    device: int
    inode: int
    size: int
    modified: int
    covered: int
    digest: bytes


def take_fingerprint(part: LogPart, covered: int) -> Fingerprint | None:
    """Fingerprint the first `covered` bytes; None if the file is gone, replaced, or shorter than that by now."""
    handle = _open(part)
    if handle is None:
        return None
    try:
        state = os.fstat(handle)
        digest = _digest(handle, covered) if state.st_size >= covered else None
    finally:
        os.close(handle)
    if digest is None or (state.st_dev, state.st_ino) != (part.device, part.inode):
        return None
    return Fingerprint(part.device, part.inode, state.st_size, state.st_mtime_ns, covered, digest)


def still_matches(old: Fingerprint, part: LogPart) -> bool:
    """Whether the file still begins with the bytes of which `old` was taken.

    A file of the same size must have the same modification time; a longer one must agree in two dozen samples from its
    beginning to `covered`, or in all bytes up to 128 KiB. A log that was truncated and rewritten has other times in it.
    """
    if (old.device, old.inode) != (part.device, part.inode):
        return False
    now = take_fingerprint(part, old.covered)
    if now is None or now.digest != old.digest or now.size < old.size:
        return False
    return now.size > old.size or now.modified == old.modified


def whole_lines(part: LogPart) -> int:
    """Bytes up to and including the last newline, as what follows may still grow. A compressed part counts whole."""
    if not part.plain or not part.size:
        return part.size
    for back in (_BACK, _BACK * 16):
        start = max(0, part.size - back)
        stream = open_part(part, start)
        window = bytearray(part.size - start)
        last = window.rfind(b"\n", 0, stream.readinto(memoryview(window)))
        stream.close()
        if last >= 0:
            return start + last + 1
    return 0


def _open(part: LogPart) -> int | None:
    if part.spool is not None:
        return None
    try:
        return os.open(part.path, os.O_RDONLY)
    except OSError:
        return None


def _digest(handle: int, covered: int) -> bytes | None:
    digest = blake2b(covered.to_bytes(8, "little"), digest_size=DIGEST_SIZE)
    for at, size in _places(covered):
        piece = os.pread(handle, size, at)
        if len(piece) != size:
            return None
        digest.update(piece)
    return digest.digest()


def _places(covered: int) -> list[tuple[int, int]]:
    if covered <= _WHOLE:
        return [(0, covered)]
    last = covered - _SAMPLE
    return [(last * k // (_SAMPLES - 1), _SAMPLE) for k in range(_SAMPLES)]


class CachedAnswer(NamedTuple):
    """The numbered lines of one part that contain any of the terms, and the bytes for which that is known."""

    of: Fingerprint
    terms: bytes
    hits: tuple[LineHit, ...]


def terms_digest(terms: Iterable[SearchTerm]) -> bytes:
    """Eight bytes that identify the search terms."""
    whole = b"\0".join(part for each in terms for part in each)
    return blake2b(whole, digest_size=8).digest()


def answer_file(where: Path, query: str) -> Path:
    return where / f"{blake2b(query.encode(), digest_size=12).hexdigest()}{ANSWER}"


def load_answers(file: Path) -> Mapping[tuple[int, int], CachedAnswer]:
    """Answers by device and inode; empty if there are none or the file is damaged."""
    data = read_file(file)
    if data is None or not data.startswith(MAGIC) or _seal(data[:-16]) != data[-16:]:
        return {}
    found: dict[tuple[int, int], CachedAnswer] = {}
    at, end = len(MAGIC), len(data) - 16
    while at < end:
        *of, terms, count = _PART.unpack_from(data, at)
        at += _PART.size
        hits: list[LineHit] = []
        for _ in range(count):
            offset, line, size = _HIT.unpack_from(data, at)
            at += _HIT.size + size
            hits.append(LineHit(offset, data[at - size : at], line))
        fingerprint = Fingerprint(*of)
        found[fingerprint.device, fingerprint.inode] = CachedAnswer(fingerprint, terms, tuple(hits))
    return found


def save_answers(file: Path, answers: Sequence[CachedAnswer]) -> None:
    """Replace the file's content, if it can be written; if two commands save at once, the later one wins."""
    data = bytearray(MAGIC)
    for answer in answers:
        data += _PART.pack(*answer.of, answer.terms, len(answer.hits))
        for hit in answer.hits:
            data += _HIT.pack(hit.offset, hit.line, len(hit.text))
            data += hit.text
        if len(data) > _LARGEST:
            return
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        user_files.write_whole(file, bytes(data) + _seal(data))
        forget_oldest(file.parent)


def forget_oldest(where: Path) -> None:
    """Keep what was written last: `MOST_ANSWERS` answers, and `MOST_LOGS` tables and answers in `MOST_BYTES`.

    Every request that is asked for once adds answers, and every log that is rotated away leaves its table behind. A
    table goes with its lock; the one written last stays, however large it is.
    """
    with contextlib.suppress(OSError):  # another command forgets at the same time, or the directory cannot be written
        groups: dict[str, list[tuple[os.stat_result, os.DirEntry[str]]]] = {}
        with os.scandir(where) as entries:
            for each in entries:
                with contextlib.suppress(FileNotFoundError):
                    groups.setdefault(each.name.rpartition(".")[0], []).append((each.stat(follow_symlinks=False), each))
        latest = sorted(groups.values(), key=lambda group: max(state.st_mtime_ns for state, _ in group), reverse=True)
        answers, size = 0, 0
        for number, group in enumerate(latest):
            answer = group[0][1].name.endswith(ANSWER)
            answers += answer
            size += sum(state.st_size for state, _ in group)
            if number and (number >= MOST_LOGS or size > MOST_BYTES or (answer and answers > MOST_ANSWERS)):
                for _, each in group:
                    os.unlink(each.path)  # noqa: PTH108


def _seal(data: bytes | bytearray) -> bytes:
    return blake2b(data, digest_size=16).digest()
