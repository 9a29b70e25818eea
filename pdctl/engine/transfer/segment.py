"""A piece of shared memory that its owner's death frees, whatever killed it, and the handle a peer maps it by.

Linux: an anonymous file (memfd) that peers open as /proc/<pid>/fd/<n>; it has no name, so nothing stays in /dev/shm.
Elsewhere: POSIX shared memory, which the standard library's resource tracker unlinks even after a SIGKILL of the owner.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import uuid
from typing import TYPE_CHECKING, Protocol

import msgspec

from pdctl.engine.transfer import memory
from pdctl.engine.transfer.base import TransferError

if TYPE_CHECKING:
    from multiprocessing.shared_memory import SharedMemory


class Handle(msgspec.Struct, frozen=True):
    """How to find a segment. `name` is a path under /proc (`inode` proves that it is still the same) or a shm name."""

    name: str
    nbytes: int
    pid: int
    inode: int = 0


class Segment(Protocol):
    """The owner's side."""

    @property
    def view(self) -> memoryview: ...
    @property
    def handle(self) -> Handle: ...
    def close(self) -> None: ...


class Mapping(Protocol):
    """The peer's side."""

    @property
    def view(self) -> memoryview: ...
    @property
    def pid(self) -> int: ...
    def alive(self) -> bool:
        """Whether the owner still exists and still holds the memory."""
        ...

    def close(self) -> None: ...


def create_segment(nbytes: int) -> Segment:
    return MemfdSegment(nbytes) if hasattr(os, "memfd_create") else NamedSegment(nbytes)


def map_segment(peer: str, handle: Handle) -> Mapping:
    """Raises TransferError with the likely cause when the memory cannot be opened."""
    try:
        return MemfdMapping(handle) if handle.inode else NamedMapping(handle)
    except (OSError, ValueError) as error:
        raise TransferError(
            f"shm: cannot map the pool of peer {peer} ({handle.name}, {handle.nbytes} bytes): {error}; "
            "both processes must run on one host, in one PID namespace, as one user"
        ) from None


class MemfdSegment:
    def __init__(self, nbytes: int) -> None:
        self._fd = os.memfd_create("pdctl-kv", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, nbytes)
        self._memory = memory.touched(mmap.mmap(self._fd, nbytes))
        self.view = memoryview(self._memory)
        pid, inode = os.getpid(), os.fstat(self._fd).st_ino
        self.handle = Handle(f"/proc/{pid}/fd/{self._fd}", nbytes, pid, inode)

    def close(self) -> None:
        self.view.release()
        memory.close(self._memory)
        os.close(self._fd)


class MemfdMapping:
    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self.pid = handle.pid
        fd = os.open(handle.name, os.O_RDWR | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            if found.st_ino != handle.inode or found.st_size < handle.nbytes:
                raise OSError(f"{handle.name} is another file now")
            # Fault all of it in while the peers meet: the first write into each page would take five times as long.
            self._memory = mmap.mmap(fd, handle.nbytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        finally:
            os.close(fd)
        self.view = memoryview(self._memory)

    def alive(self) -> bool:
        try:
            return os.stat(self._handle.name).st_ino == self._handle.inode  # noqa: PTH116  # before each write: 10 x
        except OSError:
            return False

    def close(self) -> None:
        _let_go(self.view, self._memory)


class NamedSegment:
    def __init__(self, nbytes: int) -> None:
        from multiprocessing import shared_memory

        self._memory = shared_memory.SharedMemory(f"pdctl-{uuid.uuid4().hex[:12]}", create=True, size=nbytes)
        self.view = _buffer(self._memory, nbytes)
        memory.as_bytes(self.view)[:] = 0
        self.handle = Handle(self._memory.name, nbytes, os.getpid())

    def close(self) -> None:
        self._memory.unlink()
        with contextlib.suppress(BufferError):  # a tensor still looks at it: the process's end unmaps it
            self.view.release()
            self._memory.close()


class NamedMapping:
    def __init__(self, handle: Handle) -> None:
        from multiprocessing import resource_tracker, shared_memory

        if sys.version_info >= (3, 13):
            self._memory = shared_memory.SharedMemory(handle.name, track=False)
        else:
            self._memory = shared_memory.SharedMemory(handle.name)
            # Before 3.13 whoever opens a segment unlinks it when it leaves: only its owner may.
            resource_tracker.unregister(f"/{handle.name.lstrip('/')}", "shared_memory")
        self.pid = handle.pid
        self.view = _buffer(self._memory, handle.nbytes)

    def alive(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True  # it exists, under another user
        return True

    def close(self) -> None:
        with contextlib.suppress(BufferError):
            self.view.release()
            self._memory.close()


def _buffer(shared: SharedMemory, nbytes: int) -> memoryview:
    if shared.buf is None or shared.size < nbytes:
        raise OSError(f"{shared.name} has {shared.size} bytes, {nbytes} are needed")
    return shared.buf[:nbytes]


def _let_go(view: memoryview, mapped: mmap.mmap) -> None:
    with contextlib.suppress(BufferError):  # a plan's arrays still look at it: they unmap it when they go
        view.release()
        mapped.close()
