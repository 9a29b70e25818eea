"""TCP ports of this machine: whether a server could listen there now and, if not, who does."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
import sys
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from pdctl.fleet.observations import Holder

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

PROC = Path("/proc")
LISTEN, CLOSE_WAIT, TIME_WAIT = "0A", "08", "06"  # the kernel's states in /proc/net/tcp
TABLES = ("net/tcp", "net/tcp6")
TAKEN = (errno.EADDRINUSE, errno.EACCES)
PRIVILEGED = 1023  # the highest port that needs a privilege
LONGEST = 4096  # bytes kept of a command line
STOPPED = "Tt"  # states in /proc/PID/stat: stopped by SIGSTOP, stopped by a debugger
NOBODY: Mapping[int, str] = MappingProxyType({})


def is_free(port: int, host: str = "") -> bool:
    """Whether a server could listen there now; lingering connections of an earlier one do not count."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            return error.errno not in TAKEN
    return True


def holders(ports: Collection[int], own: Mapping[int, str] = NOBODY) -> Mapping[int, Holder]:
    """The holders of the ports that are not free. `own`: pid → instance, of the run under examination.

    A port below 1024 that only root may bind, and on which nothing listens, has no holder.
    """
    taken = [port for port in ports if not is_free(port)]
    listening = _listeners(frozenset(taken), own) if taken else {}
    return {port: listening.get(port, Holder(None)) for port in taken if port > PRIVILEGED or port in listening}


def holder(port: int) -> Holder:
    """Who listens on `port`; without a pid if /proc does not show the process to this user."""
    return _listeners(frozenset((port,)), NOBODY).get(port, Holder(None))


def listening(ports: Collection[int], own: Mapping[int, str]) -> Mapping[int, Holder]:
    """The holders of those `ports` on which something listens; of several on one port, the one of `own`."""
    return _listeners(frozenset(ports), own)


def connected_use(port: int) -> str:
    """How connections alone keep a server from listening on `port`, in words; empty if something listens, or nothing.

    The kernel refuses the port of an outgoing connection, and for a while after its end, even with SO_REUSEADDR.
    """
    states = {state for where, state, _ in _sockets() if int(where.rpartition(":")[2], 16) == port}
    if not states or LISTEN in states:
        return ""
    if states == {TIME_WAIT}:
        return "was used a moment ago (TIME_WAIT): it is free in up to 60 s"
    return "is in use by an open connection"


def is_listening(host: str, port: int) -> bool:
    """Whether a process of this machine listens at exactly that address, from /proc and without a connection.

    False if /proc cannot tell, because the address is another machine's or this is not Linux.
    """
    try:
        packed = ipaddress.ip_address(host).packed
    except ValueError:
        return False
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    wanted = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words).hex().upper()
    return any(state == LISTEN and where == f"{wanted}:{port:04X}" for where, state, _ in _sockets())


def process(pid: int, own: Mapping[int, str] = NOBODY) -> Holder:
    """What /proc says about the process now."""
    folder = PROC / str(pid)
    command, state = "", ""
    with contextlib.suppress(OSError):
        command = _command(folder)
        text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        state = text[text.rindex(")") + 2 :][:1]  # the command's name in parentheses may contain any character
    return Holder(pid, command, own.get(pid, ""), state in STOPPED)


def stopped(own: Mapping[int, str]) -> tuple[Holder, ...]:
    """Those processes of `own` that are stopped."""
    return tuple(one for pid in own if (one := process(pid, own)).stopped)


def in_other_networks(own: Mapping[int, str]) -> dict[str, int]:
    """Instance → pid of its first process that is in another network namespace than this one, if that can be seen."""
    found: dict[str, int] = {}
    with contextlib.suppress(OSError):
        here = _network("self")
        for pid, instance in own.items():
            with contextlib.suppress(OSError):
                if _network(str(pid)) != here:
                    found.setdefault(instance, pid)
    return found


def _network(process: str) -> str:
    return str((PROC / process / "ns" / "net").readlink())


def closing_sockets() -> frozenset[str]:
    """The inodes of all sockets in CLOSE_WAIT."""
    return frozenset(inode for _, state, inode in _sockets() if state == CLOSE_WAIT)


def open_files(pid: int) -> list[str] | None:
    """One entry per descriptor: a socket's inode, "" for anything else; None if this user may not see them."""
    try:
        return [_inode(link) for link in (PROC / str(pid) / "fd").iterdir()]
    except OSError:
        return None


def _sockets() -> Iterator[tuple[str, str, str]]:
    """Local address and port as the kernel writes them, state and inode of every TCP socket."""
    for table in TABLES:
        with contextlib.suppress(OSError):
            for line in (PROC / table).read_text(encoding="ascii").splitlines()[1:]:
                # sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode
                row = line.split()
                yield row[1], row[3], row[9]


def _listeners(ports: frozenset[int], own: Mapping[int, str]) -> dict[int, Holder]:
    """The holders of those `ports` on which something listens; one that /proc hides from this user has no pid."""
    inodes = {
        inode: port
        for where, state, inode in _sockets()
        if state == LISTEN and (port := int(where.rpartition(":")[2], 16)) in ports
    }
    found = dict.fromkeys(inodes.values(), Holder(None))
    owners = sorted(_owners(inodes), key=lambda owner: owner[1] in own)  # what comes last is kept
    found.update((port, process(pid, own)) for port, pid in owners)
    return found


def _owners(inodes: Mapping[str, int]) -> Iterator[tuple[int, int]]:
    """Port and pid of each listening socket's first holder, for all processes that /proc shows to this user."""
    left = set(inodes)
    for folder in PROC.iterdir() if left else ():
        if not left:
            return
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # another user's process, or one that has just ended
            for link in (folder / "fd").iterdir():
                inode = _inode(link)
                if inode in left:
                    left.discard(inode)
                    yield inodes[inode], int(folder.name)


def _inode(link: Path) -> str:
    try:
        target = str(link.readlink())
    except OSError:
        return ""
    return target[8:-1] if target.startswith("socket:[") else ""


def _command(folder: Path) -> str:
    raw = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
    return raw[:LONGEST].decode("utf-8", errors="replace").strip()
