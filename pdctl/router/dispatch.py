"""A generation request from its body to its last attempt: pair, rooms, retries, and the choice of a pair."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

import orjson

from pdctl.large_json import LARGE, MAX_WAITING, BadBody, Busy, LargeBodyReader
from pdctl.router.attempt import Attempt, ClientCall, LegCause, LegFailure
from pdctl.router.body import GenerationBody, LargeGenerationBody
from pdctl.router.clients import JSON, Exchange
from pdctl.router.log import line, logger, requests_shown
from pdctl.router.registry import WorkerRole
from pdctl.router.room_ledger import AttemptOutcome, Record, RoomLedger
from pdctl.router.router_args import PolicyName
from pdctl.router.upstream import Headers, UpstreamError, ask
from pdctl.thread_death import guarded

if TYPE_CHECKING:
    from pdctl.router.registry import Registry, Table, Worker, WorkerPair
    from pdctl.router.room_ledger import RouterStats
    from pdctl.router.router_args import RouterArgs
    from pdctl.thread_death import Tell


Prompt = Callable[[], str]
T = TypeVar("T")
BLOCK = 256  # characters of a prompt per remembered prefix
BLOCKS = 64
REMEMBERED = 65536  # prefixes
# Valid between two hops only (RFC 9110 §7.6.1), or set by the router itself.
NOT_FORWARDED = frozenset(
    b"connection content-length expect host keep-alive proxy-authorization proxy-connection te trailer "
    b"transfer-encoding upgrade x-request-id".split()
)
BUSY = f"{MAX_WAITING} large request bodies are waiting to be read already; send it again"
ABORT_TIMEOUT = 2.0  # seconds
DEADLINE_CHECK = 0.25  # seconds between checks of deadlines of requests in flight: a timer per request would cost more
RETRY_AFTER = b"retry-after: 2\r\n"


class Dispatcher:
    def __init__(
        self, args: RouterArgs, registry: Registry, chooser: Chooser, ledger: RoomLedger, stats: RouterStats, lose: Tell
    ) -> None:
        """`lose` is called when the check of deadlines has stopped."""
        self._args, self._registry, self._chooser, self._ledger, self._stats = args, registry, chooser, ledger, stats
        self._loop = asyncio.get_running_loop()
        self._aborts: set[asyncio.Task[None]] = set()
        self._running: set[Attempt] = set()
        self._checking = False
        self._guarded_check = guarded(self._check_deadlines, "check of deadlines", lose)
        self._shown = requests_shown()
        self._reader = LargeBodyReader()

    async def serve(self, exchange: Exchange) -> None:
        """Answer one client, whatever happens to the workers."""
        request_id, forward, encoding = read_headers(exchange.headers)
        try:
            if encoding != b"identity":
                raise BadBody("the body is compressed (content-encoding), but the router has to read it: send it plain")
            raw = exchange.body
            if len(raw) < LARGE:
                body = GenerationBody(exchange.path, bytes(raw))
            else:
                body = await self._reader.read(LargeGenerationBody, exchange.path, raw)
        except Busy:
            head = RETRY_AFTER + b"x-request-id: %b\r\n" % request_id
            exchange.refuse(503, BUSY, "too_many_large_bodies", head)
            return
        except BadBody as error:
            head = b"x-request-id: %b\r\n" % request_id
            exchange.refuse(400, str(error), "invalid_body", head)
            logger.info("Refuse request_id=%s path=%s: %s", request_id.decode(), exchange.path.decode(), error)
            return
        await self._attempts(ClientCall(exchange, body, request_id, forward))

    async def _attempts(self, call: ClientCall) -> None:
        args, give_up = self._args, time.monotonic() + self._args.request_timeout
        tried: list[WorkerPair] = []
        failed: list[Worker] = []
        failure: LegFailure | None = None
        for number in range(1, args.retries + 2):
            if call.exchange.gone:
                self._stats.client_gone += 1
                return
            table = self._registry.table
            if tried:
                others = table.without(tried, failed)
                table = others if others.cycle else table
            if not table.cycle:
                break
            pair = self._chooser.choose(table, call.body.prompt)
            attempt = self._open(call, pair, number, give_up)
            outcome = await attempt.run()
            self._close(call, attempt, outcome)
            failure = attempt.failure
            if failure is None or outcome is not AttemptOutcome.FAILED:
                return
            tried.append(pair)
            failed.append(failure.worker)
            pause = args.retry_backoff * 2 ** (number - 1) * random.uniform(0.8, 1.2)
            if number > args.retries or time.monotonic() + pause >= give_up:
                break
            self._stats.retries += 1
            await self._before_retry(attempt, failure, pause)
        self._give_up(call, failure, len(tried))

    def _open(self, call: ClientCall, pair: WorkerPair, number: int, give_up: float) -> Attempt:
        body, prefill = call.body, pair.prefill
        port = prefill.bootstrap_port
        assert port is not None or self._registry.misled  # a prefill without one is never usable
        rooms = body.rooms()
        while self._ledger.holds(rooms):
            rooms = body.rooms()
        record = Record(
            rooms=rooms,
            request_id=call.request_id.decode(),
            rids=body.rids,
            path=call.exchange.path.decode(),
            stream=body.stream,
            attempt=number,
            prefill=prefill.url,
            decode=pair.decode.url,
            bootstrap=f"{prefill.host}:{port}",
        )
        self._ledger.open(record)
        pair.breaker.begin()
        if self._shown:
            for where in record.where():
                line(f"Dispatch {where} bootstrap={record.bootstrap} path={record.path}")
        now, args = record.began, self._args
        deadlines = (give_up, now + args.prefill_timeout, now + args.first_byte_timeout)
        payload = body.pieces(prefill.host, port, rooms)
        attempt = Attempt(call, pair, record, payload, deadlines, patient=bool(args.rehearse))
        self._running.add(attempt)
        if not self._checking:
            self._checking = True
            self._loop.call_later(DEADLINE_CHECK, self._guarded_check)
        return attempt

    def _close(self, call: ClientCall, attempt: Attempt, outcome: AttemptOutcome) -> None:
        record, pair, failure = attempt.record, attempt.pair, attempt.failure
        self._running.discard(attempt)
        self._ledger.close(record, outcome, call.exchange.status)
        pair.stats.attempts[outcome.value] += 1
        if outcome is AttemptOutcome.OK:
            self._registry.report(pair, failed=False)
            pair.stats.duration.observe(record.ended - record.began)
            pair.stats.first_byte.observe(record.first_byte - record.began)
        elif failure is not None and failure.cause is not LegCause.ROUTER:
            self._registry.report(pair, failed=True)
        else:
            pair.breaker.release()
            self._stats.client_gone += outcome is AttemptOutcome.GONE
        for worker in attempt.aborted:
            self._abort(worker, call.body.rids, record)
        if failure is not None:
            for text in _finish(record):
                logger.warning("%s: %s", text, failure)
        elif self._shown:
            for text in _finish(record):
                line(text)

    def _give_up(self, call: ClientCall, failure: LegFailure | None, attempts: int) -> None:
        """Answer a client whose request no attempt has answered."""
        exchange = call.exchange
        head = b"x-pd-attempts: %d\r\nx-request-id: %b\r\n" % (attempts, call.request_id)
        if failure is None:
            message = "no prefill-decode pair can be used: " + "; ".join(self._registry.obstacles())
            path = exchange.path.decode()
            logger.warning("Refuse request_id=%s path=%s: %s", call.request_id.decode(), path, message)
            exchange.refuse(503, message, "no_pair", RETRY_AFTER + head)
            return
        message = f"{failure} (attempt {attempts} of at most {self._args.retries + 1})"
        code = f"{failure.role.value}_{failure.cause.value}"
        retry = _retry_after(failure) if failure.status == 503 else b""
        exchange.refuse(failure.status, message, code, retry + head, "upstream_error")

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        for attempt in list(self._running):
            attempt.check(now)
        self._checking = bool(self._running)
        if self._checking:
            self._loop.call_later(DEADLINE_CHECK, self._guarded_check)

    async def _before_retry(self, attempt: Attempt, failure: LegFailure, pause: float) -> None:
        """Wait before a retry: an abort still under way must not hit the next attempt, which has the same rid."""
        if attempt.aborted and self._aborts and attempt.record.rids:
            await asyncio.wait(set(self._aborts), timeout=ABORT_TIMEOUT)
        if failure.cause is not LegCause.CONNECT or attempt.record.attempt > 1:
            await asyncio.sleep(pause)

    def _abort(self, worker: Worker, rids: tuple[str, ...], record: Record) -> None:
        for rid in rids:
            # Engines abort every request whose rid starts with this one (sglang 0.5.23 scheduler.abort_request).
            if self._ledger.rid_in_flight(rid, but=record):
                continue
            task = self._loop.create_task(self._post_abort(worker, rid))
            self._aborts.add(task)
            task.add_done_callback(self._aborts.discard)

    async def _post_abort(self, worker: Worker, rid: str) -> None:
        body = orjson.dumps({"rid": rid})
        try:
            headers = self._args.signed("POST", "/abort_request", body)
            await ask(worker.pool, "POST", "/abort_request", timeout=ABORT_TIMEOUT, body=body, headers=headers)
        except UpstreamError as error:
            logger.debug("abort_request rid=%s on %s: %s", rid, worker.url, error)


def read_headers(headers: Headers) -> tuple[bytes, bytes, bytes]:
    """Return the request's id, the header lines for both workers, and the encoding of the body."""
    request_id, encoding, lines, hop, typed = b"", b"identity", [], b"", False
    for name, value in headers:
        if name == b"content-type":
            typed = b"json" in value
            if typed:
                lines.append(b"content-type: %b\r\n" % value)
        elif name not in NOT_FORWARDED:
            lines.append(b"%b: %b\r\n" % (name, value))
            if name == b"content-encoding":
                encoding = value.lower()
        elif name == b"x-request-id":
            request_id = value
        elif name == b"connection":
            hop = value.lower()
    if hop and hop not in (b"keep-alive", b"close"):  # it names more headers that are valid for this hop only
        dropped = tuple(token.strip() + b":" for token in hop.split(b","))
        lines = [one for one in lines if not one.startswith(dropped)]
    if not request_id or len(request_id) > 128 or not all(32 < byte < 127 for byte in request_id):
        request_id = b"%032x" % random.getrandbits(128)  # the client's id is not fit for a header or a log line
    if not typed:  # `curl -d` labels any body a form, which engines refuse; the router has checked that it is JSON
        lines.append(JSON)
    lines.append(b"x-request-id: %b\r\n" % request_id)
    return request_id, b"".join(lines), encoding


