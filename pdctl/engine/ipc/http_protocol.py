"""uvicorn's protocol with limits: time and size of a request's head, rate of its body, number of clients.

uvicorn 0.4x waits forever for the rest of a head, and keeps every header it gets.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, ClassVar, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from pdctl.engine.config.process_log import LogRate
from pdctl.http_auth import MANY_FIELDS, MAX_FIELDS, HeadTooLarge, declared_size, head_problem

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, Scope
    from uvicorn.config import Config
    from uvicorn.server import ServerState

MAX_HEAD = 64 << 10  # bytes of request line and headers
TOO_LARGE = f"The request's line and headers are larger than {MAX_HEAD} bytes."
HEAD_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
)
MAX_TARGET = 8000  # bytes of a path and its query: the least that RFC 9112, 3, wants supported
MAX_FRAMING = 64 << 10  # bytes of chunk sizes, extensions and trailers that a body may have beyond its own size
PATIENCE = 60.0  # seconds for a head; for a body, in addition to its time at MIN_RATE
MIN_RATE = 64 << 10  # bytes per second
MAX_BODY = 32 << 20  # bytes; half a scheduler frame, so that whatever fits here fits there
MAX_PIPELINED = 16  # requests that wait behind one in progress on the same connection
MAX_CONNECTIONS, SHARE = 4096, 2  # one address may hold half of them
refusals = LogRate(logging.getLogger("pdctl.engine"))


class HeadRefusal:
    """An ASGI application that gives one answer and ends the connection."""

    def __init__(self, status: int, reason: str) -> None:
        self._status = status
        self._reason = reason.encode()

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        del scope, receive
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(self._reason)).encode()),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": self._status, "headers": headers, "trailers": False})
        await send({"type": "http.response.body", "body": self._reason, "more_body": False})


class Outgoing:
    """A transport that drops answers to a client that has left: uvloop's own raises once it is closed."""

    __slots__ = ("_transport",)

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)


class SpareConnections:
    """Connections that can be closed to make room for another one, the longest idle first: of all, and of one address.

    Looking for one costs the same however many there are: otherwise connections that find no room would take the time
    of those that have some.
    """

    __slots__ = ("_all", "_by_peer")

    def __init__(self) -> None:
        self._all: dict[BoundedProtocol, None] = {}
        self._by_peer: dict[str, dict[BoundedProtocol, None]] = {}

    def add(self, peer: str, one: BoundedProtocol) -> None:
        """Add a connection as the last one; leave one that is there where it is."""
        if one not in self._all:
            self._all[one] = self._by_peer.setdefault(peer, {})[one] = None

    def discard(self, peer: str, one: BoundedProtocol) -> None:
        if one in self._all:
            del self._all[one], self._by_peer[peer][one]
            if not self._by_peer[peer]:
                del self._by_peer[peer]

    def first(self, peer: str | None = None) -> BoundedProtocol | None:
        """Return the one that has been idle longest, of `peer` if it is given; None if there is none."""
        return next(iter(self._all if peer is None else self._by_peer.get(peer, ())), None)


