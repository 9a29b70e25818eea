"""Connections to the workers: an HTTP/1.1 client on asyncio protocols, one pool per worker, one answer at a time."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

import httptools
import orjson

from pdctl.name_lookup import begin, lookup_timeout
from pdctl.open_files import EXHAUSTED, limit
from pdctl.router.log import Throttled

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.name_lookup import Address
    from pdctl.router.router_args import Origin

Headers = list[tuple[bytes, bytes]]
Payload = tuple[bytes | memoryview, ...]  # a request body, in pieces that are sent one after the other
MAX_HEAD = 64 * 1024  # bytes of status line and headers: a worker that sends more is not speaking HTTP
MAX_FRAMING = 2 * MAX_HEAD  # bytes of an answer's head, chunk sizes, extensions and trailers beyond its body's size
MAX_REPLY = 32 << 20  # bytes of an answer to the router's own requests
COPY_BELOW = 64 * 1024  # a request smaller than this leaves in one write
SEND = 256 * 1024  # bytes of a larger one handed to the transport at a time
SENDS = 8  # writes before other tasks get a turn

_exhausted = Throttled()


class UpstreamError(Exception):
    """A worker that could not be asked, or gave no usable answer; the text names neither worker nor path."""


class Unreachable(UpstreamError):
    """Nothing accepts a connection at its address."""


class RouterExhausted(UpstreamError):
    """The router itself has no file descriptor left for a connection: this says nothing about the worker."""


class AnswerSink(Protocol):
    """Receives one answer: on_head once, on_data any number of times, then on_end or on_lost once.

    on_lost may come first and alone. Header names are lower-case. Nothing is called after `Connection.drop`.
    """

    def on_head(self, status: int, headers: Headers) -> None: ...
    def on_data(self, data: bytes) -> None: ...
    def on_end(self) -> None: ...
    def on_lost(self, reason: str) -> None: ...


class Connection(asyncio.Protocol):
    """One TCP connection. It returns to its pool by itself when an answer is complete and another may follow."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._sink: AnswerSink | None = None
        self._parts: list[bytes] = []
        self.on_body = self._parts.append  # called by the parser per piece: a bound C method needs no Python frame
        self._parser = httptools.HttpResponseParser(self)
        self._headers: Headers = []
        self._status = 0
        self._head_seen = self._head_told = self._complete = self._framed = self._reusable = False
        self._paused = self._lost = False
        self._unparsed = self._pieces = 0
        self._excess = 0  # bytes received, less twice the body's
        self._unsent: deque[memoryview] = deque()
        self._full = False  # the transport's send buffer is full
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        no_delay(transport)

    def send(self, head: bytes, body: Payload, sink: AnswerSink) -> None:
        """Send one request; `sink` gets the answer. Only on a connection just returned by `connect` or `take`.

        A large body is sent piece by piece, as the worker takes it.
        """
        if self._lost or self._transport is None:
            sink.on_lost("closed the connection before it was asked")
            return
        self._sink = sink
        self._headers = []
        self._head_seen = self._head_told = self._complete = self._framed = False
        self._unparsed = self._excess = 0
        first = body[0] if body else b""
        if len(body) == 1 and len(first) < COPY_BELOW:
            self._transport.write(head + bytes(first))
        else:
            self._transport.write(head)
            self._unsent = deque(memoryview(part) for part in body)
            self._send_more()

    def _send_more(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        for _ in range(SENDS):
            if not self._unsent or self._full:
                return
            part = self._unsent.popleft()
            if len(part) > SEND:
                self._unsent.appendleft(part[SEND:])
                part = part[:SEND]
            transport.write(part)
        if self._unsent and not self._full:
            asyncio.get_running_loop().call_soon(self._send_more)

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._send_more()

    def drop(self) -> None:
        """Give up on the answer: close at once, without a call to the sink."""
        self._sink = None
        self._unsent.clear()
        self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Stop reading: the receiver of the answer is slower than the worker."""
        if self._transport is not None and not self._paused and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and self._paused and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        sink = self._sink
        if sink is None:
            self.close()  # unrequested data: the connection is out of step
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(f"answered with invalid HTTP: {error}")
            return
        self._excess += len(data)
        if not self._head_told:
            if not self._head_seen:
                self._unparsed += len(data)
                if self._unparsed > MAX_HEAD:
                    self._fail(f"answered with more than {MAX_HEAD} bytes of headers")
                return
            self._head_told = True
            sink.on_head(self._status, self._headers)
            if self._sink is not sink:
                return
        if self._complete and len(self._parts) > self._pieces:
            self._reusable = False
            del self._parts[self._pieces :]  # the beginning of an answer that was not requested
        if self._parts:
            body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._parts.clear()
            self._excess -= 2 * len(body)
            sink.on_data(body)
        if self._excess > MAX_FRAMING and not self._complete and self._sink is sink:
            self._fail("answered with chunk sizes, extensions and trailers larger than the body")
            return
        if self._complete and self._sink is sink:
            self._finish(sink)

    def _finish(self, sink: AnswerSink) -> None:
        self._sink = None
        self.resume()
        transport = self._transport
        if self._reusable and transport is not None and not self._unsent and not transport.get_write_buffer_size():
            self._pool.give(self)
        else:
            self.close()
        sink.on_end()

    def _fail(self, reason: str) -> None:
        sink, self._sink = self._sink, None
        self.close()
        if sink is not None:
            sink.on_lost(reason)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._unsent.clear()
        self._pool.forget(self)
        sink, self._sink = self._sink, None
        if sink is None:
            return
        if self._head_told and not self._framed and exc is None:
            sink.on_end()  # neither length nor chunks: the answer ends when the connection closes
            return
        where = "in the middle of its answer" if self._head_told else "before it answered"
        sink.on_lost(f"closed the connection {where}" + (f" ({exc})" if exc else ""))

    # Called by the parser. A second answer in the same read was not requested: nothing of it may mix with the first.

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-length" or name == b"transfer-encoding":
            self._framed = True
        if not self._head_seen:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._head_seen:
            return
        self._status = self._parser.get_status_code()
        if self._status < 200:
            self._headers = []  # 1xx: the final answer follows
        else:
            self._head_seen = True

    def on_message_complete(self) -> None:
        if self._status < 200:
            return
        self._reusable = self._parser.should_keep_alive() and not self._complete
        if not self._complete:
            self._pieces = len(self._parts)
        self._complete = self._framed = True


class ConnectionPool:
    """The connections to one worker. The most recently idle one is used first; one idle for too long is never used."""

    def __init__(self, origin: Origin, *, idle_timeout: float, connect_timeout: float) -> None:
        self.origin = origin
        self.authority = f"{origin.uri_host}:{origin.port}".encode()
        self._idle_timeout = idle_timeout
        self._connect_timeout = connect_timeout
        self._loop = asyncio.get_running_loop()
        self._tls = ssl.create_default_context() if origin.tls else None
        self._idle: list[Connection] = []
        self._closed = False

    @property
    def idle(self) -> int:
        return len(self._idle)

    def take(self) -> Connection | None:
        """Return an idle connection, or None if a new one is needed."""
        if self._idle:
            connection = self._idle.pop()
            if self._loop.time() - connection.idle_since < self._idle_timeout:
                return connection
            self._idle.append(connection)
            self.sweep()
        return None

    async def connect(self) -> Connection:
        """Return a new connection. Raise UpstreamError, which says why there is none."""
        host, addresses = self.origin.host, begin(self.origin.host, self.origin.port)
        try:
            return await asyncio.wait_for(self._connect(asyncio.wrap_future(addresses)), self._connect_timeout)
        except asyncio.TimeoutError:
            looked_up = addresses.done()
            why = f"no connection within {self._connect_timeout:g} s"
            raise UpstreamError(
                why if looked_up else str(lookup_timeout(host, self._connect_timeout).strerror)
            ) from None
        except OSError as error:
            reason = f"no connection: {error.strerror or error}"
            if error.errno not in EXHAUSTED:
                raise Unreachable(reason) from None
            reason += f" in the router ({limit()} may be open: ulimit -n)"
            _exhausted.warn(f"Cannot connect to {self.origin.url}: {reason}")
            raise RouterExhausted(reason) from None

    async def _connect(self, addresses: asyncio.Future[list[Address]]) -> Connection:
        """Connect to the first address that accepts; raise the last one's OSError."""
        name = self.origin.host if self._tls else None
        *others, last = await asyncio.shield(addresses)
        for address in others:
            with contextlib.suppress(OSError):
                return await self._connected(address.host, name)
        return await self._connected(last.host, name)

    async def _connected(self, host: str, name: str | None) -> Connection:
        _, connection = await self._loop.create_connection(
            lambda: Connection(self), host, self.origin.port, ssl=self._tls, server_hostname=name
        )
        return connection

    def give(self, connection: Connection) -> None:
        if self._closed:
            connection.close()
            return
        connection.idle_since = self._loop.time()
        self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)

    def sweep(self) -> None:
        """Close what has been idle for too long; the oldest are at the front."""
        now = self._loop.time()
        stale = [one for one in self._idle if now - one.idle_since >= self._idle_timeout]
        self._idle = self._idle[len(stale) :]
        for connection in stale:
            connection.close()

    def close(self) -> None:
        """Close idle connections now and busy ones after their answer."""
        self._closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