def _retry_after(failure: LegFailure) -> bytes:
    """Return the worker's own value if it sent one: it knows its queue best."""
    return b"retry-after: %b\r\n" % failure.retry_after if failure.retry_after else RETRY_AFTER


def _finish(record: Record) -> list[str]:
    leg, began = record.prefill_leg, record.began
    times = (leg.ended or leg.answered, record.first_byte, record.ended)
    prefill, first, total = (f"{(then - began) * 1000:.1f}" if then else "-" for then in times)
    end = (
        f"status={record.status or '-'} outcome={record.outcome.value} prefill_ms={prefill} first_byte_ms={first} "
        f"total_ms={total}"
    )
    return [f"Finish {where} {end}" for where in record.where()]


class Policy(Protocol):
    """Chooses one of `workers` (never empty, all usable, all of one role)."""

    def choose(self, workers: Sequence[Worker], prompt: Prompt) -> Worker: ...


class Random:
    def choose(self, workers: Sequence[Worker], prompt: Prompt) -> Worker:
        return random.choice(workers)


class RoundRobin:
    def __init__(self) -> None:
        self._turn = -1

    def choose(self, workers: Sequence[Worker], prompt: Prompt) -> Worker:
        self._turn += 1
        return workers[self._turn % len(workers)]


class PowerOfTwo:
    """The less loaded of two random workers, by requests in flight on this router."""

    def choose(self, workers: Sequence[Worker], prompt: Prompt) -> Worker:
        if len(workers) == 1:
            return workers[0]
        one, other = random.sample(workers, 2)
        return one if one.load <= other.load else other


