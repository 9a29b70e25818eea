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

from pdctl.engine.transfer.base import TransferError
from pdctl.engine.transfer.segment import Handle, Segment, create_segment, map_segment
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


@contextlib.contextmanager
def owner(kind: str) -> Iterator[tuple[subprocess.Popen[bytes], Handle]]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        line = process.stdout.readline().decode()
        yield process, msgspec.msgpack.decode(bytes.fromhex(line), type=Handle)
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
        mapping = map_segment("far", handle)
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
handle = msgspec.msgpack.decode(bytes.fromhex(sys.argv[1]), type=segment.Handle)
mapping = segment.map_segment("near", handle)
mapping.view[0] = 42
mapping.close()
"""
    with owner(kind) as (_, handle):
        packed = msgspec.msgpack.encode(handle).hex()
        for _ in range(2):
            done = subprocess.run([sys.executable, "-c", visit, packed], capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (0, "")
        mapping = map_segment("far", handle)
        assert mapping.view[0] == 42
        mapping.close()


def test_memory_is_zeroed_page_aligned_and_its_own() -> None:
    segment: Segment = create_segment(100_000)
    array = np.frombuffer(segment.view, dtype=np.uint8)
    assert array.nbytes == 100_000
    assert not array.any()
    assert array.ctypes.data % 4096 == 0
    del array
    segment.close()


@pytest.mark.parametrize(
    "handle",
    [
        Handle("/proc/999999999/fd/3", 4096, 999999999, 17),
        Handle(f"/proc/{os.getpid()}/fd/0", 4096, os.getpid(), 1),
        Handle("pdctl-not-there", 4096, os.getpid()),
    ],
)
def test_memory_that_cannot_be_mapped_says_whose_and_why(handle: Handle) -> None:
    with pytest.raises(TransferError, match=r"cannot map the pool of peer far .*one host, in one PID namespace"):
        map_segment("far", handle)
