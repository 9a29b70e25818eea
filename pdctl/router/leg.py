"""One of the two requests of an attempt: sent to one worker, read by the attempt."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from pdctl.router.registry import Role, Worker
from pdctl.router.upstream import UpstreamError

if TYPE_CHECKING:
    from pdctl.router.body import Body
    from pdctl.router.ledger import LegRecord
    from pdctl.router.server import Exchange
    from pdctl.router.upstream import Connection, Headers, Payload

MAX_ANSWER = 512 << 20  # bytes of an answer that is held until it is whole: as many as of a body
KEEP = 16  # pieces of a prefill's answer: enough for an error; the one token in it is decode's first


class Cause(str, Enum):
    CONNECT = "connect"
    LOST = "lost"
    STATUS = "status"
    STREAM = "stream_error"
    DEADLINE = "deadline"


@dataclass(frozen=True, slots=True)
class Failure:
    """Which leg failed and how; `status` is what the client should get for it.

    `retry_after`: when the worker would have the client come back, in its own words; empty where it said nothing.
    """

    role: Role
    worker: Worker
    cause: Cause
    status: int
    text: str
    retry_after: bytes = b""

    def __str__(self) -> str:
        return f"{self.role.value} {self.worker.url} {self.text}"


class Call:
    """A client's request as every attempt sees it; `forward` holds the header lines that go on to both workers."""

    __slots__ = ("body", "exchange", "forward", "request_id", "target")

    def __init__(self, exchange: Exchange, body: Body, request_id: bytes, forward: bytes) -> None:
        self.exchange, self.body, self.request_id, self.forward = exchange, body, request_id, forward
        self.target = exchange.path + b"?" + exchange.query if exchange.query else exchange.path


class Watcher(Protocol):
    """The attempt a leg belongs to, as its legs see it."""

    keep_prefill: bool  # the whole answer of the prefill, not its beginning

    def advance(self) -> None: ...
    def pipe(self, data: bytes) -> None: ...
    def leg_ended(self, leg: Leg) -> None: ...
    def leg_refused(self, leg: Leg) -> None: ...
    def leg_failed(self, leg: Leg, cause: Cause, status: int, text: str) -> None: ...


class Leg:
    """`over` while nothing is to come of it: before its start and after its end, whatever that was."""

    __slots__ = (
        "_connecting",
        "_held",
        "attempt",
        "connection",
        "headers",
        "over",
        "parts",
        "piping",
        "record",
        "role",
        "status",
        "streams",
        "worker",
    )

    def __init__(self, attempt: Watcher, role: Role, worker: Worker, record: LegRecord) -> None:
        self.attempt, self.role, self.worker, self.record = attempt, role, worker, record
        self.status = 0
        self.headers: Headers = []
        self.parts: list[bytes] = []
        self._held = 0  # bytes of `parts`
        self.over = True
        self.streams = self.piping = False
        self.connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def start(self, call: Call, payload: Payload) -> None:
        pool = self.worker.pool
        head = b"%b %b HTTP/1.1\r\nhost: %b\r\n%bcontent-length: %d\r\n\r\n" % (
            call.exchange.method,
            call.target,
            pool.authority,
            call.forward,
            sum(map(len, payload)),
        )
        self.over = False
        self.worker.load += 1
        self.connection = pool.take()
        if self.connection is not None:
            self.connection.send(head, payload, self)
        else:
            self._connecting = asyncio.get_running_loop().create_task(self._connect(head, payload))

    async def _connect(self, head: bytes, payload: Payload) -> None:
        try:
            self.connection = await self.worker.pool.connect()
        except UpstreamError as error:
            if not self.over:
                self._leave()
                self.worker.wake.set()  # look at it now rather than at the next interval
                self.attempt.leg_failed(self, Cause.CONNECT, 502, str(error))
            return
        self._connecting = None
        if self.over:  # cancelled in the very moment the connection came about
            self.connection.drop()
        else:
            self.connection.send(head, payload, self)

    def cancel(self, why: str) -> bool:
        """Close the connection; whether there was anything to give up."""
        if self.over:
            return False
        self._leave()
        self.record.problem = self.record.problem or why
        if self._connecting is not None:
            self._connecting.cancel()
        if self.connection is not None:
            self.connection.drop()
        return True

    def _leave(self) -> None:
        self.over = True
        self.worker.load -= 1
        self.record.ended = time.monotonic()

    @property
    def retry_after(self) -> bytes:
        """Seconds, as the worker wrote them; a date is not passed on."""
        value = next((value for name, value in self.headers if name == b"retry-after"), b"")
        return value if value.isdigit() else b""

    def text(self) -> str:
        """The beginning of an error answer."""
        return b"".join(self.parts)[:500].decode("utf-8", "replace").strip()

    # The answer, as the connection reads it.

    def on_head(self, status: int, headers: Headers) -> None:
        self.status = self.record.status = status
        self.record.answered = time.monotonic()
        self.headers = headers
        for name, value in headers:
            if name == b"content-type":
                self.streams = value.startswith(b"text/event-stream")
        if self.role is Role.PREFILL:
            self.attempt.advance()

    def on_data(self, data: bytes) -> None:
        if self.piping:
            self.attempt.pipe(data)
        elif self.role is Role.DECODE or self.attempt.keep_prefill or len(self.parts) < KEEP:
            self._held += len(data)
            if self._held > MAX_ANSWER:
                self._refuse_more()
                return
            self.parts.append(data)
            if self.role is Role.DECODE and self.streams:
                self.attempt.advance()

    def _refuse_more(self) -> None:
        text = f"answered with more than {MAX_ANSWER} bytes"
        self.parts.clear()
        self.cancel(text)
        self.attempt.leg_failed(self, Cause.LOST, 502, text)

    def on_end(self) -> None:
        self._leave()
        if self.ok:
            self.worker.last_success = self.record.ended
            self.attempt.leg_ended(self)
        else:
            self.attempt.leg_refused(self)

    def on_lost(self, reason: str) -> None:
        self._leave()
        self.attempt.leg_failed(self, Cause.LOST, 502, reason)