class LeastLoad:
    """The least loaded worker; equals take turns."""

    def __init__(self) -> None:
        self._turn = -1

    def choose(self, workers: Sequence[Worker], prompt: Prompt) -> Worker:
        self._turn += 1
        least = min(worker.load for worker in workers)
        idle = [worker for worker in workers if worker.load == least]
        return idle[self._turn % len(idle)]


class CacheAware:
    """The worker that last saw the longest known prefix of the prompt, unless it is much busier than the least loaded.

    A prefix counts only if it covers at least `threshold` of the prompt: a system prompt that all requests share is no
    reason to send them all to one worker.
    """

    def __init__(self, threshold: float, abs_threshold: int, rel_threshold: float) -> None:
        self._threshold = threshold
        self._abs = abs_threshold
        self._rel = rel_threshold
        self._seen: OrderedDict[int, str] = OrderedDict()
        self._fallback = LeastLoad()

    def choose(self, workers: Sequence[Worker], prompt: Prompt) -> Worker:
        prefixes = _prefixes(prompt())
        chosen = self._match(workers, prefixes) or self._fallback.choose(workers, prompt)
        for prefix in prefixes:
            self._seen[prefix] = chosen.id
            self._seen.move_to_end(prefix)
        while len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        return chosen

    def _match(self, workers: Sequence[Worker], prefixes: Sequence[int]) -> Worker | None:
        by_id = {worker.id: worker for worker in workers}
        least = min(worker.load for worker in workers)
        enough = max(1, math.ceil(self._threshold * len(prefixes)))
        for count in range(len(prefixes), enough - 1, -1):
            worker = by_id.get(self._seen.get(prefixes[count - 1], ""))
            if worker is not None:
                crowded = worker.load - least > self._abs and worker.load > self._rel * least
                return None if crowded else worker
        return None


