"""Memory for KV pools: anonymous in huge pages, or shared memory that is freed when its owner dies, even by SIGKILL.

Linux: an anonymous file (memfd) that peers open as /proc/<pid>/fd/<n>; nothing stays in /dev/shm. Elsewhere: POSIX
shared memory, which the standard library's resource tracker unlinks even after a SIGKILL of the owner.

A handle comes from a peer, and what it refers to is written into. So it carries no path: a peer builds the name itself,
around a random token that only holders of the handle know, and checks what it has opened before it maps it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import stat
import sys
from typing import TYPE_CHECKING, Annotated, Protocol

import msgspec
import numpy as np
from msgspec import Meta

from pdctl.engine.transfer.transport import TransferError

if TYPE_CHECKING:
    from multiprocessing.shared_memory import SharedMemory

    import numpy.typing as npt

TOKEN = 10  # random bytes; macOS allows 31 characters for a whole name
PREFIX = "pdctl-"


class SegmentHandle(msgspec.Struct, frozen=True):
    """How to find a segment. `fd` and `inode` identify a memfd of process `pid`; -1 and 0 if the token does."""

    token: Annotated[str, Meta(pattern=r"^[0-9a-f]{20}\Z")]
    nbytes: Annotated[int, Meta(ge=1, lt=1 << 62)]
    pid: Annotated[int, Meta(ge=1, lt=1 << 31)]
    fd: Annotated[int, Meta(ge=-1, lt=1 << 31)] = -1
    inode: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0

    @property
    def name(self) -> str:
        return PREFIX + self.token

    @property
    def path(self) -> str:
        """The path under which a peer opens a memfd segment."""
        return f"/proc/{self.pid}/fd/{self.fd}"


class Segment(Protocol):
    """The owner's side."""

    @property
    def view(self) -> memoryview: ...
    @property
    def handle(self) -> SegmentHandle: ...
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


def map_segment(peer: str, handle: SegmentHandle) -> Mapping:
    """Map a peer's segment. Raise TransferError with the likely cause if the memory cannot be opened."""
    try:
        return MemfdMapping(handle) if hasattr(os, "memfd_create") else NamedMapping(handle)
    except (OSError, ValueError) as error:
        raise TransferError(
            f"shm: cannot map the pool of peer {peer} (pid {handle.pid}, {handle.nbytes} bytes): {error}; "
            "both processes must run on one host, in one PID namespace, as one user"
        ) from None


class MemfdSegment:
    def __init__(self, nbytes: int) -> None:
        import fcntl

        token = secrets.token_hex(TOKEN)
        self._fd = os.memfd_create(PREFIX + token, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._fd, nbytes)
        # Memory that shrinks under a peer's mapping kills the peer (SIGBUS): the seal guarantees that it cannot.
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self._memory = touched(mmap.mmap(self._fd, nbytes))
        self.view = memoryview(self._memory)
        self.handle = SegmentHandle(token, nbytes, os.getpid(), self._fd, os.fstat(self._fd).st_ino)

    def close(self) -> None:
        self.view.release()
        close(self._memory)
        os.close(self._fd)


class MemfdMapping:
    def __init__(self, handle: SegmentHandle) -> None:
        self._path, self._inode = handle.path, handle.inode
        self.pid = handle.pid
        fd = _opened(handle)
        try:
            # Fault all of it in while the peers connect: the first write into each page would take five times as long.
            self._memory = mmap.mmap(fd, handle.nbytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        finally:
            os.close(fd)
        self.view = memoryview(self._memory)

    def alive(self) -> bool:
        try:
            return os.stat(self._path).st_ino == self._inode  # noqa: PTH116  # before each write: 10 x
        except OSError:
            return False

    def close(self) -> None:
        _let_go(self.view, self._memory)


def _opened(handle: SegmentHandle) -> int:
    """Return a descriptor of the memfd that `handle` names. Raise OSError, before any write, if it is anything else.

    Opening something other than a memfd may block (a FIFO) or have side effects (a device), so the link is read first.
    The descriptor number may belong to another file by then, so everything is checked again afterwards.
    """
    import fcntl

    expected = f"/memfd:{handle.name} (deleted)"
    if os.readlink(handle.path) != expected:  # noqa: PTH115  # a link to no path
        raise OSError("it is not the memory that the handle names")
    fd = os.open(handle.path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        found = os.fstat(fd)
        if os.readlink(f"/proc/self/fd/{fd}") != expected or found.st_ino != handle.inode:  # noqa: PTH115
            raise OSError("it is another file now")
        if not stat.S_ISREG(found.st_mode) or found.st_nlink or found.st_uid != os.geteuid():
            raise OSError("it is no anonymous memory of this user")
        if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise OSError("its owner could make it shorter")
        # A sparse file of any length costs its owner nothing; mapped and faulted in here, it would use up this host's
        # memory.
        if found.st_size < handle.nbytes or found.st_blocks * 512 < handle.nbytes:
            raise OSError(f"it has {min(found.st_size, found.st_blocks * 512)} bytes")
    except BaseException:
        os.close(fd)
        raise
    return fd


class NamedSegment:
    def __init__(self, nbytes: int) -> None:
        from multiprocessing import shared_memory

        token = secrets.token_hex(TOKEN)
        self._memory = shared_memory.SharedMemory(PREFIX + token, create=True, size=nbytes)
        self.view = _buffer(self._memory, nbytes)
        as_bytes(self.view)[:] = 0
        self.handle = SegmentHandle(token, nbytes, os.getpid())

    def close(self) -> None:
        self._memory.unlink()
        with contextlib.suppress(BufferError):  # a tensor still uses it: it is unmapped when the process ends
            self.view.release()
            self._memory.close()


class NamedMapping:
    def __init__(self, handle: SegmentHandle) -> None:
        from multiprocessing import resource_tracker, shared_memory

        if sys.version_info >= (3, 13):
            self._memory = shared_memory.SharedMemory(handle.name, track=False)
        else:
            self._memory = shared_memory.SharedMemory(handle.name)
            # Before 3.13, every process that opens a segment unlinks it on exit: only its owner may do that.
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
    with contextlib.suppress(BufferError):  # a plan's arrays still use it and unmap it when they are freed
        view.release()
        mapped.close()


def anonymous(nbytes: int) -> mmap.mmap:
    """Return private memory: the kernel gives huge pages to shared mappings only if an administrator has allowed it."""
    return touched(mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def touched(memory: mmap.mmap) -> mmap.mmap:
    """Fault every page in now: the first transfer into untouched memory takes ten times as long as a later one."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # The kernel's copy between processes pins page by page: 2 MiB pages make it twice as fast.
        with contextlib.suppress(OSError):  # a kernel without transparent huge pages returns EINVAL
            memory.madvise(mmap.MADV_HUGEPAGE)
    as_bytes(memory)[:] = 0
    return memory


def as_bytes(memory: mmap.mmap | memoryview) -> npt.NDArray[np.uint8]:
    return np.frombuffer(memory, dtype=np.uint8)


def address(memory: mmap.mmap | memoryview) -> int:
    return int(as_bytes(memory).ctypes.data)


def close(memory: mmap.mmap) -> None:
    """Unmap now, or, if something (a tensor over the pool) still uses it, leave that to the end of the process."""
    with contextlib.suppress(BufferError):
        memory.close()
