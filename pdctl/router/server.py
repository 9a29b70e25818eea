"""The clients' side: an HTTP/1.1 server on asyncio protocols that hands out one `Exchange` per request.

Not ASGI: an event of a stream costs one write here, where ASGI wants a message, an await and a look at its keys
(docs/router.md has the figures).
"""

from __future__ import annotations

import asyncio
import http
import ipaddress
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import httptools
import orjson

from pdctl.router.upstream import Connection, Headers, no_delay

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_HEAD = 64 * 1024  # bytes of request line and headers
MAX_PIPELINED = 16  # requests waiting behind one in progress on the same connection
LINGER = 2.0  # seconds in which a refused client may finish sending before the connection is cut
PHRASES = {status.value: status.phrase.encode() for status in http.HTTPStatus}
BODY_FOLLOWS = frozenset((b"content-length", b"transfer-encoding"))
JSON = b"content-type: application/json\r\n"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may take: bytes of a body, seconds of silence."""

    max_payload: int
    read_timeout: float
    idle_timeout: float


class Exchange:
    """One request and the way back to its client. Header names are lower-case.

    Answer with `respond`, or with `start`, `write` … and `end`. `on_gone` is called when the client leaves before that;
    `source` is the worker's connection to slow down when the client reads slower than the worker writes.
    """

    __slots__ = (
        "_chunked", "_client", "admin", "body", "done", "gone", "headers", "keep_alive", "method", "on_gone", "path",
        "query", "source", "started", "status",
    )  # fmt: skip

    def __init__(
        self, client: ClientConnection, method: bytes, path: bytes, query: bytes, headers: Headers, body: bytes
    ) -> None:
        self._client = client
        self.method, self.path, self.query, self.headers, self.body = method, path, query, headers, body
        self.keep_alive = True
        self.started = self.done = self.gone = False
        self.admin = False  # whether it may do what admins may (http_auth.py)
        self.status = 0
        self.on_gone: Callable[[], None] | None = None
        self.source: Connection | None = None
        self._chunked = False

    @property
    def peer(self) -> str:
        """The address of the client; empty when it is gone."""
        return self._client.peer

    @property
    def from_this_machine(self) -> bool:
        return is_loopback(self.peer)

    def header(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key == name), None)

    def respond(self, status: int, head: bytes, body: bytes) -> None:
        """The whole answer. `head` is header lines, each ending in CRLF, without length and connection."""
        if self.gone or self.done:
            return
        if self.started:
            self._client.cut()  # there is a beginning already that this cannot follow
            return
        self.status = status
        sent = b"" if self.method == b"HEAD" else body
        self._client.write(b"%b%bcontent-length: %d\r\n\r\n%b" % (self._opening(status), head, len(body), sent))
        self._finish()

    def json(self, status: int, value: object, head: bytes = b"") -> None:
        """The whole answer, as JSON."""
        self.respond(status, JSON + head, orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE))

    def start(self, status: int, head: bytes, data: bytes) -> None:
        """Begin an answer of unknown length with its first bytes."""
        if self.gone:
            return
        self.status = status
        self._chunked = self._client.chunks
        if self._chunked:
            frame = b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(data), data)
        else:
            self.keep_alive = False  # HTTP/1.0: the end of the connection is the end of the answer
            frame = b"\r\n" + data
        self._client.write(self._opening(status) + head + frame)
        self.started = True

    def write(self, data: bytes) -> None:
        """More bytes; never empty."""
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


class ClientConnection(asyncio.Protocol):
    """One client: parses requests, hands them out one after another, notices when the client leaves."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._limits = server.limits
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[Exchange] = deque()
        self._current: Exchange | None = None
        self._url = b""
        self._headers: Headers = []
        self._body: list[bytes] = []
        self._body_size = self._head_size = 0
        self._in_body = self._refused = self._partial = False
        self.chunks = True
        self.peer = ""
        self.deadline = 0.0  # loop time at which to give up on this client; 0 while a request is being served

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        no_delay(transport)
        name = transport.get_extra_info("peername")
        self.peer = str(name[0]) if isinstance(name, tuple) else ""
        self._server.connections.add(self)
        self.deadline = self._server.now() + self._limits.read_timeout
        if self._server.draining:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        self._waiting.clear()
        exchange, self._current = self._current, None
        if exchange is not None and not exchange.done:
            exchange.gone = True
            if exchange.on_gone is not None:
                exchange.on_gone()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._current is None and (self._in_body or not self._partial):
            # In a body silence counts; a head must be whole in time, or a drip of bytes would hold a connection.
            self.deadline = self._server.now() + self._limits.read_timeout
        self._partial = True
        if not self._in_body:
            self._head_size += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refused = True  # the offer was declined by answering in HTTP/1.1; what follows is not that
        except httptools.HttpParserError as error:
            self._refuse(400, f"not an HTTP/1.1 request: {error}")
        else:
            if self._head_size > MAX_HEAD and not self._in_body:
                self._refuse(431, f"request line and headers are larger than {MAX_HEAD} bytes")

    def pause_writing(self) -> None:
        if self._current is not None and self._current.source is not None:
            self._current.source.pause()

    def resume_writing(self) -> None:
        if self._current is not None and self._current.source is not None:
            self._current.source.resume()

    # Called by the parser.

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._in_body = True
        for name, value in self._headers:
            if name == b"content-length" and int(value) > self._limits.max_payload:
                self._too_large()
            elif name == b"expect" and value.lower() == b"100-continue" and not self._refused:
                self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body_size += len(body)
        if self._body_size > self._limits.max_payload:
            self._too_large()
        if not self._refused:
            self._body.append(body)

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade() and any(name in BODY_FOLLOWS for name, _ in self._headers):
            self._refuse(
                400, "a request that offers a protocol upgrade cannot carry a body: leave out the Upgrade header"
            )
        if self._refused:
            return
        path, _, query = self._url.partition(b"?")
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        exchange = Exchange(self, self._parser.get_method(), path, query, self._headers, body)
        exchange.keep_alive = self._parser.should_keep_alive() and not self._parser.should_upgrade()
        self.chunks = self._parser.get_http_version() != "1.0"
        self._url, self._headers, self._body = b"", [], []
        self._body_size = self._head_size = 0
        self._in_body = self._partial = False
        if self._current is None:
            self._begin(exchange)
        elif len(self._waiting) < MAX_PIPELINED:
            self._waiting.append(exchange)
        else:
            self.cut()

    # Called by exchanges and by the server.

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def finished(self, exchange: Exchange) -> None:
        """`exchange` is answered: the next one, or wait for it."""
        if exchange is not self._current:
            return
        self._current = None
        if not exchange.keep_alive or self.leaving:
            self.close()
        elif self._waiting:
            self._server.loop.call_soon(self._next)
        else:
            self.deadline = self._server.now() + self._limits.idle_timeout

    @property
    def leaving(self) -> bool:
        """Whether the connection closes after the answer in progress."""
        return self._server.draining

    @property
    def busy(self) -> bool:
        return self._current is not None

    def close(self) -> None:
        """Close after what is written has left."""
        if self._transport is not None:
            self._transport.close()

    def cut(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def expire(self) -> None:
        """The deadline has passed without a whole request."""
        if self._partial and not self._refused:
            self._refuse(408, f"the rest of the request did not come within {self._limits.read_timeout:g} s")
        else:
            self.cut()

    def _begin(self, exchange: Exchange) -> None:
        self._current = exchange
        self.deadline = 0.0
        self._server.handle(exchange)

    def _next(self) -> None:
        if self._waiting and self._current is None:
            self._begin(self._waiting.popleft())

    def _too_large(self) -> None:
        self._refuse(413, f"the body is larger than --max-payload-size {self._limits.max_payload}")

    def _refuse(self, status: int, message: str) -> None:
        """Answer and close, but not at once: a close on data that was not read would destroy the answer."""
        if self._refused:
            return
        self._refused = True
        self._body.clear()
        if self._current is None and self._transport is not None and not self._transport.is_closing():
            body = orjson.dumps(error_body(message, "invalid_request_error", PHRASES[status].decode()))
            self.write(
                b"HTTP/1.1 %d %b\r\n%bconnection: close\r\ncontent-length: %d\r\n\r\n%b"
                % (status, PHRASES[status], JSON, len(body), body)
            )
            if self._transport.can_write_eof():
                self._transport.write_eof()
            self.deadline = self._server.now() + LINGER
        else:
            self.cut()


class Server:
    """Listens, keeps the set of clients, and gives up on silent ones."""

    def __init__(self, limits: Limits, handler: Callable[[Exchange], None]) -> None:
        self.limits = limits
        self.handle = handler
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time
        self.connections: set[ClientConnection] = set()
        self.draining = False
        self._listener: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    async def listen(self, host: str, port: int) -> int:
        """The port listened on (a free one for port 0)."""
        self._listener = await self.loop.create_server(lambda: ClientConnection(self), host, port, backlog=2048)
        self._sweep()
        return int(self._listener.sockets[0].getsockname()[1])

    def _sweep(self) -> None:
        now = self.now()
        for connection in [one for one in self.connections if 0.0 < one.deadline < now]:
            connection.expire()
        self._sweeper = self.loop.call_later(1.0, self._sweep)

    async def drain(self, grace: float) -> int:
        """Refuse new connections, let requests in flight finish; how many were left when `grace` ended."""
        self.draining = True
        if self._listener is not None:
            self._listener.close()
        end = self.now() + grace
        for connection in list(self.connections):
            if not connection.busy:
                connection.close()
        while self.connections and self.now() < end:
            await asyncio.sleep(0.02)
        return len(self.connections)

    def stop(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._listener is not None:
            self._listener.close()
        for connection in list(self.connections):
            connection.cut()


def is_loopback(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback


def error_body(message: str, kind: str, code: str | int) -> dict[str, dict[str, str | int]]:
    """The error object of the OpenAI surface."""
    return {"error": {"message": message, "type": kind, "code": code}}