def _prefixes(prompt: str) -> list[int]:
    """Return a hash per prefix that ends at a block boundary, the shortest first; the last block may be partial."""
    value, found = 0, []
    for start in range(0, min(len(prompt), BLOCK * BLOCKS), BLOCK):
        value = hash((value, prompt[start : start + BLOCK]))
        found.append(value)
    return found


class Chooser:
    """The policies of both roles. With round robin on both sides, one cycle over all pairs is walked."""

    def __init__(self, prefill: Policy, decode: Policy) -> None:
        self._prefill = prefill
        self._decode = decode
        self._cycle = isinstance(prefill, RoundRobin) and isinstance(decode, RoundRobin)
        self._turn = -1

    def choose(self, table: Table, prompt: Prompt) -> WorkerPair:
        """Choose one pair of a table that is not empty."""
        if self._cycle:
            self._turn += 1
            return table.cycle[self._turn % len(table.cycle)]
        prefill = self._prefill.choose(table.prefills, prompt)
        partners = table.partners[prefill.id]
        decode = self._decode.choose([pair.decode for pair in partners], prompt)
        return next(pair for pair in partners if pair.decode is decode)


def make_policy(args: RouterArgs, role: WorkerRole) -> Policy:
    """Return a role's policy. Affinity pays where prompts are computed: for decodes cache_aware means least load."""
    name = (args.prefill_policy if role is WorkerRole.PREFILL else args.decode_policy) or args.policy
    if name is PolicyName.RANDOM:
        return Random()
    if name is PolicyName.ROUND_ROBIN:
        return RoundRobin()
    if name is PolicyName.POWER_OF_TWO:
        return PowerOfTwo()
    if role is WorkerRole.DECODE:
        return LeastLoad()
    return CacheAware(args.cache_threshold, args.balance_abs_threshold, args.balance_rel_threshold)
