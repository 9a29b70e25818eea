"""Paths that a user wrote, where pdctl keeps its runs, and files that somebody names: read up to a limit."""

from __future__ import annotations

import errno
import os
import select
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def expanded(path: str) -> Path:
    """`~` and `~USER` resolved. Raise UsageError where that home is unknown: no such user, or a bare uid."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        user = path.partition("/")[0][1:]
        who = f"there is no user `{user}` here" if user else "HOME is not set and this user has no home directory"
        raise UsageError(f"{path}: {who}", "write the whole path, or set HOME or PDCTL_HOME=DIR") from None


def state_directory(environ: Mapping[str, str]) -> Path:
    """$PDCTL_HOME | $XDG_STATE_HOME/pdctl | ~/.local/state/pdctl"""
    if environ.get("PDCTL_HOME"):
        return expanded(environ["PDCTL_HOME"])
    return expanded(environ.get("XDG_STATE_HOME") or "~/.local/state") / "pdctl"


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
