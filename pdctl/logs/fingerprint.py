"""Whether the first bytes of a file are still those that were read: what is remembered about a log hangs on it."""

from __future__ import annotations

import os
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from pdctl.logs.part import open_part

if TYPE_CHECKING:
    from pdctl.logs.part import Part

SIZE = 16  # bytes of a digest
_WHOLE = 1 << 17  # bytes up to which a file is digested whole
_SAMPLES, _SAMPLE = 24, 1 << 12
_BACK = 1 << 16  # bytes from the end in which the last newline is looked for, then sixteen times that


class Fingerprint(NamedTuple):
    """Of bytes [0, covered) on disk, taken when the file was `size` long and last changed at `modified` (ns)."""

    device: int
    inode: int
    size: int
    modified: int
    covered: int
    digest: bytes


def take(part: Part, covered: int) -> Fingerprint | None:
    """None when the file is gone, replaced, or shorter than `covered` by now."""
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


def holds(old: Fingerprint, part: Part) -> bool:
    """Whether the file still begins with the bytes `old` was taken of.

    A file of the same size must not have been touched; a longer one must agree in its beginning, its end (at `covered`)
    and two dozen samples between: all of it up to 128 KiB. A log that was cut off and written anew carries other times.
    """
    if (old.device, old.inode) != (part.device, part.inode):
        return False
    now = take(part, old.covered)
    if now is None or now.digest != old.digest or now.size < old.size:
        return False
    return now.size > old.size or now.modified == old.modified


def whole_lines(part: Part) -> int:
    """Bytes up to the last newline: what stands behind it may go on. A compressed part counts whole."""
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


def _open(part: Part) -> int | None:
    if part.spool is not None:
        return None
    try:
        return os.open(part.path, os.O_RDONLY)
    except OSError:
        return None


def _digest(handle: int, covered: int) -> bytes | None:
    digest = blake2b(covered.to_bytes(8, "little"), digest_size=SIZE)
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
