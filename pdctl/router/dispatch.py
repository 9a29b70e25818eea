"""A generation request from its body to its last attempt: pair, rooms, retries, and what is written down about it."""

from __future__ import annotations

import asyncio
import random

import orjson

from pdctl.router.attempt import Attempt, Call, Cause, Deadlines, Failure
from pdctl.router.body import BadBody, Body
from pdctl.router.ledger import Ledger, Outcome, Record
from pdctl.router.log import logger
from pdctl.router.server import Exchange, error_body
from pdctl.router.upstream import Headers, UpstreamError, ask
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdctl.router.registry import Pair, Registry, Worker
    from pdctl.router.policy import Chooser
    from pdctl.router.metrics import RouterStats
    from pdctl.router.args import RouterArgs

ROUTES = frozenset((b"/generate", b"/v1/chat/completions", b"/v1/completions"))
# Between two hops only (RFC 9110 §7.6.1), or set by the router itself.
NOT_FORWARDED = frozenset((
    b"connection", b"content-length", b"expect", b"host", b"keep-alive", b"proxy-authorization", b"proxy-connection", b"te",
    b"trailer", b"transfer-encoding", b"upgrade", b"x-request-id",
))  # fmt: skip
ABORT_TIMEOUT = 2.0  # seconds
RETRY_AFTER = b"retry-after: 2\r\n"