@dataclass(frozen=True, slots=True)
class WorkerReply:
    """A complete answer to one of the router's own requests."""

    status: int
    headers: Headers
    body: bytes

    def json(self) -> Mapping[str, object]:
        """Return the body as an object. Raise UpstreamError if it is not one."""
        try:
            value = orjson.loads(self.body)
        except orjson.JSONDecodeError as error:
            raise UpstreamError(f"answered with invalid JSON: {error}") from None
        if not isinstance(value, dict):
            raise UpstreamError("answered with JSON that is not an object")
        return value

    def text(self, limit: int = 200) -> str:
        return self.body[:limit].decode("utf-8", "replace").strip()


class _Whole:
    """Collects one answer."""

    def __init__(self) -> None:
        self.reply: asyncio.Future[WorkerReply] = asyncio.get_running_loop().create_future()
        self._status = 0
        self._headers: Headers = []
        self._body: list[bytes] = []
        self._size = 0
        self.ended = False  # the connection has no more of it to deliver

    def on_head(self, status: int, headers: Headers) -> None:
        self._status, self._headers = status, headers

    def on_data(self, data: bytes) -> None:
        self._size += len(data)
        if self._size <= MAX_REPLY:
            self._body.append(data)
            return
        self._body.clear()
        self.on_lost(f"answered with more than {MAX_REPLY} bytes")  # `ask` drops the connection

    def on_end(self) -> None:
        self.ended = True
        if not self.reply.done():
            self.reply.set_result(WorkerReply(self._status, self._headers, b"".join(self._body)))

    def on_lost(self, reason: str) -> None:
        if not self.reply.done():
            self.reply.set_exception(UpstreamError(reason))


async def ask(
    pool: ConnectionPool, method: str, target: str, *, timeout: float, body: bytes = b"", headers: bytes = b""
) -> WorkerReply:
    """Send one of the router's own requests. Raise UpstreamError for anything but an answer in time."""
    whole = _Whole()
    length = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body) if method != "GET" else b""
    head = b"%b %b HTTP/1.1\r\nHost: %b\r\n%b%b\r\n" % (
        method.encode(),
        target.encode(),
        pool.authority,
        headers,
        length,
    )
    connection = pool.take() or await pool.connect()
    connection.send(head, (body,) if body else (), whole)
    try:
        return await asyncio.wait_for(whole.reply, timeout)
    except asyncio.TimeoutError:
        raise UpstreamError(f"no answer within {timeout:g} s") from None
    finally:
        if not whole.ended:
            connection.drop()


def no_delay(transport: asyncio.BaseTransport) -> None:
    """Send small writes at once: without it the last bytes of a stream wait ~40 ms for the peer's delayed ACK."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
