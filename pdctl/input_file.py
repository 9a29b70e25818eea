"""Files that somebody names: read up to a limit, and never waited for without end.

A pipe may stay silent (a FIFO that nobody writes to), a device may never end (/dev/zero). Everything that reads a
user's file reads it here.
"""

from __future__ import annotations

import errno
import os
import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE = 30.0  # seconds without a byte
CHUNK = 1 << 20


def read(path: str | Path, limit: int) -> bytes:
    """At most `limit` + 1 bytes, so that the caller sees when there is more. Raise OSError, also after PATIENCE."""
    data = bytearray()
    for chunk in chunks(path):
        data += chunk
        if len(data) > limit:
            break
    return bytes(data[: limit + 1])


def chunks(path: str | Path) -> Iterator[bytes]:
    """The bytes of a file, pipe or device. Raise OSError."""
    # Without O_NONBLOCK the opening of a FIFO waits for a writer.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        while True:
            if not poll.poll(PATIENCE * 1000):
                raise TimeoutError(errno.ETIMEDOUT, f"nothing was written to it within {PATIENCE:g} s", str(path))
            try:
                data = os.read(handle, CHUNK)
            except BlockingIOError:
                continue
            if not data:
                return
            yield data
    finally:
        os.close(handle)