class BoundedProtocol(HttpToolsProtocol):
    """`held` and `spare` are shared by all connections of the process; `held` counts those of each address."""

    held: ClassVar[Counter[str]] = Counter()
    spare: ClassVar[SpareConnections] = SpareConnections()
    patience: ClassVar[float] = PATIENCE
    most: ClassVar[int] = MAX_CONNECTIONS
    of_one_peer: ClassVar[int] = MAX_CONNECTIONS // SHARE
    largest_body: ClassVar[int] = MAX_BODY  # bytes; a longer one gets no more time than this one

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._served, self.app = self.app, self._run_app
        self._timer: asyncio.TimerHandle | None = None
        self._head = 0  # bytes of an incomplete head, as received
        self._fields = 0  # bytes of a head's target and headers: a head may end in the piece that makes it too large
        self._field_count = 0
        self._in_head = True
        self._wire = self._body = 0  # bytes of an incomplete body: as received, and without chunk framing
        self._peer = ""
        self._counted = False  # whether it is one of those that `held` counts
        self._full = False  # too many requests were sent ahead: what follows is not read, and those before are answered
        self._asked: list[RequestResponseCycle] = []  # those without a complete answer, oldest first

    @classmethod
    def limit(cls, most: int) -> None:
        cls.most, cls.of_one_peer = most, max(1, most // SHARE)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast("asyncio.Transport", Outgoing(transport)))
        self._peer = peer = self.client[0] if self.client else ""
        crowded = self.held[peer] >= self.of_one_peer
        if crowded or sum(self.held.values()) >= self.most:
            spare = self.spare.first(peer if crowded else None)
            if spare is None:
                refusals.warning(
                    "Closed a connection of %s: it holds %d and may hold %d, and all clients hold %d of %d",
                    peer, self.held[peer], self.of_one_peer, sum(self.held.values()), self.most,
                )  # fmt: skip
                transport.abort()
                return
            spare.leave_room()
        self.held[peer] += 1
        self._counted = True
        self._note_room()
        self._expect(self.patience)

    def connection_lost(self, exc: Exception | None) -> None:
        self._unexpect()
        self._uncount()
        super().connection_lost(exc)
        self._leave()
        self._asked.clear()

    def leave_room(self) -> None:
        """End the connection at once, for another one that takes its place."""
        self._uncount()
        self.transport.abort()

    def _uncount(self) -> None:
        if not self._counted:
            return
        self._counted = False
        self.spare.discard(self._peer, self)
        self.held[self._peer] -= 1
        if self.held[self._peer] <= 0:
            del self.held[self._peer]

    def _note_room(self) -> None:
        """Keep `spare` up to date; call it whenever `may_make_room` may have changed."""
        if self._counted and self.may_make_room:
            self.spare.add(self._peer, self)
        else:
            self.spare.discard(self._peer, self)

    def shutdown(self) -> None:
        """End the connection as soon as it owes no answer: the rest of a request would come too late."""
        if self.partial and all(cycle.response_complete or cycle.more_body for cycle in self._asked):
            self.transport.abort()
        else:
            super().shutdown()

    def data_received(self, data: bytes) -> None:
        if self._full:
            return
        if self._in_head:
            self._head += len(data)
        else:
            self._wire += len(data)
        super().data_received(data)
        if self._full:
            return
        if self._in_head and self._head > MAX_HEAD and not self.transport.is_closing():
            self.send_400_response(TOO_LARGE)
        elif (
            not self._in_head and self._wire - self._body > self._body + MAX_FRAMING and not self.transport.is_closing()
        ):
            # A request is running: an error sent now would be taken for its answer.
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        if self._full:
            return
        if self._in_head and not self.idle:  # it would be taken for the answer to the request before
            self._read_no_further()
        elif self._in_head and self._excess_of_head:
            reason = self._excess_of_head.encode()
            self.transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (HEAD_TOO_LARGE, len(reason), reason))
            self.transport.close()
        else:
            super().send_400_response(msg)

    def _read_no_further(self) -> None:
        """Answer the requests that are complete, and end the connection: the client may send again what follows."""
        self._full = True
        self._unexpect()
        self.cycle.keep_alive = False

    def on_url(self, url: bytes) -> None:
        if not self._full:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._full or not self._in_head:  # trailers are ignored: access was decided by the headers
            return
        self._fields += len(name) + len(value) + 3  # the least that the wire has around them
        self._field_count += 1
        if self._excess_of_head:
            raise HeadTooLarge
        super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        if self._full:
            return
        self._body += len(body)
        super().on_body(body)

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED and not self._full:
            self._read_no_further()
        if self._full:
            return
        super().on_message_begin()
        self._in_head = True
        self._fields = self._field_count = 0
        self._expect(self.patience)

    def on_headers_complete(self) -> None:
        if self._full:
            return
        self._in_head, self._head, self._wire, self._body = False, 0, 0, 0
        self._expect(self.patience + min(declared_size(self.headers), self.largest_body) / MIN_RATE)
        before, refusal = self.cycle, self._refusal()
        app, self.app = self.app, refusal or self.app
        super().on_headers_complete()
        self.app = app
        if self.cycle is not None and self.cycle is not before:
            self._asked = [cycle for cycle in self._asked if not cycle.response_complete]
            self._asked.append(self.cycle)
        self._note_room()

    async def _run_app(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Run the application. Cancelled as the server ends, it takes its connection along, without a traceback."""
        try:
            await self._served(scope, receive, send)
        except asyncio.CancelledError:
            self._leave()
            self.transport.abort()

    def _leave(self) -> None:
        """Tell every request that its client has left.

        uvicorn notifies only the newest one; of several sent at once (pipelined) the first is the one that runs.
        """
        for cycle in self._asked:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    @property
    def idle(self) -> bool:
        """Whether no request waits for an answer."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def may_make_room(self) -> bool:
        """Whether this connection may be closed for another one: it waits for no answer."""
        return self.idle

    @property
    def partial(self) -> bool:
        """Whether part of a request is still to come."""
        return self._timer is not None

    @property
    def _excess_of_head(self) -> str:
        """Return what the head that is being parsed has too much of; an empty string if nothing."""
        if self._field_count > MAX_FIELDS:
            return MANY_FIELDS
        return TOO_LARGE if self._fields > MAX_HEAD else ""

    def _refusal(self) -> HeadRefusal | None:
        """Return the application that answers a head that no route should see; None for any other head."""
        if len(self.url) > MAX_TARGET:
            return HeadRefusal(414, f"The request's target is longer than {MAX_TARGET} bytes.")
        problem = head_problem(self.headers, self.parser.get_http_version())
        return HeadRefusal(400, problem) if problem else None

    def on_message_complete(self) -> None:
        if self._full:
            return
        self._unexpect()
        self._in_head = True
        super().on_message_complete()
        self._note_room()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._note_room()

    def _expect(self, seconds: float) -> None:
        """End the connection unless the head or body that has begun is complete within `seconds`."""
        self._unexpect()
        self._timer = self.loop.call_later(seconds, self._late)

    def _unexpect(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self.transport.abort()
