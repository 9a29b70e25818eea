"""One attempt of one request: both legs are started together and watched until the client has its answer.

Nothing reaches the client before the prefill has answered 2xx and decode has its first bytes, so until then an attempt
can be discarded. A prefill that fails later is only noted: decode has the KV cache by then.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import orjson

from pdctl.router.body import StreamError, first_event, merge_logprobs, stream_error
from pdctl.router.clients import JSON, error_body
from pdctl.router.log import logger
from pdctl.router.registry import Worker, WorkerRole
from pdctl.router.room_ledger import AttemptOutcome
from pdctl.router.upstream import RouterExhausted, UpstreamError

if TYPE_CHECKING:
    from pdctl.router.body import GenerationBody
    from pdctl.router.clients import Exchange
    from pdctl.router.registry import Worker, WorkerPair
    from pdctl.router.room_ledger import LegRecord, Record
    from pdctl.router.upstream import Connection, Headers, Payload


MAX_ANSWER = 512 << 20  # bytes of an answer that is held until it is complete: as many as of a body
KEEP = 16  # pieces of a prefill's answer: enough for an error; its one token is also the first of decode's
LINGER = 10.0  # seconds a prefill may still send after decode has finished
ROOMS_IN_HEADER = 64  # clients refuse headers of 8 KiB; GET /rooms/{room} lists all rooms
# Valid for one connection only, or set by the router itself.
NOT_PASSED_ON = frozenset((b"connection", b"content-length", b"keep-alive", b"transfer-encoding", b"x-request-id"))


class ClientCall:
    """A client's request as every attempt sees it; `forward` holds the header lines for both workers."""

    __slots__ = ("body", "exchange", "forward", "request_id", "target")

    def __init__(self, exchange: Exchange, body: GenerationBody, request_id: bytes, forward: bytes) -> None:
        self.exchange, self.body, self.request_id, self.forward = exchange, body, request_id, forward
        self.target = exchange.path + b"?" + exchange.query if exchange.query else exchange.path


class LegCause(str, Enum):
    CONNECT = "connect"
    ROUTER = "router_exhausted"  # not the worker's fault
    LOST = "lost"
    STATUS = "status"
    STREAM = "stream_error"
    DEADLINE = "deadline"


@dataclass(frozen=True, slots=True)
class LegFailure:
    """Which leg failed and how; `status` is what the client should get for it.

    `retry_after`: when the client should come back, in the worker's own words; empty if it did not say.
    """

    role: WorkerRole
    worker: Worker
    cause: LegCause
    status: int
    text: str
    retry_after: bytes = b""

    def __str__(self) -> str:
        return f"{self.role.value} {self.worker.url} {self.text}"


