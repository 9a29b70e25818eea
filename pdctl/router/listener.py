"""Where clients come in: the listening sockets, and how many connections and bytes clients may take."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pdctl.name_lookup import look_up
from pdctl.open_files import EXHAUSTED, limit
from pdctl.router.log import Throttled

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.name_lookup import Address
    from pdctl.router.router_args import RouterArgs

BACKLOG = 2048  # clients that may wait to be accepted
ACCEPT_PAUSE = 1.0  # seconds until accept() is tried again after the file descriptors ran out
ANY_ADDRESS = ("0.0.0.0", "::")  # the addresses that --host "" stands for
SHARE = 2  # one address may take one part in this many, a half, of the connections and of the memory for bodies
SPARE_FILES = 128  # file descriptors for everything but requests
FILES_PER_CLIENT = 3  # a request has one connection to its client, and one to each worker


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Bytes of one body and of all bodies, seconds of silence, connections."""

    max_payload: int
    read_timeout: float
    idle_timeout: float
    max_payload_memory: int
    max_connections: int

    @classmethod
    def of(cls, args: RouterArgs, files: int) -> ClientLimits:
        """Return the limits of a router that may open `files` files: fewer connections than asked for if need be."""
        return cls(
            max_payload=args.max_payload_size,
            read_timeout=args.read_timeout,
            idle_timeout=args.idle_timeout,
            max_payload_memory=args.max_payload_memory,
            max_connections=min(args.max_connections, _clients(files)),
        )

    def shortage(self, args: RouterArgs, files: int) -> str:
        """Return a warning if there are too few files for --max-connections; empty if there are enough."""
        if self.max_connections >= args.max_connections:
            return ""
        return (
            f"The hard limit of {files} open files allows {self.max_connections} clients at once, not the "
            f"{args.max_connections} of --max-connections; raise it (ulimit -Hn {files_for(args.max_connections)}), "
            f"or give --max-connections {self.max_connections}"
        )


def files_for(clients: int) -> int:
    return SPARE_FILES + FILES_PER_CLIENT * clients


def _clients(files: int) -> int:
    """Return how many clients fit. At most half of the files is kept for the rest: log, listeners, worker checks."""
    return max(2, (files - min(SPARE_FILES, files // 2)) // FILES_PER_CLIENT)


class PeerShares:
    """How much of a limit is taken, and by which address: one address may take half of it."""

    __slots__ = ("_by_peer", "_most", "taken")

    def __init__(self, most: int) -> None:
        self._most = most
        self.taken = 0
        self._by_peer: Counter[str] = Counter()

    def crowded(self, peer: str, size: int = 1) -> bool:
        """Return whether `size` more are too many for one address."""
        return self._by_peer[peer] + size > max(1, self._most // SHARE)

    def take(self, peer: str, size: int = 1) -> bool:
        """Return whether there is room for `size` more; if so, count them until `give`."""
        if self.taken + size > self._most or self.crowded(peer, size):
            return False
        self.taken += size
        self._by_peer[peer] += size
        return True

    def give(self, peer: str, size: int = 1) -> None:
        self.taken -= size
        self._by_peer[peer] -= size
        if self._by_peer[peer] <= 0:
            del self._by_peer[peer]


class AcceptLoop:
    """Accepts clients on every address of a host. If no file descriptor is left, it logs that, and clients wait.

    uvloop's own would accept such a client and close the connection, without a word in the log.
    """

    def __init__(self, connection: Callable[[], asyncio.Protocol]) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._begun: set[asyncio.Task[None]] = set()
        self._failing = Throttled()

    async def open(self, host: str, port: int) -> int:
        """Listen and return the port. Raise OSError, also if a name cannot be looked up."""
        for one in (host,) if host else ANY_ADDRESS:
            found = await self._loop.run_in_executor(None, partial(look_up, one, port, flags=socket.AI_PASSIVE))
            try:
                self._sockets += [sock for sock in map(_bound, found) if sock is not None]
            except OSError:
                self.close()
                raise
        if not self._sockets:
            raise OSError(errno.EAFNOSUPPORT, "no address of it is of a kind that this machine has")
        for sock in self._sockets:
            self._loop.add_reader(sock, self._accept, sock)
        return int(self._sockets[0].getsockname()[1])

    def close(self) -> None:
        for sock in self._sockets:
            self._loop.remove_reader(sock)
            sock.close()
        self._sockets.clear()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(BACKLOG):
            try:
                sock, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(listening, error)
                return
            sock.setblocking(False)
            task = self._loop.create_task(self._begin(sock))
            self._begun.add(task)
            task.add_done_callback(self._begun.discard)

    async def _begin(self, sock: socket.socket) -> None:
        with contextlib.suppress(ConnectionError):  # the client has left already
            await self._loop.connect_accepted_socket(self._connection, sock)

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        most = f" ({limit()} files may be open: ulimit -n)" if error.errno in EXHAUSTED else ""
        self._failing.warn(f"Cannot accept clients: {error.strerror}{most}; they wait until others have left")
        self._loop.remove_reader(listening)
        self._loop.call_later(ACCEPT_PAUSE, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            self._loop.add_reader(listening, self._accept, listening)
            self._accept(listening)


def _bound(address: Address) -> socket.socket | None:
    """Return a socket that listens there; None if this machine has no such addresses. Raise OSError."""
    try:
        sock = socket.socket(address.family, address.kind, address.proto)
    except OSError as error:
        if error.errno == errno.EAFNOSUPPORT:
            return None
        raise
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if address.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # each family has its own socket
        sock.bind(address.sockaddr)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock
