"""TCP ports of this machine: can a server listen there now, and if not, who does."""

from __future__ import annotations

import contextlib
import errno
import socket
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

PROC = Path("/proc")
LISTEN = "0A"  # the kernel's TCP_LISTEN in /proc/net/tcp
TABLES = ("net/tcp", "net/tcp6")
TAKEN = (errno.EADDRINUSE, errno.EACCES)
EPHEMERAL = "sys/net/ipv4/ip_local_port_range"
RESERVED = "sys/net/ipv4/ip_local_reserved_ports"


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


def holders(ports: Collection[int]) -> Mapping[int, str]:
    """Who listens, for the ports that are not free: "pid 4711 python3 -m …", or "in use" by whom we may not see."""
    taken = [port for port in ports if not is_free(port)]
    inodes = _listening(frozenset(taken)) if taken else {}
    owners = dict(_owners(inodes)) if inodes else {}
    return {
        port: owners.get(port, "in use" if port > 1023 or port in inodes.values() else "privileged") for port in taken
    }


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


def _owners(inodes: Mapping[str, int]) -> Iterator[tuple[int, str]]:
    """Port → process, for all that /proc shows to this user."""
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
                    yield port, f"pid {folder.name} {_command(folder)}".strip()


def _inode(link: Path) -> str:
    try:
        target = str(link.readlink())
    except OSError:
        return ""
    return target[8:-1] if target.startswith("socket:[") else ""


def _command(folder: Path) -> str:
    raw = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
    return raw[:100].decode("utf-8", errors="replace").strip()
