"""One attempt of one request: both legs started at once and watched together until the client has its answer.

Nothing reaches the client before the prefill has answered 2xx and decode has its first bytes, so up to there an attempt can
be thrown away. A prefill that fails later is noted only: decode has the KV cache by then.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from enum import Enum

import orjson

from pdctl.router.answers import StreamError, merge_logprobs, stream_error
from pdctl.router.ledger import LegRecord, Outcome, Record
from pdctl.router.log import logger
from pdctl.router.registry import Pair, Role, Worker
from pdctl.router.server import Exchange, error_body
from pdctl.router.upstream import Connection, Headers, UpstreamError
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdctl.router.body import Body

LINGER = 10.0  # seconds a prefill may still talk after decode has finished
KEEP = 16  # pieces of a prefill's answer: enough for an error; the one token in it is decode's first
NOT_PASSED_ON = frozenset((b"connection", b"content-length", b"keep-alive", b"transfer-encoding", b"x-request-id"))


class Cause(str, Enum):
    CONNECT = "connect"
    LOST = "lost"
    STATUS = "status"
    STREAM = "stream_error"
    DEADLINE = "deadline"


@dataclass(frozen=True, slots=True)
class Failure:
    """Which leg failed and how; `status` is what the client should get for it."""

    role: Role
    worker: Worker
    cause: Cause
    status: int
    text: str

    def __str__(self) -> str:
        return f"{self.role.value} {self.worker.url} {self.text}"


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Loop times."""

    request: float
    prefill: float
    first_byte: float


class Call:
    """A client's request as every attempt sees it."""

    __slots__ = ("body", "exchange", "forward", "request_id", "target")

    def __init__(self, exchange: Exchange, body: Body, request_id: bytes, forward: bytes) -> None:
        self.exchange, self.body, self.request_id, self.forward = exchange, body, request_id, forward
        self.target = exchange.path + b"?" + exchange.query if exchange.query else exchange.path


class Leg:
    """One of the two upstream requests. `over` while nothing is to come of it: before its start and after its end."""

    __slots__ = (
        "_connecting",
        "_connection",
        "attempt",
        "head",
        "over",
        "parts",
        "piping",
        "record",
        "role",
        "status",
        "streams",
        "worker",
    )  # fmt: skip

    def __init__(self, attempt: Attempt, role: Role, worker: Worker, record: LegRecord) -> None:
        self.attempt, self.role, self.worker, self.record = attempt, role, worker, record
        self.status = 0
        self.head = b""
        self.parts: list[bytes] = []
        self.over = True
        self.streams = self.piping = False
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def connection(self) -> Connection | None:
        return self._connection

    def start(self, call: Call, payload: bytes) -> None:
        pool = self.worker.pool
        head = b"%b %b HTTP/1.1\r\nhost: %b\r\n%bcontent-length: %d\r\n\r\n" % (
            call.exchange.method, call.target, pool.origin.authority, call.forward, len(payload),
        )  # fmt: skip
        self.over = False
        self.worker.load += 1
        self._connection = pool.take()
        if self._connection is not None:
            self._connection.send(head, payload, self)
        else:
            self._connecting = asyncio.get_running_loop().create_task(self._connect(head, payload))

    async def _connect(self, head: bytes, payload: bytes) -> None:
        try:
            self._connection = await self.worker.pool.connect()
        except UpstreamError as error:
            self._leave()
            self.worker.wake.set()  # look at it now rather than at the next interval
            self.attempt.leg_failed(self, Cause.CONNECT, 502, str(error))
            return
        self._connecting = None
        if self.over:  # cancelled in the very moment the connection came about
            self._connection.drop()
            return
        self._connection.send(head, payload, self)

    def cancel(self, why: str) -> bool:
        """Close the connection; whether there was anything to give up."""
        if self.over:
            return False
        self._leave()
        self.record.problem = self.record.problem or why
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            self._connection.drop()
        return True

    def _leave(self) -> None:
        self.over = True
        self.worker.load -= 1
        self.record.ended_ms = self.attempt.elapsed_ms()

    def text(self) -> str:
        return b"".join(self.parts)[:500].decode("utf-8", "replace").strip()

    # The answer, as the connection reads it.

    def on_head(self, status: int, headers: Headers) -> None:
        self.status = self.record.status = status
        self.record.answered_ms = self.attempt.elapsed_ms()
        lines = []
        for name, value in headers:
            if name == b"content-type":
                self.streams = value.startswith(b"text/event-stream")
            if name not in NOT_PASSED_ON:
                lines.append(b"%b: %b\r\n" % (name, value))
        self.head = b"".join(lines)
        if self.role is Role.PREFILL:
            self.attempt.advance()

    def on_data(self, data: bytes) -> None:
        if self.piping:
            self.attempt.pipe(data)
            return
        if self.role is Role.DECODE:
            self.parts.append(data)
            if self.streams:
                self.attempt.advance()
        elif self.attempt.keep_prefill or len(self.parts) < KEEP:
            self.parts.append(data)

    def on_end(self) -> None:
        self._leave()
        if self.ok:
            self.worker.last_success = self.attempt.now()
            self.attempt.leg_ended(self)
        else:
            self.attempt.leg_refused(self)

    def on_lost(self, reason: str) -> None:
        self._leave()
        self.attempt.leg_failed(self, Cause.LOST, 502, reason)


