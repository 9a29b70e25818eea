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
from pdctl.http_auth import declared_size, head_problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, Scope
    from uvicorn.config import Config
    from uvicorn.server import ServerState

MAX_HEAD = 64 << 10  # bytes of request line and headers
TOO_LARGE = f"The request's line and headers are larger than {MAX_HEAD} bytes."
MAX_TARGET = 8000  # bytes of a path and its query: the least that RFC 9112, 3, wants supported
MAX_FRAMING = 64 << 10  # bytes of chunk sizes, extensions and trailers that a body may have beyond its own size
PATIENCE = 60.0  # seconds for a head; for a body, in addition to its time at MIN_RATE
MIN_RATE = 64 << 10  # bytes per second
MAX_BODY = 32 << 20  # bytes; half a scheduler frame, so that whatever fits here fits there
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


class BoundedProtocol(HttpToolsProtocol):
    """`held` is shared by all connections of the process, and counts those of each address."""

    held: ClassVar[Counter[str]] = Counter()
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
        self._in_head = True
        self._wire = self._body = 0  # bytes of an incomplete body: as received, and without chunk framing
        self._peer = ""
        self._asked: list[RequestResponseCycle] = []  # those without a complete answer, oldest first

    @classmethod
    def limit(cls, most: int) -> None:
        cls.most, cls.of_one_peer = most, max(1, most // SHARE)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast("asyncio.Transport", Outgoing(transport)))
        peer = self.client[0] if self.client else ""
        if sum(self.held.values()) >= self.most or self.held[peer] >= self.of_one_peer:
            idle = self._least_missed(peer)
            if idle is None:
                refusals.warning(
                    "Closed a connection of %s: it holds %d and may hold %d, and all clients hold %d of %d",
                    peer, self.held[peer], self.of_one_peer, sum(self.held.values()), self.most,
                )  # fmt: skip
                transport.abort()
                return
            idle.transport.abort()
        self._peer = peer
        self.held[peer] += 1
        self._expect(self.patience)

    def connection_lost(self, exc: Exception | None) -> None:
        self._unexpect()
        if self._peer:
            self.held[self._peer] -= 1
            if self.held[self._peer] <= 0:
                del self.held[self._peer]
            self._peer = ""
        super().connection_lost(exc)
        self._leave()
        self._asked.clear()

    def shutdown(self) -> None:
        """End the connection as soon as it owes no answer: the rest of a request would come too late."""
        if self.partial and all(cycle.response_complete or cycle.more_body for cycle in self._asked):
            self.transport.abort()
        else:
            super().shutdown()

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head += len(data)
        else:
            self._wire += len(data)
        super().data_received(data)
        if self._in_head and self._head > MAX_HEAD and not self.transport.is_closing():
            self.send_400_response(TOO_LARGE)
        elif (
            not self._in_head and self._wire - self._body > self._body + MAX_FRAMING and not self.transport.is_closing()
        ):
            # A request is running: an error sent now would be taken for its answer.
            self.transport.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:  # trailers are ignored: access was decided by the headers
            return
        self._fields += len(name) + len(value) + 3  # the least that the wire has around them
        if self._fields <= MAX_HEAD:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        super().on_body(body)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._fields = 0
        self._expect(self.patience)

    def on_headers_complete(self) -> None:
        self._in_head, self._head, self._wire, self._body = False, 0, 0, 0
        self._expect(self.patience + min(declared_size(self.headers), self.largest_body) / MIN_RATE)
        before, refusal = self.cycle, self._refusal()
        app, self.app = self.app, refusal or self.app
        super().on_headers_complete()
        self.app = app
        if self.cycle is not None and self.cycle is not before:
            self._asked = [cycle for cycle in self._asked if not cycle.response_complete]
            self._asked.append(self.cycle)

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

    def _least_missed(self, peer: str) -> BoundedProtocol | None:
        """Return a connection of `peer` that may make room for another one: one that waits for no answer."""
        return next((one for one in self._of(peer) if one.idle), None)

    def _of(self, peer: str) -> Iterator[BoundedProtocol]:
        return (one for one in list(self.connections) if isinstance(one, BoundedProtocol) and one._peer == peer)

    @property
    def idle(self) -> bool:
        """Whether no request waits for an answer."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def partial(self) -> bool:
        """Whether part of a request is still to come."""
        return self._timer is not None

    def _refusal(self) -> HeadRefusal | None:
        """Return the application that answers a head that no route should see; None for any other head."""
        if self._fields > MAX_HEAD:
            return HeadRefusal(431, TOO_LARGE)
        if len(self.url) > MAX_TARGET:
            return HeadRefusal(414, f"The request's target is longer than {MAX_TARGET} bytes.")
        problem = head_problem(self.headers, self.parser.get_http_version())
        return HeadRefusal(400, problem) if problem else None

    def on_message_complete(self) -> None:
        self._unexpect()
        self._in_head = True
        super().on_message_complete()

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
