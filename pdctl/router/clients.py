"""How connections are accepted, how many and how many bytes a client may take, and `Exchange`, one request."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import http
import socket
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import orjson

from pdctl.loopback import is_loopback
from pdctl.name_lookup import look_up
from pdctl.open_files import EXHAUSTED, limit
from pdctl.router.log import Throttled

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.name_lookup import Address
    from pdctl.router.router_args import RouterArgs
    from pdctl.router.upstream import Connection, Headers


BACKLOG = 2048  # clients that may wait to be accepted
ACCEPT_PAUSE = 1.0  # seconds until accept() is tried again after the file descriptors ran out
ANY_ADDRESS = ("0.0.0.0", "::")  # the addresses that --host "" stands for
SHARE = 2  # one address may take one part in this many, a half, of the connections and of the memory for bodies
SPARE_FILES = 128  # file descriptors for everything but requests
FILES_PER_CLIENT = 3  # a request has one connection to its client, and one to each worker
PHRASES = {status.value: status.phrase.encode() for status in http.HTTPStatus}
JSON = b"content-type: application/json\r\n"
# The `type` of an error that the router itself returns.
KINDS = {
    401: "authentication_error",
    403: "permission_error",
    409: "conflict",
    500: "internal_error",
    503: "service_unavailable",
}


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


class Client(Protocol):
    """The connection of a request. `chunks`: it accepts a chunked answer; `leaving`: it closes after this answer."""

    chunks: bool
    peer: str
    peer_is_own: bool

    @property
    def leaving(self) -> bool: ...
    def write(self, data: bytes) -> None: ...
    def cut(self) -> None: ...
    def finished(self, exchange: Exchange) -> None: ...


class Exchange:
    """One request and the way back to its client. Header names are lower-case.

    Answer with `respond`, or with `start`, `write` … and `end`. `on_gone` is called if the client leaves before that;
    `source` is the worker's connection, to be slowed down if the client reads more slowly than the worker writes.
    """

    __slots__ = (
        "_chunked", "_client", "admin", "body", "done", "gone", "headers", "keep_alive", "method", "on_gone", "path",
        "query", "source", "started", "status",
    )  # fmt: skip

    def __init__(
        self,
        client: Client,
        method: bytes,
        path: bytes,
        query: bytes,
        headers: Headers,
        body: bytes | bytearray,
    ) -> None:
        self._client = client
        self.method, self.path, self.query, self.headers, self.body = method, path, query, headers, body
        self.keep_alive = True
        self.started = self.done = self.gone = False
        self.admin = False  # whether it has admin rights (http_auth.py)
        self.status = 0
        self.on_gone: Callable[[], None] | None = None
        self.source: Connection | None = None
        self._chunked = False

    @property
    def peer(self) -> str:
        """The address of the client; empty if it is gone."""
        return self._client.peer

    @property
    def from_this_machine(self) -> bool:
        return is_loopback(self.peer) or self._client.peer_is_own

    def header(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key == name), None)

    def respond(self, status: int, head: bytes, body: bytes) -> None:
        """Send the whole answer. `head` is header lines, each ending in CRLF, without length and connection."""
        if self.gone or self.done:
            return
        if self.started:
            self._client.cut()  # part of another answer was sent, and this one cannot follow it
            return
        self.status = status
        sent = b"" if self.method == b"HEAD" else body
        self._client.write(b"%b%bcontent-length: %d\r\n\r\n%b" % (self._opening(status), head, len(body), sent))
        self._finish()

    def json(self, status: int, value: object, head: bytes = b"") -> None:
        """Send the whole answer as JSON."""
        self.respond(status, JSON + head, orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE))

    def refuse(self, status: int, message: str, code: str, head: bytes = b"", kind: str = "") -> None:
        """Send the whole answer as an error. `kind`: only if it differs from the one KINDS has for this status."""
        self.json(status, error_body(message, kind or KINDS.get(status, "invalid_request_error"), code), head)

    def start(self, status: int, head: bytes, data: bytes) -> None:
        """Begin an answer of unknown length with its first bytes."""
        if self.gone:
            return
        self.status = status
        self._chunked = self._client.chunks
        if self._chunked:
            frame = b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(data), data)
        else:
            self.keep_alive = False  # HTTP/1.0: the answer ends when the connection closes
            frame = b"\r\n" + data
        self._client.write(self._opening(status) + head + frame)
        self.started = True

    def write(self, data: bytes) -> None:
        """Send more bytes, at least one."""
        if self._chunked:
            self._client.write(b"%x\r\n%b\r\n" % (len(data), data))
        else:
            self._client.write(data)

    def end(self) -> None:
        if self.gone or self.done:
            return
        if self._chunked:
            self._client.write(b"0\r\n\r\n")
        self._finish()

    def _opening(self, status: int) -> bytes:
        close = b"" if self.keep_alive and not self._client.leaving else b"connection: close\r\n"
        return b"HTTP/1.1 %d %b\r\n%b" % (status, PHRASES.get(status, b"Status"), close)

    def _finish(self) -> None:
        self.done = True
        self.source = self.on_gone = None
        self._client.finished(self)


def error_body(message: str, kind: str, code: str | int) -> dict[str, dict[str, str | int]]:
    """Return the error object of the OpenAI API."""
    return {"error": {"message": message, "type": kind, "code": code}}