class Attempt:
    """`failure` says what went wrong when the outcome is FAILED or BROKEN; `aborted` whom to send /abort_request."""

    def __init__(self, call: Call, pair: Pair, record: Record, payload: bytes, deadlines: Deadlines) -> None:
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self._began = time.monotonic()  # the loop's clock stands still within one turn
        self._call, self._exchange, self._payload, self._deadlines = call, call.exchange, payload, deadlines
        self.pair, self.record = pair, record
        self.keep_prefill = call.body.logprobs
        self.prefill = Leg(self, Role.PREFILL, pair.prefill, record.prefill_leg)
        self.decode = Leg(self, Role.DECODE, pair.decode, record.decode_leg)
        self.failure: Failure | None = None
        self.aborted: list[Worker] = []
        self._committed = False
        self._last = b""
        self._timer: asyncio.TimerHandle | None = None
        self._end: asyncio.Future[Outcome] = self._loop.create_future()

    def elapsed_ms(self) -> float:
        return round((time.monotonic() - self._began) * 1000, 3)

    async def run(self) -> Outcome:
        """To the end of the attempt; the client has been answered unless the outcome is FAILED."""
        self._exchange.on_gone = self._gone
        try:
            self.prefill.start(self._call, self._payload)
            if not self._end.done():
                self.decode.start(self._call, self._payload)
                self._arm()
            return await self._end
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._exchange.on_gone = None
            if not self._end.done() or self._end.cancelled():
                self._abandon("the router is stopping")

    # What the legs report.

    def advance(self) -> None:
        """Answer the client as soon as both legs allow it."""
        prefill, decode = self.prefill, self.decode
        if self._committed or self._end.done() or not prefill.ok or not decode.ok:
            return
        if not decode.over and not (decode.streams and decode.parts):
            return
        if self.keep_prefill and not prefill.over:
            return
        for leg in (decode, prefill):
            error = stream_error(leg.parts) if leg.streams and leg.parts else None
            if error is not None and (leg is prefill or error.status >= 500):
                self._stream_failed(leg, error)
                return
        self._commit()

    def pipe(self, data: bytes) -> None:
        self._last = data
        self._exchange.write(data)

    def leg_ended(self, leg: Leg) -> None:
        """A 2xx answer is complete."""
        if leg is self.prefill and not self._committed and leg.streams:
            error = stream_error(leg.parts)
            if error is not None:
                self._stream_failed(leg, error)
                return
        if leg is self.decode and self._committed:
            self._exchange.end()
            self._resolve(Outcome.OK)
        else:
            self.advance()

    def leg_refused(self, leg: Leg) -> None:
        """A complete answer that is not 2xx."""
        if 400 <= leg.status < 500 and not self._committed:
            self._abandon(f"{leg.role.value} answered {leg.status}")
            self.record.first_byte_ms = self.elapsed_ms()
            body = b"".join(leg.parts)
            self._exchange.respond(
                leg.status, leg.head + self._marks() + f"x-pd-leg: {leg.role.value}\r\n".encode(), body
            )
            self._resolve(Outcome.REFUSED)
            return
        status = leg.status if leg.status in (503, 504) else 502
        detail = leg.text()
        self.leg_failed(leg, Cause.STATUS, status, f"answered {leg.status}" + (f": {detail}" if detail else ""))

    def leg_failed(self, leg: Leg, cause: Cause, status: int, text: str) -> None:
        """A leg that will give no usable answer."""
        leg.record.problem = text
        self.pair.stats.leg_failures[leg.role.value, cause.value] += 1
        if self._end.done() or (self._committed and leg is self.prefill):
            logger.warning(
                "Late failure room=%d rid=%s: %s %s %s",
                self.record.rooms[0], self.record.rid, leg.role.value, leg.worker.url, text,
            )  # fmt: skip
            return
        self.failure = Failure(leg.role, leg.worker, cause, status, text)
        self._abandon(f"{leg.role.value} {text}"[:200])
        if self._committed:
            self._break_off(str(self.failure), status)
            self._resolve(Outcome.BROKEN)
        else:
            self._resolve(Outcome.FAILED)

    def _stream_failed(self, leg: Leg, error: StreamError) -> None:
        """An error that came as the first event of a 200: no token has been produced."""
        if error.status < 500:
            self._abandon(f"{leg.role.value} refused the request in its stream")
            self.record.first_byte_ms = self.elapsed_ms()
            body = orjson.dumps(error_body(error.message, "invalid_request_error", error.status))
            head = b"content-type: application/json\r\n" + self._marks() + f"x-pd-leg: {leg.role.value}\r\n".encode()
            self._exchange.respond(error.status, head, body)
            self._resolve(Outcome.REFUSED)
        else:
            status = error.status if error.status in (503, 504) else 502
            self.leg_failed(leg, Cause.STREAM, status, f"ended its stream with {error.status}: {error.message[:500]}")

    # The client.

    def _commit(self) -> None:
        decode, exchange = self.decode, self._exchange
        self._committed = True
        self.record.first_byte_ms = self.elapsed_ms()
        body = decode.parts[0] if len(decode.parts) == 1 else b"".join(decode.parts)
        head = decode.head + self._marks()
        if decode.over:
            if self.keep_prefill and not decode.streams:
                body = merge_logprobs(b"".join(self.prefill.parts), body)
            exchange.respond(decode.status, head, body)
            self._resolve(Outcome.OK)
            return
        decode.piping = True
        exchange.source = decode.connection
        exchange.start(decode.status, head, body)
        self._last = body

    def _marks(self) -> bytes:
        """Which way the request went."""
        rooms = ",".join(map(str, self.record.rooms[:64])).encode()
        return b"%b%b\r\nx-pd-attempts: %d\r\nx-request-id: %b\r\n" % (
            self.pair.head, rooms, self.record.attempt, self._call.request_id,
        )  # fmt: skip

    def _break_off(self, message: str, status: int) -> None:
        """Tell a client in the middle of a stream; an event that was cut short is closed first."""
        gap = b"" if self._last.endswith(b"\n\n") else b"\n\n"
        error = orjson.dumps(error_body(message, "upstream_error", status))
        self._exchange.write(b"%bdata: %b\n\ndata: [DONE]\n\n" % (gap, error))
        self._exchange.end()

    def _gone(self) -> None:
        self._abandon("the client left")
        self._resolve(Outcome.GONE)

    # Ends.

    def _abandon(self, why: str) -> None:
        for leg in (self.prefill, self.decode):
            if leg.cancel(why):
                self.aborted.append(leg.worker)

    def _resolve(self, outcome: Outcome) -> None:
        if self._end.done():
            return
        if outcome is Outcome.OK and not self.prefill.over:
            self._loop.call_later(LINGER, self._end_lingering)
        self._end.set_result(outcome)

    def _end_lingering(self) -> None:
        if self.prefill.cancel(f"still open {LINGER:g} s after decode had finished"):
            self.leg_failed(self.prefill, Cause.DEADLINE, 504, self.prefill.record.problem)

    def _arm(self) -> None:
        due = self._deadlines.request
        if not self.prefill.over:
            due = min(due, self._deadlines.prefill)
        if self._call.body.stream and not self._committed:
            due = min(due, self._deadlines.first_byte)
        self._timer = self._loop.call_at(due, self._expire)

    def _expire(self) -> None:
        now = self.now() + 0.001  # a timer may fire a hair early
        late, text = None, ""
        if now >= self._deadlines.request:
            late, text = self.decode if self.prefill.over else self.prefill, "did not finish within --request-timeout"
        elif not self.prefill.over and now >= self._deadlines.prefill:
            late, text = self.prefill, "did not finish within --prefill-timeout"
        elif self._call.body.stream and not self._committed and now >= self._deadlines.first_byte:
            late, text = self.decode, "sent no byte within --first-byte-timeout"
        if late is not None:
            late.cancel(text)
            self.aborted.append(late.worker)
            self.leg_failed(late, Cause.DEADLINE, 504, text)
        if not self._end.done():
            self._arm()
