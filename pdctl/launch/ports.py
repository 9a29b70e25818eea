"""TCP ports on this machine: is one free, who holds it, and where is a free block to move to."""

from __future__ import annotations

import contextlib
import errno
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.launch import procfs

if TYPE_CHECKING:
    from collections.abc import Iterable

LISTEN = "0A"  # the kernel's TCP_LISTEN in /proc/net/tcp


@dataclass(frozen=True, slots=True)
class Holder:
    """`pid` None: the port is taken, but by a process this user cannot see."""

    pid: int | None
    command: str


def is_free(port: int, host: str = "") -> bool:
    """Whether a server could listen there now; lingering connections of an earlier one do not count."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            return error.errno not in (errno.EADDRINUSE, errno.EACCES)
    return True


def holder(port: int) -> Holder:
    """The process that listens on `port`, as far as /proc shows it."""
    inodes = _listening_inodes(port)
    for entry in procfs.processes() if inodes else ():
        if _owns(entry.pid, inodes):
            return Holder(entry.pid, procfs.command_line(entry.pid))
    return Holder(None, "")


def _listening_inodes(port: int) -> frozenset[str]:
    found: set[str] = set()
    for table in ("net/tcp", "net/tcp6"):
        with contextlib.suppress(OSError):
            lines = (procfs.PROC / table).read_text(encoding="ascii").splitlines()[1:]
            # sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode
            rows = (line.split() for line in lines)
            found.update(row[9] for row in rows if row[3] == LISTEN and int(row[1].rpartition(":")[2], 16) == port)
    return frozenset(found)


def _owns(pid: int, inodes: frozenset[str]) -> bool:
    folder = procfs.PROC / str(pid) / "fd"
    with contextlib.suppress(OSError):  # another user's process, or one that just left
        for link in folder.iterdir():
            with contextlib.suppress(OSError):
                target = str(link.readlink())
                if target.startswith("socket:[") and target[8:-1] in inodes:
                    return True
    return False


def free_base(base: int, taken: Iterable[int], host: str = "", step: int = 100) -> int | None:
    """The nearest base above `base` at which every port of the block (given at the old base) is free."""
    block = tuple(taken)
    for shift in range(step, 65536, step):
        if max(block, default=base) + shift > 65535:
            return None
        if all(is_free(port + shift, host) for port in block):
            return base + shift
    return None
