"""Memory for KV pools: page-aligned, in huge pages where the kernel gives them, touched before the first transfer."""

from __future__ import annotations

import contextlib
import mmap
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


def anonymous(nbytes: int) -> mmap.mmap:
    """Private memory: the kernel gives huge pages to shared mappings only where an administrator allowed it."""
    return touched(mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def touched(memory: mmap.mmap) -> mmap.mmap:
    """Fault every page in now: the first transfer into untouched memory takes ten times as long as a later one."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # The kernel's copy between processes pins page by page: 2 MiB pages make it twice as fast.
        with contextlib.suppress(OSError):  # a kernel without transparent huge pages says EINVAL
            memory.madvise(mmap.MADV_HUGEPAGE)
    as_bytes(memory)[:] = 0
    return memory


def as_bytes(memory: mmap.mmap | memoryview) -> npt.NDArray[np.uint8]:
    return np.frombuffer(memory, dtype=np.uint8)


def address(memory: mmap.mmap | memoryview) -> int:
    return int(as_bytes(memory).ctypes.data)


def close(memory: mmap.mmap) -> None:
    """Unmap, unless somebody (a tensor over the pool) still looks at it: then the process's end unmaps it."""
    with contextlib.suppress(BufferError):
        memory.close()
