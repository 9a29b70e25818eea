"""Shared memory that no death leaves behind, in the Linux form and in the portable one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from pdctl.engine.transfer import segment
from pdctl.engine.transfer.segment import Segment, SegmentHandle, create_segment, map_segment
from pdctl.engine.transfer.transport import TransferError
from tests.engine.transfer.far import wait_for

OWNER = """
import sys, msgspec
from pdctl.engine.transfer import segment
made = getattr(segment, sys.argv[1])(65536)
made.view[:5] = b"hello"
print(msgspec.msgpack.encode(made.handle).hex(), flush=True)
sys.stdin.read()
"""

linux_only = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memfd is Linux's")
KINDS = [pytest.param("MemfdSegment", marks=linux_only), "NamedSegment"]


def mapped(kind: str, handle: SegmentHandle) -> segment.Mapping:
    """As `map_segment` does where this kind is used."""
    found: segment.Mapping = getattr(segment, kind.replace("Segment", "Mapping"))(handle)
    return found


@contextlib.contextmanager
def owner(kind: str) -> Iterator[tuple[subprocess.Popen[bytes], SegmentHandle]]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        line = process.stdout.readline().decode()
        yield process, msgspec.msgpack.decode(bytes.fromhex(line), type=SegmentHandle)
    finally:
        process.kill()
        process.stdin.close()
        process.stdout.close()
        process.wait()


def leftovers() -> set[str]:
    shm = Path("/dev/shm")
    return {entry.name for entry in shm.iterdir() if entry.name.startswith("pdctl-")} if shm.is_dir() else set()


@pytest.mark.parametrize("kind", KINDS)
def test_a_peer_sees_the_owners_bytes_and_its_death(kind: str) -> None:
    before = leftovers()
    with owner(kind) as (process, handle):
        mapping = mapped(kind, handle)
        assert bytes(mapping.view[:5]) == b"hello"
        mapping.view[:5] = b"HELLO"
        assert mapping.alive()
        process.kill()
        process.wait()
        wait_for("notice of the owner's death", lambda: not mapping.alive())
        assert bytes(mapping.view[:5]) == b"HELLO", "memory of a dead owner stays readable until it is let go"
        mapping.close()
    wait_for("an empty /dev/shm", lambda: leftovers() <= before)


@pytest.mark.parametrize("kind", KINDS)
def test_a_peers_exit_does_not_take_the_memory_with_it(kind: str) -> None:
    """Before Python 3.13 whoever opened named memory unlinked it on leaving."""
    visit = """
import sys, msgspec
from pdctl.engine.transfer import segment
handle = msgspec.msgpack.decode(bytes.fromhex(sys.argv[1]), type=segment.SegmentHandle)
mapping = getattr(segment, sys.argv[2])(handle)
mapping.view[0] = 42
mapping.close()
"""
    with owner(kind) as (_, handle):
        packed = msgspec.msgpack.encode(handle).hex()
        for _ in range(2):
            argv = [sys.executable, "-c", visit, packed, kind.replace("Segment", "Mapping")]
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (0, "")
        mapping = mapped(kind, handle)
        assert mapping.view[0] == 42
        mapping.close()


def test_memory_is_zeroed_page_aligned_and_its_own() -> None:
    made: Segment = create_segment(100_000)
    array = np.frombuffer(made.view, dtype=np.uint8)
    assert array.nbytes == 100_000
    assert not array.any()
    assert array.ctypes.data % 4096 == 0
    del array
    made.close()


@pytest.mark.parametrize(
    "handle",
    [
        SegmentHandle("0" * 20, 4096, 999999999, 3, 17),
        SegmentHandle("0" * 20, 4096, os.getpid(), 0, 1),
        SegmentHandle("0" * 20, 4096, os.getpid()),
    ],
)
def test_memory_that_cannot_be_mapped_says_whose_and_why(handle: SegmentHandle) -> None:
    with pytest.raises(TransferError, match=r"cannot map the pool of peer far .*one host, in one PID namespace"):
        map_segment("far", handle)


@linux_only
def test_only_memory_that_a_segment_made_is_mapped(tmp_path: Path) -> None:
    """Each handle leads to something its sender may well open, and that must not be written into."""
    import fcntl

    token = "0123456789abcdef0123"

    def anonymous(name: str, flags: int, seals: int = 0, size: int = 8192, touch: bool = True) -> int:
        fd = os.memfd_create(name, flags)
        os.ftruncate(fd, size)
        if touch:
            os.pwrite(fd, b"x" * size, 0)
        if seals:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        return fd

    file = tmp_path / f"memfd:pdctl-{token} (deleted)"
    file.write_bytes(b"y" * 8192)
    regular = os.open(file, os.O_RDWR)
    shrinkable = anonymous(f"pdctl-{token}", os.MFD_ALLOW_SEALING)
    sparse = anonymous(f"pdctl-{token}", os.MFD_ALLOW_SEALING, fcntl.F_SEAL_SHRINK, touch=False)
    foreign = anonymous("other", os.MFD_ALLOW_SEALING, fcntl.F_SEAL_SHRINK)
    good = anonymous(f"pdctl-{token}", os.MFD_ALLOW_SEALING, fcntl.F_SEAL_SHRINK)
    reader, writer = os.pipe()
    try:
        for fd in (regular, shrinkable, sparse, foreign, reader):
            with pytest.raises(TransferError, match="cannot map the pool"):
                map_segment("far", SegmentHandle(token, 4096, os.getpid(), fd, os.fstat(fd).st_ino))
        with pytest.raises(TransferError, match="another file"):
            map_segment("far", SegmentHandle(token, 4096, os.getpid(), good, 1))
        map_segment("far", SegmentHandle(token, 4096, os.getpid(), good, os.fstat(good).st_ino)).close()
        assert file.read_bytes() == b"y" * 8192
    finally:
        for fd in (regular, shrinkable, sparse, foreign, good, reader, writer):
            os.close(fd)
