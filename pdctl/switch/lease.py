"""One switch at a time: locks that end with the process that holds them.

They hold on this machine, and wherever else the same state directory is; two operators on two machines must speak to
each other.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from pdctl.errors import PdctlError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


@contextmanager
def lease(directory: Path, urls: Iterable[str]) -> Iterator[None]:
    """Hold every router and instance of `urls`. Raises PdctlError naming the process that has one of them."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    with ExitStack() as stack:
        for url in sorted(set(urls)):
            stack.enter_context(_held(directory, url))
        yield


@contextmanager
def _held(directory: Path, url: str) -> Iterator[None]:
    file = directory / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}.lock"
    handle = os.open(file, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(handle, 100).decode(errors="replace").strip()
            raise PdctlError(
                f"another role switch at {url} is under way{f' ({holder})' if holder else ''}",
                "wait until it has ended",
            ) from None
        os.ftruncate(handle, 0)
        os.write(handle, f"pid {os.getpid()}".encode())
        yield
    finally:
        os.close(handle)