class Attempt:
    """`failure` says what went wrong if the outcome is FAILED or BROKEN; `aborted`: the workers to tell to stop."""

    def __init__(
        self,
        call: ClientCall,
        pair: WorkerPair,
        record: Record,
        payload: Payload,
        deadlines: tuple[float, float, float],
        patient: bool = False,
    ) -> None:
        """`deadlines`: monotonic times for the whole request, for the prefill leg, and for the first byte of a stream.

        `patient`: after a leg's failure, wait for the other leg to end by itself (sglang-router 0.3.2; rehearsals).
        """
        self._loop = asyncio.get_running_loop()
        self._call, self._exchange, self._payload = call, call.exchange, payload
        self._whole_by, self._prefill_by, self._first_byte_by = deadlines
        self.pair, self.record = pair, record
        self.keep_prefill = call.body.logprobs
        self.prefill = Leg(self, WorkerRole.PREFILL, pair.prefill, record.prefill_leg)
        self.decode = Leg(self, WorkerRole.DECODE, pair.decode, record.decode_leg)
        self.failure: LegFailure | None = None
        self.aborted: list[Worker] = []
        self._committed = False
        self._patient = patient
        self._last = b""
        self._end: asyncio.Future[AttemptOutcome] = self._loop.create_future()

    async def run(self) -> AttemptOutcome:
        """Run the attempt to its end. On return the client has been answered, unless the outcome is FAILED."""
        self._exchange.on_gone = self._gone
        try:
            self.prefill.start(self._call, self._payload)
            if not self._end.done():
                self.decode.start(self._call, self._payload)
            outcome = await self._end
        except asyncio.CancelledError:
            self._abandon("the router is stopping")
            raise
        finally:
            self._exchange.on_gone = None
        if not self.prefill.over:
            self._loop.call_later(LINGER, self._end_lingering)
        else:
            # Legs and attempt refer to each other: without these references they are freed at once, not by the
            # collector.
            del self.prefill, self.decode
        return outcome

    def check(self, now: float) -> None:
        """Fail a leg that has passed its deadline; called a few times a second."""
        if self._end.done():
            return
        late, text = None, ""
        if now >= self._whole_by:
            late, text = self.decode if self.prefill.over else self.prefill, "did not finish within --request-timeout"
        elif not self.prefill.over and now >= self._prefill_by:
            late, text = self.prefill, "did not finish within --prefill-timeout"
        elif self._call.body.stream and not self._committed and now >= self._first_byte_by:
            late, text = self.decode, "sent no byte within --first-byte-timeout"
        if late is not None:
            if late.cancel(text):
                self.aborted.append(late.worker)
            self.leg_failed(late, LegCause.DEADLINE, 504, text)

    def advance(self) -> None:
        """Answer the client as soon as both legs allow it.

        A streamed token proves that the prefill succeeded: the token came with the KV cache. So a prefill that has not
        answered yet is waited for only while decode has no token to show. (sglang itself sends the head of a stream
        before it knows.)
        """
        prefill, decode = self.prefill, self.decode
        if self._committed or self._end.done() or not decode.ok:
            return
        if not decode.over and not (decode.streams and decode.parts):
            return
        if not prefill.ok and (prefill.status or not first_event(decode.parts)):
            return
        if self.keep_prefill and not prefill.over:
            return
        error = stream_error(decode.parts) if decode.streams and decode.parts else None
        if error is not None and error.status >= 500:
            self._stream_failed(decode, error)
        else:
            self._commit()

    def pipe(self, data: bytes) -> None:
        self._last = data
        self._exchange.write(data)

    def leg_ended(self, leg: Leg) -> None:
        """Handle a complete 2xx answer."""
        if self._committed:
            if leg is self.decode:
                self._exchange.end()
                self._resolve(AttemptOutcome.OK)
            return
        error = stream_error(leg.parts) if leg is self.prefill and leg.streams and leg.parts else None
        if error is not None:
            self._stream_failed(leg, error)
        elif self.failure is not None:  # the other leg had failed earlier, and this one was waited for
            self._give_up(self.failure)
        else:
            self.advance()

    def leg_refused(self, leg: Leg) -> None:
        """Handle a complete answer that is not 2xx."""
        if 400 <= leg.status < 500:
            self._refuse(leg, leg.status, passed_on(leg.headers), b"".join(leg.parts))
            return
        status = leg.status if leg.status in (503, 504) else 502
        detail = leg.text()
        self.leg_failed(leg, LegCause.STATUS, status, f"answered {leg.status}" + (f": {detail}" if detail else ""))

    def leg_failed(self, leg: Leg, cause: LegCause, status: int, text: str) -> None:
        """Handle a leg that will give no usable answer."""
        leg.record.problem = text
        self.pair.stats.leg_failures[leg.role.value, cause.value] += 1
        if self._end.done() or (self._committed and leg is self.prefill):
            for where in self.record.where():
                logger.warning("Late failure %s: %s %s", where, leg.role.value, text)
            return
        self.failure = self.failure or LegFailure(leg.role, leg.worker, cause, status, text, leg.retry_after)
        other = self.decode if leg is self.prefill else self.prefill
        if self._patient and not self._committed and not other.over:
            leg.status = status  # not 2xx: the attempt cannot succeed any more
            return
        self._give_up(self.failure)

    def _give_up(self, failure: LegFailure) -> None:
        self._abandon(f"{failure.role.value} {failure.text}"[:200])
        if self._committed:
            self._break_off(str(failure), failure.status)
            self._resolve(AttemptOutcome.BROKEN)
        else:
            self._resolve(AttemptOutcome.FAILED)

    def _stream_failed(self, leg: Leg, error: StreamError) -> None:
        """Handle an error that came as the first event of a 200: no token has been produced."""
        if error.status < 500:
            self._refuse(
                leg, error.status, JSON, orjson.dumps(error_body(error.message, "invalid_request_error", error.status))
            )
        else:
            status = error.status if error.status in (503, 504) else 502
            self.leg_failed(
                leg, LegCause.STREAM, status, f"ended its stream with {error.status}: {error.message[:500]}"
            )

    def _commit(self) -> None:
        decode, exchange = self.decode, self._exchange
        self._committed = True
        self.record.first_byte = time.monotonic()
        body = decode.parts[0] if len(decode.parts) == 1 else b"".join(decode.parts)
        head = passed_on(decode.headers) + self._pair_headers()
        if decode.over:
            if self.keep_prefill and not decode.streams:
                body = merge_logprobs(b"".join(self.prefill.parts), body)
            exchange.respond(decode.status, head, body)
            self._resolve(AttemptOutcome.OK)
            return
        decode.piping = True
        exchange.source = decode.connection
        exchange.start(decode.status, head, body)
        self._last = body

    def _refuse(self, leg: Leg, status: int, head: bytes, body: bytes) -> None:
        """Pass on a worker's objection to the request itself: any other pair would say the same."""
        self._abandon(f"{leg.role.value} answered {status}")
        self.record.first_byte = time.monotonic()
        self._exchange.respond(
            status, head + self._pair_headers() + b"x-pd-leg: %b\r\n" % leg.role.value.encode(), body
        )
        self._resolve(AttemptOutcome.REFUSED)

    def _pair_headers(self) -> bytes:
        """Return the headers that say which way the request went."""
        rooms = ",".join(map(str, self.record.rooms[:ROOMS_IN_HEADER])).encode()
        return b"%b%b\r\nx-pd-attempts: %d\r\nx-request-id: %b\r\n" % (
            self.pair.head,
            rooms,
            self.record.attempt,
            self._call.request_id,
        )

    def _break_off(self, message: str, status: int) -> None:
        """End a stream with an error event; an event that was cut short is closed first."""
        gap = b"" if self._last.endswith(b"\n\n") else b"\n\n"
        error = orjson.dumps(error_body(message, "upstream_error", status))
        self._exchange.write(b"%bdata: %b\n\ndata: [DONE]\n\n" % (gap, error))
        self._exchange.end()

    def _gone(self) -> None:
        self._abandon("the client left")
        self._resolve(AttemptOutcome.GONE)

    def _abandon(self, why: str) -> None:
        for leg in (self.prefill, self.decode):
            if leg.cancel(why):
                self.aborted.append(leg.worker)

    def _resolve(self, outcome: AttemptOutcome) -> None:
        if not self._end.done():
            self._end.set_result(outcome)

    def _end_lingering(self) -> None:
        text = f"still open {LINGER:g} s after decode had finished"
        if self.prefill.cancel(text):
            self.leg_failed(self.prefill, LegCause.DEADLINE, 504, text)


