"""TCP ports of this machine: can a server listen there now, and if not, who does."""

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
LISTEN = "0A"  # the kernel's TCP_LISTEN in /proc/net/tcp
TABLES = ("net/tcp", "net/tcp6")
TAKEN = (errno.EADDRINUSE, errno.EACCES)
EPHEMERAL = "sys/net/ipv4/ip_local_port_range"
RESERVED = "sys/net/ipv4/ip_local_reserved_ports"
PRIVILEGED = 1023  # the highest port that needs a privilege
LONGEST = 4096  # bytes of a command line that are kept
STOPPED = "Tt"  # states in /proc/PID/stat: SIGSTOP, and a debugger's stop
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
    """Who listens, for the ports that are not free. `own`: pid → instance, of the run that is looked at.

    A port below 1024 that only root may take, and nobody listens on, has no holder.
    """
    taken = [port for port in ports if not is_free(port)]
    inodes = _listening(frozenset(taken)) if taken else {}
    owners = {port: process(pid, own) for port, pid in _owners(inodes)} if inodes else {}
    listening = set(inodes.values())
    return {port: owners.get(port, Holder(None)) for port in taken if port > PRIVILEGED or port in listening}


def is_listening(host: str, port: int) -> bool:
    """Whether a process of this machine listens at that very address, as /proc tells; nobody is dialled.

    False where /proc does not tell: the address is another machine's, or this is no Linux.
    """
    try:
        packed = ipaddress.ip_address(host).packed
    except ValueError:
        return False
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    wanted = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words).hex().upper()
    return any(state == LISTEN and where == f"{wanted}:{port:04X}" for where, state in _places())


def _places() -> Iterator[tuple[str, str]]:
    """Local address and port, as the kernel writes them, and state of every TCP socket."""
    for table in TABLES:
        with contextlib.suppress(OSError):
            for line in (PROC / table).read_text(encoding="ascii").splitlines()[1:]:
                row = line.split()
                yield row[1], row[3]


def process(pid: int, own: Mapping[int, str] = NOBODY) -> Holder:
    """What /proc says of it now."""
    folder = PROC / str(pid)
    command, state = "", ""
    with contextlib.suppress(OSError):
        command = _command(folder)
        text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        state = text[text.rindex(")") + 2 :][:1]  # the command's name in parentheses may hold any character
    return Holder(pid, command, own.get(pid, ""), state in STOPPED)


def stopped(own: Mapping[int, str]) -> tuple[Holder, ...]:
    """Those of `own` that are stopped."""
    return tuple(one for pid in own if (one := process(pid, own)).stopped)


def free_ephemeral() -> int | None:
    """How many ports the kernel can still give to outgoing connections; None where /proc does not tell."""
    try:
        first, last = map(int, (PROC / EPHEMERAL).read_text(encoding="ascii").split())
        reserved = _reserved((PROC / RESERVED).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    used = {port for port, _, _ in _sockets()} | reserved
    return last - first + 1 - sum(first <= port <= last for port in used)


def _reserved(text: str) -> set[int]:
    """ "8998,30000-30002" """
    ports: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            ports.update(range(int(first), int(last or first) + 1))
    return ports


def _sockets() -> Iterator[tuple[int, str, str]]:
    """Local port, state and inode of every TCP socket."""
    for table in TABLES:
        with contextlib.suppress(OSError):
            lines = (PROC / table).read_text(encoding="ascii").splitlines()[1:]
            for line in lines:
                # sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode
                row = line.split()
                yield int(row[1].rpartition(":")[2], 16), row[3], row[9]


def _listening(ports: frozenset[int]) -> dict[str, int]:
    """Inode → port."""
    return {inode: port for port, state, inode in _sockets() if state == LISTEN and port in ports}


def _owners(inodes: Mapping[str, int]) -> Iterator[tuple[int, int]]:
    """Port and pid, for all that /proc shows to this user."""
    left = set(inodes.values())
    for folder in PROC.iterdir():
        if not left:
            return
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # another user's process, or one that just left
            for link in (folder / "fd").iterdir():
                port = inodes.get(_inode(link))
                if port in left:
                    left.discard(port)
                    yield port, int(folder.name)


def _inode(link: Path) -> str:
    try:
        target = str(link.readlink())
    except OSError:
        return ""
    return target[8:-1] if target.startswith("socket:[") else ""


def _command(folder: Path) -> str:
    raw = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
    return raw[:LONGEST].decode("utf-8", errors="replace").strip()
