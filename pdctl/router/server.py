"""The HTTP/1.1 server: reads requests from a client's connection and hands out one `Exchange` for each.

Not ASGI: an event of a stream costs one write here, where ASGI needs a message, an await and a look at its keys
(docs/router.md has the figures).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, cast

import httptools
import orjson

from pdctl.http_auth import MANY_FIELDS, MAX_FIELDS, HeadTooLarge, declared_size, head_problem
from pdctl.quick_definitions import NamedTuple
from pdctl.router.clients import JSON, PHRASES, SHARE, AcceptLoop, Exchange, PeerShares, error_body
from pdctl.router.log import Throttled
from pdctl.router.upstream import Headers, no_delay
from pdctl.thread_death import guarded

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.router.clients import ClientLimits
    from pdctl.thread_death import Tell

MAX_HEAD = 64 * 1024  # bytes of request line and headers
TOO_LARGE = f"request line and headers are larger than {MAX_HEAD} bytes"
MAX_PIPELINED = 16  # requests waiting behind one in progress on the same connection
MIN_RATE = 16 * 1024  # bytes per second, averaged over a body: a client that is slower holds its connection for nothing
MAX_FRAMING = 64 * 1024  # bytes of chunk sizes, extensions and trailers that a body may have beyond its own size
COLLECT_ABOVE = 256 * 1024  # bytes from which on a body is gathered in one buffer instead of a list of pieces
LINGER = 2.0  # seconds a refused client has to finish sending before the connection is cut
FRESH = 1.0  # seconds in which a client that has just come, or is sending, is not closed to make room for another
TURNED_AWAY = 4  # one connection in this many may stay open beyond the limit, to tell a client that there are too many
BODY_FOLLOWS = frozenset((b"content-length", b"transfer-encoding"))


class Screened(NamedTuple):
    """What the head of a request decides: why it is refused (401), else how many bytes its body may have."""

    refusal: str
    most: int


class ClientConnection(asyncio.Protocol):
    """One client: parses requests, hands them out one after another, notices when the client leaves."""

    def __init__(self, server: ClientServer) -> None:
        self._server = server
        self._limits = server.limits
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[Exchange] = deque()
        self._current: Exchange | None = None
        self._url = b""
        self._headers: Headers = []
        self._body: list[bytes] = []
        self._buffer: bytearray | None = None
        self._most = self._limits.max_payload  # bytes this request's body may have
        self._held = 0  # bytes of this client's bodies that are counted in `server.held`
        self._body_began = 0.0
        # `field`: of headers as they were parsed; `wire`: of a body, including the chunk framing.
        self._body_size = self._head_size = self._field_size = self._wire_size = self._field_count = 0
        self._in_body = self._refused = self._partial = self._served = False
        self._unsent = 0  # bytes of answers that were still to be sent when this was last looked at
        self._unread = False  # whether so much of the answers is still to be sent that the client gets no further one
        self._excess = ""  # the answer to the first request that was one too many, once those before it have theirs
        self.chunks = True
        self.peer = ""
        self.peer_is_own = False  # it connected from the same address that it connected to
        self.deadline = 0.0  # loop time at which to give up on this client; 0 while a request is being served

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        no_delay(transport)
        name = transport.get_extra_info("peername")
        self.peer = str(name[0]) if isinstance(name, tuple) else ""
        own = transport.get_extra_info("sockname")
        self.peer_is_own = bool(self.peer) and isinstance(own, tuple) and str(own[0]) == self.peer
        if not self._server.admit(self):
            self.turn_away()
            return
        self.deadline = self._server.now() + self._limits.read_timeout
        if self._server.draining:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.dismiss(self)
        self._release(self._held)
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
            # Within a body, each piece restarts the timeout; a head must be complete in time, or a trickle of bytes
            # would hold a connection.
            now = self._server.now()
            self.deadline = now + self._limits.read_timeout
            if self._in_body:
                least = self._body_began + self._limits.read_timeout + self._body_size / MIN_RATE
                self.deadline = min(self.deadline, least)
        self._partial = True
        if self._in_body:
            self._wire_size += len(data)
        else:
            self._head_size += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refused = True  # the upgrade was declined by answering in HTTP/1.1; what follows is not HTTP/1.1
        except httptools.HttpParserError as error:
            if self._excess_of_head and not self._in_body:
                self._refuse(431, self._excess_of_head)
            else:
                self._refuse(400, f"not an HTTP/1.1 request: {error}")
        else:
            if self._head_size > MAX_HEAD and not self._in_body:
                self._refuse(431, TOO_LARGE)
            elif self._in_body and self._wire_size - self._body_size > self._body_size + MAX_FRAMING:
                self._refuse(400, "chunk sizes, extensions and trailers are larger than the body: send larger chunks")

    def pause_writing(self) -> None:
        self._unread = True
        if self._current is not None and self._current.source is not None:
            self._current.source.pause()

    def resume_writing(self) -> None:
        self._unread = False
        if self._current is not None and self._current.source is not None:
            self._current.source.resume()
        elif self._waiting:
            self._server.loop.call_soon(self._next)

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_body:  # a trailer is not a header: the request was screened before it came
            return
        self._field_size += len(name) + len(value) + 3  # the least that the wire has around them
        self._field_count += 1
        if self._excess_of_head:
            raise HeadTooLarge
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._in_body = True
        self._body_began = self._server.now()
        problem = head_problem(self._headers, self._parser.get_http_version())
        if problem:
            self._refuse(400, problem)
            return
        screened = self._server.screen(self._parser.get_method(), self._url.partition(b"?")[0], self._headers)
        self._most = screened.most
        if screened.refusal:
            self._refuse(401, screened.refusal, "authentication_error")
        if declared_size(self._headers) > self._most:
            self._too_large()
        for name, value in self._headers:
            if name == b"expect" and value.lower() == b"100-continue" and not self._refused:
                self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body_size += len(body)
        if self._body_size > self._most:
            self._too_large()
        if self._refused:
            return
        if not self._server.held.take(self.peer, len(body)):
            told = (
                f"(--max-payload-memory {self._limits.max_payload_memory}, of one address a half): send it again later"
            )
            self._refuse(503, f"the router holds as many bytes of request bodies as it may {told}")
            return
        self._held += len(body)
        if self._buffer is not None:
            self._buffer += body
        else:
            self._body.append(body)
            if self._body_size > COLLECT_ABOVE:
                self._buffer = bytearray(b"".join(self._body))
                self._body.clear()

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade() and any(name in BODY_FOLLOWS for name, _ in self._headers):
            self._refuse(
                400, "a request that offers a protocol upgrade cannot carry a body: leave out the Upgrade header"
            )
        if self._refused:
            return
        path, _, query = self._url.partition(b"?")
        body: bytes | bytearray = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        if self._buffer is not None:
            body = self._buffer
        exchange = Exchange(self, self._parser.get_method(), path, query, self._headers, body)
        exchange.keep_alive = self._parser.should_keep_alive() and not self._parser.should_upgrade()
        self.chunks = self._parser.get_http_version() != "1.0"
        self._url, self._headers, self._body, self._buffer = b"", [], [], None
        self._body_size = self._head_size = self._field_size = self._wire_size = self._field_count = 0
        self._in_body = self._partial = False
        if self._current is None and not self._unread:
            self._begin(exchange)
        elif len(self._waiting) < MAX_PIPELINED:
            self._waiting.append(exchange)
        else:
            self._refused = True
            self._excess = (
                f"{MAX_PIPELINED + 1} requests sent ahead are the most on one connection: send this one and what "
                "follows it again"
            )

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def finished(self, exchange: Exchange) -> None:
        """`exchange` is answered: begin the next one, or wait for it."""
        if exchange is not self._current:
            return
        self._current = None
        self._served = True
        self._release(len(exchange.body))
        self._unsent = self._transport.get_write_buffer_size() if self._transport is not None else 0
        self.deadline = self._server.now() + self._limits.idle_timeout
        if not exchange.keep_alive or self.leaving:
            self.close()
        elif self._waiting:
            if not self._unread:
                self._server.loop.call_soon(self._next)
        elif self._excess:
            self._refused = False
            self._refuse(503, self._excess)

    @property
    def _excess_of_head(self) -> str:
        """What the head that is being parsed has too much of; empty if nothing."""
        if self._field_count > MAX_FIELDS:
            return MANY_FIELDS
        return TOO_LARGE if self._field_size > MAX_HEAD else ""

    @property
    def leaving(self) -> bool:
        """Whether the connection closes after the answer in progress."""
        return self._server.draining

    @property
    def busy(self) -> bool:
        """Whether a client is waiting for an answer: false between two requests, and before the first is complete."""
        return self._current is not None

    @property
    def _idle(self) -> bool:
        """Whether the client is between two requests."""
        return self._served and not self._partial and self._current is None

    @property
    def may_make_room(self) -> bool:
        """Whether the client can be closed for another one: not during a request, or right after it connected."""
        silent_since = self.deadline - self._limits.read_timeout
        return self._idle or (not self.busy and self._server.now() - silent_since >= FRESH)

    def close(self) -> None:
        """Close after everything written has been sent."""
        if self._transport is not None:
            self._transport.close()

    def cut(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def expire(self) -> None:
        """Give up on a client whose deadline passed without a complete request, unless it still reads its answer."""
        unsent = self._transport.get_write_buffer_size() if self._transport is not None else 0
        if 0 < unsent < self._unsent:
            self._unsent = unsent
            self.deadline = self._server.now() + self._limits.idle_timeout
        elif self._partial and not self._refused:
            self._refuse(408, f"the rest of the request did not come within {self._limits.read_timeout:g} s")
        else:
            self.cut()

    def _release(self, size: int) -> None:
        """Stop counting `size` bytes of bodies."""
        if size:
            self._held -= size
            self._server.held.give(self.peer, size)

    def _begin(self, exchange: Exchange) -> None:
        self._current = exchange
        self.deadline = 0.0
        self._server.handle(exchange)

    def _next(self) -> None:
        if self._waiting and self._current is None and not self._unread:
            self._begin(self._waiting.popleft())

    def turn_away(self) -> None:
        """Tell a client that there are too many; a client between two requests is just closed."""
        if self._idle:
            self.cut()
            return
        most = self._limits.max_connections
        text = f"{most} clients at once are the most here, {most // SHARE} from one address: send it again later"
        self._server.crowded.warn(f"Refuse {self.peer}: {text}")
        self._refuse(503, text)
        if not self._server.keep_turned_away(self):
            self.close()

    def _too_large(self) -> None:
        flag = "--max-payload-size " if self._most == self._limits.max_payload else ""
        self._refuse(413, f"the body is larger than {flag}{self._most}" + ("" if flag else " bytes"))

    def _refuse(self, status: int, message: str, kind: str = "invalid_request_error") -> None:
        """Answer and close, but not at once: closing with unread data would destroy the answer."""
        if self._refused:
            return
        self._refused = True
        self._body.clear()
        self._buffer = None
        owes = self._current is not None or bool(self._waiting)
        if not owes and self._transport is not None and not self._transport.is_closing():
            body = orjson.dumps(error_body(message, kind, PHRASES[status].decode()))
            self.write(
                b"HTTP/1.1 %d %b\r\n%bconnection: close\r\ncontent-length: %d\r\n\r\n%b"
                % (status, PHRASES[status], JSON, len(body), body)
            )
            if self._transport.can_write_eof():
                self._transport.write_eof()
            self.deadline = self._server.now() + LINGER
        elif owes:
            self._end_behind()
        else:
            self.cut()

    def _end_behind(self) -> None:
        """Answer the earlier requests, then close: what follows is not a request."""
        self._refused = True
        last = self._waiting[-1] if self._waiting else self._current
        if last is not None:
            last.keep_alive = False


class ClientServer:
    """Listens, keeps the set of clients, and gives up on silent ones."""

    def __init__(
        self,
        limits: ClientLimits,
        handler: Callable[[Exchange], None],
        screen: Callable[[bytes, bytes, Headers], Screened],
        lose: Tell,
    ) -> None:
        """`screen` sees method, path and headers of a request before its body is read.

        `lose` is called when the sweep over silent clients has stopped.
        """
        self.limits = limits
        self.screen = screen
        self.handle = handler
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time
        self.connections: dict[ClientConnection, None] = {}  # oldest first
        self.turned_away: dict[ClientConnection, None] = {}  # these read why they are refused, and are then closed
        self.crowded = Throttled()
        self.held = PeerShares(limits.max_payload_memory)  # bytes of request bodies
        self._connected = PeerShares(limits.max_connections)
        self.draining = False
        self._guarded_sweep = guarded(self._sweep, "sweep over silent clients", lose)
        self._listener = AcceptLoop(lambda: ClientConnection(self))
        self._sweeper: asyncio.TimerHandle | None = None

    async def listen(self, host: str, port: int) -> int:
        """Listen and return the port (a free one for port 0). Raise OSError, also if a name cannot be looked up."""
        port = await self._listener.open(host, port)
        self._sweep()
        return port

    def admit(self, connection: ClientConnection) -> bool:
        """Return whether there is room for one more; the oldest client without a request is closed to make room."""
        peer = connection.peer
        if not self._connected.take(peer):
            crowded = self._connected.crowded(peer)
            candidates = (one for one in self.connections if not crowded or one.peer == peer)
            oldest = next((one for one in candidates if one.may_make_room), None)
            if oldest is None:
                return False
            self.dismiss(oldest)
            oldest.turn_away()
            self._connected.take(peer)
        self.connections[connection] = None
        return True

    def keep_turned_away(self, connection: ClientConnection) -> bool:
        """Return whether a refused client may stay to read why: closing while it still sends could lose the answer."""
        if len(self.turned_away) >= max(1, self.limits.max_connections // TURNED_AWAY):
            return False
        self.turned_away[connection] = None
        return True

    def dismiss(self, connection: ClientConnection) -> None:
        self.turned_away.pop(connection, None)
        if connection in self.connections:
            del self.connections[connection]
            self._connected.give(connection.peer)

    def _sweep(self) -> None:
        now = self.now()
        every = (*self.connections, *self.turned_away)
        for connection in [one for one in every if 0.0 < one.deadline < now]:
            connection.expire()
        self._sweeper = self.loop.call_later(1.0, self._guarded_sweep)

    async def drain(self, grace: float) -> int:
        """Refuse new connections and let requests in flight finish. Return how many were left when `grace` ended."""
        self.draining = True
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
        self._listener.close()
        for connection in (*self.connections, *self.turned_away):
            connection.cut()