class Leg:
    """`over`: nothing more will come of it. True before its start and after its end, however it ended."""

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

    def __init__(self, attempt: Attempt, role: WorkerRole, worker: Worker, record: LegRecord) -> None:
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

    def start(self, call: ClientCall, payload: Payload) -> None:
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
                self.worker.wake.set()  # check it now rather than at the next interval
                if isinstance(error, RouterExhausted):
                    self.attempt.leg_failed(self, LegCause.ROUTER, 503, str(error))
                else:
                    self.attempt.leg_failed(self, LegCause.CONNECT, 502, str(error))
            return
        self._connecting = None
        if self.over:  # cancelled at the very moment the connection was made
            self.connection.drop()
        else:
            self.connection.send(head, payload, self)

    def cancel(self, why: str) -> bool:
        """Close the connection. Return whether the leg was still running."""
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
        """Seconds, as the worker wrote them; empty if it sent none or a date."""
        value = next((value for name, value in self.headers if name == b"retry-after"), b"")
        return value if value.isdigit() else b""

    def text(self) -> str:
        """Return the beginning of an error answer."""
        return b"".join(self.parts)[:500].decode("utf-8", "replace").strip()

    def on_head(self, status: int, headers: Headers) -> None:
        self.status = self.record.status = status
        self.record.answered = time.monotonic()
        self.headers = headers
        for name, value in headers:
            if name == b"content-type":
                self.streams = value.startswith(b"text/event-stream")
        if self.role is WorkerRole.PREFILL:
            self.attempt.advance()

    def on_data(self, data: bytes) -> None:
        if self.piping:
            self.attempt.pipe(data)
        elif self.role is WorkerRole.DECODE or self.attempt.keep_prefill or len(self.parts) < KEEP:
            self._held += len(data)
            if self._held > MAX_ANSWER:
                self._refuse_more()
                return
            self.parts.append(data)
            if self.role is WorkerRole.DECODE and self.streams:
                self.attempt.advance()

    def _refuse_more(self) -> None:
        text = f"answered with more than {MAX_ANSWER} bytes"
        self.parts.clear()
        self.cancel(text)
        self.attempt.leg_failed(self, LegCause.LOST, 502, text)

    def on_end(self) -> None:
        self._leave()
        if self.ok:
            self.worker.last_success = self.record.ended
            self.attempt.leg_ended(self)
        else:
            self.attempt.leg_refused(self)

    def on_lost(self, reason: str) -> None:
        self._leave()
        self.attempt.leg_failed(self, LegCause.LOST, 502, reason)


def passed_on(headers: Headers) -> bytes:
    """Return the header lines of a worker's answer that concern the client."""
    return b"".join([b"%b: %b\r\n" % one for one in headers if one[0] not in NOT_PASSED_ON])
