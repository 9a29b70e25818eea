"""Questions that were asked before, with their answers: the same room again costs a look at each file, not a scan.

One file for each question and directory. An answer is for the first `covered` bytes of one file, whole lines of it;
what was appended since is scanned as ever, and an answer whose bytes have changed is not believed.

    magic                    8 bytes
    for each part            <QQQqQ16s8sI  device, inode, size, modified (ns), covered, digest, needles, number of hits
      for each hit           <QQI          offset, line, bytes of the text; then the text
    digest of all before     16 bytes
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from pdctl.logs import store
from pdctl.logs.fingerprint import Fingerprint
from pdctl.logs.scan import Hit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from pdctl.logs.needle import Needle

MAGIC = b"PDASKED1"
_PART = struct.Struct("<QQQqQ16s8sI")
_HIT = struct.Struct("<QQI")
_LARGEST = 8 << 20  # bytes of an answer beyond which asking again is cheaper than remembering


class Answer(NamedTuple):
    """The lines of one part that hold any of the needles, numbered, and for which bytes of it that is known."""

    of: Fingerprint
    needles: bytes
    hits: tuple[Hit, ...]


def digest(needles: Iterable[Needle]) -> bytes:
    """Eight bytes that stand for what was searched for."""
    whole = b"\0".join(part for each in needles for part in each)
    return blake2b(whole, digest_size=8).digest()


def file_of(where: Path, question: str) -> Path:
    return where / f"{blake2b(question.encode(), digest_size=12).hexdigest()}.asked"


def load(file: Path) -> Mapping[tuple[int, int], Answer]:
    """By device and inode; empty when nothing was asked, or the file is damaged."""
    data = store.read(file)
    if data is None or not data.startswith(MAGIC) or _seal(data[:-16]) != data[-16:]:
        return {}
    found: dict[tuple[int, int], Answer] = {}
    at, end = len(MAGIC), len(data) - 16
    while at < end:
        *of, needles, count = _PART.unpack_from(data, at)
        at += _PART.size
        hits: list[Hit] = []
        for _ in range(count):
            offset, line, size = _HIT.unpack_from(data, at)
            at += _HIT.size + size
            hits.append(Hit(offset, data[at - size : at], line))
        fingerprint = Fingerprint(*of)
        found[fingerprint.device, fingerprint.inode] = Answer(fingerprint, needles, tuple(hits))
    return found


def save(file: Path, answers: Sequence[Answer]) -> None:
    """In place of what the file held; of two commands that save at once the later one stays."""
    data = bytearray(MAGIC)
    for answer in answers:
        data += _PART.pack(*answer.of, answer.needles, len(answer.hits))
        for hit in answer.hits:
            data += _HIT.pack(hit.offset, hit.line, len(hit.text))
            data += hit.text
        if len(data) > _LARGEST:
            return
    store.replace(file, bytes(data) + _seal(data))


def _seal(data: bytes | bytearray) -> bytes:
    return blake2b(data, digest_size=16).digest()
