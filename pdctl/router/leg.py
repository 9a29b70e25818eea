"""One of the two requests of an attempt, sent to one worker and read by the attempt; what its answer says."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from pdctl.router.registry import Worker, WorkerRole
from pdctl.router.upstream import RouterExhausted, UpstreamError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.router.body import GenerationBody
    from pdctl.router.exchange import Exchange
    from pdctl.router.room_ledger import LegRecord
    from pdctl.router.upstream import Connection, Headers, Payload

MAX_ANSWER = 512 << 20  # bytes of an answer that is held until it is complete: as many as of a body
KEEP = 16  # pieces of a prefill's answer: enough for an error; its one token is also the first of decode's


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

    def __init__(self, attempt: Watcher, role: WorkerRole, worker: Worker, record: LegRecord) -> None:
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


class Watcher(Protocol):
    """The attempt a leg belongs to, as its legs see it."""

    keep_prefill: bool  # keep the prefill's whole answer, not only its beginning

    def advance(self) -> None: ...
    def pipe(self, data: bytes) -> None: ...
    def leg_ended(self, leg: Leg) -> None: ...
    def leg_refused(self, leg: Leg) -> None: ...
    def leg_failed(self, leg: Leg, cause: LegCause, status: int, text: str) -> None: ...


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


@dataclass(frozen=True, slots=True)
class StreamError:
    status: int
    message: str


def first_event(parts: Sequence[bytes]) -> bool:
    """Return whether the stream starts with a complete event that has data."""
    text = parts[0] if len(parts) == 1 else b"".join(parts)
    return text.startswith(b"data:") and b"\n\n" in text


def stream_error(parts: Sequence[bytes]) -> StreamError | None:
    """Return the error that is the first event of a stream, or None if that is no error.

    sglang 0.5.8-0.5.23 answers 200 before it knows the outcome: a failed KV transfer then comes as `{"error": {…,
    "code": 500}}` (OpenAI routes) or as a finish reason `abort` with a status code (/generate). An error without a code
    is the client's own (0.5.8).
    """
    text = parts[0] if len(parts) == 1 else b"".join(parts)
    first = text[: text.find(b"\n\n")] if b"\n\n" in text else text
    if b'"error"' not in first and b'"abort"' not in first:
        return None
    try:
        event = orjson.loads(first.removeprefix(b"data:").strip())
    except orjson.JSONDecodeError:
        return None
    return _error_of(event) if isinstance(event, dict) else None


def _error_of(event: dict[str, Any]) -> StreamError | None:
    error = event.get("error")
    if isinstance(error, dict):
        return StreamError(_status(error.get("code"), 400), str(error.get("message", "")))
    meta = event.get("meta_info")
    reason = meta.get("finish_reason") if isinstance(meta, dict) else None
    if isinstance(reason, dict) and reason.get("type") == "abort" and reason.get("status_code") is not None:
        return StreamError(_status(reason["status_code"], 500), str(reason.get("message", "")))
    return None


def _status(value: object, default: int) -> int:
    return value if isinstance(value, int) and 400 <= value < 600 else default


def merge_logprobs(prefill: bytes, decode: bytes) -> bytes:
    """Return decode's /generate answer with the prompt's logprobs in front, which only the prefill has computed.

    If either answer has another shape, decode's is returned unchanged.
    """
    try:
        theirs, ours = orjson.loads(prefill), orjson.loads(decode)
    except orjson.JSONDecodeError:
        return decode
    if isinstance(theirs, list) and isinstance(ours, list):
        merged = [_merge(one, other) for one, other in zip(theirs, ours, strict=False)]
    else:
        merged = [_merge(theirs, ours)]
    return orjson.dumps(ours) if any(merged) else decode


def _merge(prefill: object, decode: object) -> bool:
    theirs, ours = _meta(prefill), _meta(decode)
    first, second = theirs.get("input_token_logprobs"), ours.get("input_token_logprobs")
    if not isinstance(first, list) or not isinstance(second, list):
        return False
    ours["input_token_logprobs"] = first + second
    return True


def _meta(answer: object) -> dict[str, Any]:
    meta = answer.get("meta_info") if isinstance(answer, dict) else None
    return meta if isinstance(meta, dict) else {}
