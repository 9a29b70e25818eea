"""Memory for KV pools: page-aligned, in huge pages where the kernel gives them, touched before the first transfer."""

from __future__ import annotations

import contextlib
import mmap
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


def anonymous(nbytes: int) -> mmap.mmap:
    return touched(mmap.mmap(-1, max(nbytes, 1)))


def touched(memory: mmap.mmap) -> mmap.mmap:
    """Fault every page in now: the first transfer into untouched memory takes ten times as long as a later one."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # One-call copies between processes pin pages one by one: 2 MiB pages make them a third faster.
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