class Dispatcher:
    def __init__(
        self, args: RouterArgs, registry: Registry, chooser: Chooser, ledger: Ledger, stats: RouterStats
    ) -> None:
        self._args, self._registry, self._chooser, self._ledger, self._stats = args, registry, chooser, ledger, stats
        self._loop = asyncio.get_running_loop()
        self._auth = f"authorization: Bearer {args.api_key}\r\n".encode() if args.api_key else b""
        self._aborts: set[asyncio.Task[None]] = set()

    async def serve(self, exchange: Exchange) -> None:
        """Answer one client, whatever happens to the workers."""
        request_id = _request_id(exchange.header(b"x-request-id"))
        try:
            if (exchange.header(b"content-encoding") or b"identity") != b"identity":
                raise BadBody("the body is compressed (content-encoding); the router must read it: send it plain")
            body = Body(exchange.path, exchange.body)
        except BadBody as error:
            head = b"x-request-id: %b\r\n" % request_id
            exchange.json(400, error_body(str(error), "invalid_request_error", "invalid_body"), head)
            logger.info("Refuse request_id=%s path=%s: %s", request_id.decode(), exchange.path.decode(), error)
            return
        call = Call(exchange, body, request_id, forwarded(exchange.headers, request_id))
        await self._attempts(call)

    async def _attempts(self, call: Call) -> None:
        exchange, args = call.exchange, self._args
        give_up = self._loop.time() + args.request_timeout
        tried: list[Pair] = []
        failed: list[Worker] = []
        failure: Failure | None = None
        for number in range(1, args.retries + 2):
            table = self._registry.table
            if tried:
                table = table.without(tried, failed)
                table = table if table.cycle else self._registry.table
            if not table.cycle:
                break
            pair = self._chooser.choose(table, call.body.prompt)
            attempt = self._open(call, pair, number, give_up)
            outcome = await attempt.run()
            self._close(call, attempt, outcome)
            failure = attempt.failure
            if failure is None or outcome is not Outcome.FAILED:
                return
            tried.append(pair)
            failed.append(failure.worker)
            pause = args.retry_backoff * 2 ** (number - 1) * random.uniform(0.8, 1.2)
            if self._loop.time() + pause >= give_up or number > args.retries:
                break
            self._stats.retries += 1
            await self._settle(attempt, pause)
            if exchange.gone:
                self._stats.client_gone += 1
                return
        self._give_up(call, failure, len(tried))

    def _open(self, call: Call, pair: Pair, number: int, give_up: float) -> Attempt:
        body, prefill = call.body, pair.prefill
        port = prefill.bootstrap_port
        assert port is not None  # a prefill without one is never usable
        rooms = body.rooms()
        while self._ledger.holds(rooms):
            rooms = body.rooms()
        host = prefill.origin.uri_host
        record = Record(
            rooms=rooms, request_id=call.request_id.decode(), rids=body.rids, path=call.exchange.path.decode(),
            stream=body.stream, attempt=number, prefill=prefill.url, decode=pair.decode.url, bootstrap=f"{host}:{port}",
        )  # fmt: skip
        self._ledger.open(record)
        pair.breaker.begin()
        logger.info(
            "Dispatch room=%s rid=%s request_id=%s attempt=%d prefill=%s decode=%s bootstrap=%s path=%s",
            _numbers(rooms), record.rid, record.request_id, number, record.prefill, record.decode, record.bootstrap, record.path,
        )  # fmt: skip
        now = self._loop.time()
        deadlines = Deadlines(give_up, now + self._args.prefill_timeout, now + self._args.first_byte_timeout)
        return Attempt(call, pair, record, body.addressed(host, port, rooms), deadlines)

    def _close(self, call: Call, attempt: Attempt, outcome: Outcome) -> None:
        record, pair, failure = attempt.record, attempt.pair, attempt.failure
        record.outcome, record.status, record.total_ms = outcome, call.exchange.status, attempt.elapsed_ms()
        self._ledger.close(record)
        stats = pair.stats
        stats.attempts[outcome.value] += 1
        if outcome is Outcome.OK:
            self._registry.report(pair, failed=False)
            stats.duration.observe(record.total_ms / 1000)
            stats.first_byte.observe((record.first_byte_ms or 0.0) / 1000)
        elif failure is not None:
            self._registry.report(pair, failed=True)
        else:
            pair.breaker.release()
        if outcome is Outcome.GONE:
            self._stats.client_gone += 1
        for worker in attempt.aborted:
            self._abort(worker, call.body.rids, record)
        say = logger.info if failure is None else logger.warning
        say(
            "Finish room=%s rid=%s request_id=%s attempt=%d prefill=%s decode=%s status=%s outcome=%s prefill_ms=%s "
            "first_byte_ms=%s total_ms=%s%s",
            _numbers(record.rooms), record.rid, record.request_id, record.attempt, record.prefill, record.decode,
            record.status or "-", outcome.value, _ms(record.prefill_leg.ended_ms), _ms(record.first_byte_ms), _ms(record.total_ms),
            f": {failure}" if failure else "",
        )  # fmt: skip

    def _give_up(self, call: Call, failure: Failure | None, attempts: int) -> None:
        """The answer when no attempt gave one."""
        exchange = call.exchange
        head = b"x-pd-attempts: %d\r\nx-request-id: %b\r\n" % (attempts, call.request_id)
        if failure is None:
            obstacles = self._registry.obstacles()
            message = "no prefill-decode pair can be used: " + "; ".join(obstacles)
            logger.warning(
                "Refuse request_id=%s path=%s: %s", call.request_id.decode(), exchange.path.decode(), message
            )
            exchange.json(503, error_body(message, "service_unavailable", "no_pair"), RETRY_AFTER + head)
            return
        message = f"{failure} (attempt {attempts} of at most {self._args.retries + 1})"
        code = f"{failure.role.value}_{failure.cause.value}"
        retry = RETRY_AFTER if failure.status == 503 else b""
        exchange.json(failure.status, error_body(message, "upstream_error", code), retry + head)

    # Ending what was begun on workers.

    async def _settle(self, attempt: Attempt, pause: float) -> None:
        """Before a retry: an abort still under way must not hit the next attempt, which carries the same rid."""
        if attempt.aborted and attempt.record.rids and self._aborts:
            await asyncio.wait(set(self._aborts), timeout=ABORT_TIMEOUT)
        if attempt.failure is None or attempt.failure.cause is not Cause.CONNECT or attempt.record.attempt > 1:
            await asyncio.sleep(pause)

    def _abort(self, worker: Worker, rids: tuple[str, ...], record: Record) -> None:
        for rid in rids:
            # Engines abort every request whose rid begins with this one (sglang 0.5.23 scheduler.abort_request).
            if self._ledger.rid_in_flight(rid, but=record):
                continue
            task = self._loop.create_task(self._post_abort(worker, rid))
            self._aborts.add(task)
            task.add_done_callback(self._aborts.discard)

    async def _post_abort(self, worker: Worker, rid: str) -> None:
        body = orjson.dumps({"rid": rid})
        try:
            await ask(worker.pool, "POST", "/abort_request", timeout=ABORT_TIMEOUT, body=body, headers=self._auth)
        except UpstreamError as error:
            logger.debug("abort_request rid=%s on %s: %s", rid, worker.url, error)


def forwarded(headers: Headers, request_id: bytes) -> bytes:
    """The header lines that go on to both workers."""
    dropped = NOT_FORWARDED
    lines = [b"x-request-id: %b\r\n" % request_id]
    for name, value in headers:
        if name == b"connection" and value.lower() not in (b"keep-alive", b"close"):
            dropped = dropped.union(token.strip() for token in value.lower().split(b","))
    for name, value in headers:
        if name not in dropped:
            lines.append(b"%b: %b\r\n" % (name, value))
    return b"".join(lines)


def _request_id(given: bytes | None) -> bytes:
    """The client's, where it can stand in a log line and a header; else a fresh one."""
    if given and len(given) <= 128 and all(32 < byte < 127 for byte in given):
        return given
    return b"%032x" % random.getrandbits(128)


def _numbers(rooms: tuple[int, ...]) -> str:
    return str(rooms[0]) if len(rooms) == 1 else ",".join(map(str, rooms))


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
