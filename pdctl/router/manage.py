"""Every path that is not a generation: workers, readiness, rooms, metrics, and queries passed on to the workers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, unquote

import orjson

from pdctl.errors import UsageError
from pdctl.router import documents
from pdctl.router.attempt import passed_on
from pdctl.router.body import GenerationBody
from pdctl.router.clients import Exchange
from pdctl.router.documents import CONTENT_TYPE, exposition
from pdctl.router.log import logger
from pdctl.router.registry import PortSource, Registry, Worker, WorkerPair, WorkerRole
from pdctl.router.room_ledger import SCHEMA as ROOMS
from pdctl.router.room_ledger import AttemptOutcome, Record, RoomLedger, RouterStats
from pdctl.router.router_args import Origin
from pdctl.router.upstream import UpstreamError, WorkerReply, ask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.http_auth import Gate
    from pdctl.router.monitor import Monitor
    from pdctl.router.router_args import RouterArgs
    from pdctl.router.server import ClientServer

Handler = Callable[[Exchange, str], Awaitable[None]]
TEXT = b"content-type: text/plain; charset=utf-8\r\n"
HEALTH = "pdctl.router.health_generate/1"
ROOMS_SHOWN = 100
UNSAFE_PATH = "/workers"
UNSAFE = (
    "this router has no API key and no deployment secret, so that only its own machine may add or remove workers; "
    "start it with --api-key-file or --admin-api-key-file, or with --allow-unauthenticated-workers"
)
QUERY = "!$%&'()*+,;=:@/?-._~"  # characters that are not escaped in a query (RFC 3986 §3.4)
MAX_DIGITS = 40  # of a room in a path; the largest room has 20
CANARY = json.dumps({"text": "Say one word.", "sampling_params": {"max_new_tokens": 1, "temperature": 0}}).encode()


class Management:
    """Answers by path. A path or method it does not know is answered 404 or 405."""

    def __init__(
        self,
        args: RouterArgs,
        registry: Registry,
        monitor: Monitor,
        ledger: RoomLedger,
        stats: RouterStats,
        server: ClientServer,
        gate: Gate,
    ) -> None:
        self._args, self._gate = args, gate
        self._registry, self._monitor, self._ledger = registry, monitor, ledger
        self._stats, self._server = stats, server
        self._fanout = Fanout(args, registry, ledger)
        relay: dict[str, Handler] = {"GET": self._relay}
        spread: dict[str, Handler] = {"GET": self._flush_cache, "POST": self._flush_cache}
        self._routes: dict[str, dict[str, Handler]] = {
            "/health": {"GET": self._alive},
            "/liveness": {"GET": self._alive},
            "/readiness": {"GET": self._readiness},
            "/health_generate": {"GET": self._health_generate},
            "/metrics": {"GET": self._metrics},
            "/workers": {"GET": self._list_workers, "POST": self._add_worker},
            "/workers/": {"GET": self._get_worker, "DELETE": self._remove_worker},
            "/rooms": {"GET": self._list_rooms},
            "/rooms/": {"GET": self._get_room},
            "/get_loads": {"GET": self._loads},
            "/get_server_info": {"GET": self._server_info},
            "/server_info": {"GET": self._server_info},
            "/v1/models": relay,
            "/get_model_info": relay,
            "/model_info": relay,
            "/flush_cache": spread,
            "/abort_request": {"POST": self._abort_request},
        }

    def route(self, path: str) -> str:
        """Return the route a path belongs to, for labels and look-up; empty if there is none."""
        if path in self._routes and not path.endswith("/"):
            return path
        head = path[: path.find("/", 1) + 1]
        return head if head in self._routes and len(path) > len(head) else ""

    async def handle(self, exchange: Exchange) -> None:
        path = exchange.path.decode("utf-8", "replace")
        route = self.route(path)
        if not route:
            exchange.refuse(404, f"no such path: {path}", "not_found")
            return
        method = "GET" if exchange.method == b"HEAD" else exchange.method.decode()
        handler = self._routes[route].get(method)
        if handler is None:
            refuse_method(exchange, sorted(self._routes[route]))
            return
        await handler(exchange, unquote(path[len(route) :]))

    async def _alive(self, exchange: Exchange, rest: str) -> None:
        exchange.respond(200, TEXT, b"OK")

    async def _readiness(self, exchange: Exchange, rest: str) -> None:
        document = documents.readiness(self._registry, self._server.draining)
        exchange.json(200 if document["status"] == "ready" else 503, document)

    async def _metrics(self, exchange: Exchange, rest: str) -> None:
        text = exposition(self._registry, self._stats, self._ledger, len(self._server.connections))
        exchange.respond(200, CONTENT_TYPE, text)

    async def _loads(self, exchange: Exchange, rest: str) -> None:
        loads = [
            {"worker": one.url, "load": one.load, "worker_type": one.role.value}
            for one in self._registry.workers.values()
        ]
        exchange.json(200, {"schema": "pdctl.router.loads/1", "workers": loads})

    async def _list_workers(self, exchange: Exchange, rest: str) -> None:
        exchange.json(200, documents.workers(self._registry))

    async def _add_worker(self, exchange: Exchange, rest: str) -> None:
        if self._refuse_stranger(exchange):
            return
        try:
            role, origin, port = _worker_spec(bytes(exchange.body))
        except UsageError as error:
            exchange.refuse(400, f"{error.message}; {error.fix}", "invalid_worker")
            return
        worker = self._registry.add(role, origin, port, PortSource.API)
        if worker is None:
            text = f"{origin.url} is registered already; DELETE it first to change its role or port"
            exchange.refuse(409, text, "worker_exists")
            return
        self._monitor.watch(worker)
        location = f"/workers/{worker.id}"
        body = {"status": "accepted", "worker_id": worker.id, "url": worker.url, "location": location}
        exchange.json(202, body, f"location: {location}\r\n".encode())

    async def _get_worker(self, exchange: Exchange, rest: str) -> None:
        worker = self._find(rest)
        if worker is None:
            _no_worker(exchange, rest)
        else:
            exchange.json(200, {"schema": documents.WORKERS, **documents.worker(worker, self._registry)})

    async def _remove_worker(self, exchange: Exchange, rest: str) -> None:
        if self._refuse_stranger(exchange):
            return
        worker = self._find(rest)
        if worker is None:
            _no_worker(exchange, rest)
            return
        self._registry.remove(worker)
        exchange.json(202, {"status": "accepted", "worker_id": worker.id, "url": worker.url, "in_flight": worker.load})

    def _refuse_stranger(self, exchange: Exchange) -> bool:
        """Refuse a change of the workers unless it may be made, and return whether it was refused.

        With neither key nor secret, only this machine may make it.
        """
        if not self._gate.open or self._args.allow_unauthenticated_workers or exchange.from_this_machine:
            return False
        logger.warning("Refuse %s %s from %s: no key is set", exchange.method.decode(), UNSAFE_PATH, exchange.peer)
        exchange.refuse(403, UNSAFE, "no_key_configured")
        return True

    def _find(self, name: str) -> Worker | None:
        """Return a worker by id or by URL."""
        known = self._registry.workers
        return known.get(name) or next((one for one in known.values() if one.url == name.rstrip("/")), None)

    async def _list_rooms(self, exchange: Exchange, rest: str) -> None:
        """List rooms, newest first. Query: `limit`; filters `outcome`, `prefill`, `decode`, `rid`, `request_id`.

        Whoever knows a rid may abort its request, so that only an admin, or who names it, is shown one.
        """
        query = {name: values[-1] for name, values in parse_qs(exchange.query.decode("utf-8", "replace")).items()}
        limit = query.pop("limit", str(ROOMS_SHOWN))
        if not (limit.isascii() and limit.isdigit() and len(limit) <= MAX_DIGITS):
            exchange.refuse(400, f"limit={limit[:80]}: a whole number from 0 on is expected", "invalid_query")
            return
        show_rids = exchange.admin or "rid" in query
        found: list[dict[str, object]] = []
        for record in self._ledger.records():
            if len(found) >= int(limit):
                break
            document = record.document()
            if all(str(document.get(name)) == value for name, value in query.items()):
                found.append(document if show_rids else {**document, "rid": None})
        exchange.json(200, {"schema": ROOMS, "rooms": found, "in_flight": self._ledger.running})

    async def _get_room(self, exchange: Exchange, rest: str) -> None:
        room = _room(rest)
        record = self._ledger.find(room) if room is not None else None
        if room is None:
            text = f"{rest[:80]!r} is not a room: give it in decimal, or in hexadecimal with 0x"
            exchange.refuse(400, text, "invalid_room")
        elif record is None:
            text = f"room {room} is neither in flight nor among the last that ended"
            exchange.refuse(404, text, "unknown_room")
        else:
            document = record.document()
            if not exchange.admin:
                document["rid"] = None
            exchange.json(200, {"schema": ROOMS, **document, "asked": room})

    async def _health_generate(self, exchange: Exchange, rest: str) -> None:
        """Send one token through one pair, or through each with `?pairs=all`."""
        pairs = self._registry.table.cycle
        if exchange.query != b"pairs=all":
            pairs = pairs[:1]
        results = await self._fanout.canaries(pairs)
        good = bool(results) and all(one["ok"] for one in results)
        reasons = [] if results else self._registry.obstacles()
        status = "ok" if good else "failed"
        exchange.json(200 if good else 503, {"schema": HEALTH, "status": status, "pairs": results, "reasons": reasons})

    async def _relay(self, exchange: Exchange, rest: str) -> None:
        """Pass on the first worker's answer; a worker of sglang 0.5.3 knows only the get_ spelling."""
        target = exchange.path.decode()
        answer = await self._fanout.first(target)
        if target == "/model_info" and answer is not None and answer.reply is not None and answer.reply.status == 404:
            answer = await self._fanout.first("/get_model_info")
        if answer is None or answer.reply is None:
            reason = "no worker is registered" if answer is None else f"{answer.worker.url} {answer.error}"
            exchange.refuse(503, reason, "no_worker")
        else:
            exchange.respond(answer.reply.status, passed_on(answer.reply.headers), answer.reply.body)

    async def _server_info(self, exchange: Exchange, rest: str) -> None:
        """Return every worker's own, by role (the shape of mini_lb, which benchmark clients read)."""
        found: dict[str, list[Any]] = {}
        every: list[WorkerAnswer] = []
        for role in WorkerRole:
            answers = await self._fanout.every("GET", "/server_info", role=role)
            if any(one.reply is not None and one.reply.status == 404 for one in answers):
                answers = await self._fanout.every("GET", "/get_server_info", role=role)
            found[role.value] = [one.value() for one in answers]
            every += answers
        states = [
            state for one in found["decode"] if isinstance(one, dict) for state in one.get("internal_states") or ()
        ]
        head = {"schema": "pdctl.router.server_info/1", **documents.rehearsal(self._registry)}
        status = 200 if not every or any(one.ok for one in every) else _failure(every)
        exchange.json(status, {**head, **found, "internal_states": states})

    async def _flush_cache(self, exchange: Exchange, rest: str) -> None:
        query = "?" + quote(exchange.query, safe=QUERY) if exchange.query else ""
        _report(exchange, await self._fanout.every("POST", "/flush_cache" + query))

    async def _abort_request(self, exchange: Exchange, rest: str) -> None:
        body = bytes(exchange.body)
        _report(exchange, await self._fanout.every("POST", "/abort_request", body, admin=exchange.admin))


def refuse_method(exchange: Exchange, allowed: list[str]) -> None:
    text = f"{exchange.method.decode()} is not allowed on {exchange.path.decode('utf-8', 'replace')}"
    head = f"allow: {', '.join(allowed)}\r\n".encode()
    exchange.refuse(405, text, "method_not_allowed", head)


def _report(exchange: Exchange, answers: list[WorkerAnswer]) -> None:
    results = [
        {"worker": one.worker.url, "status": one.reply.status if one.reply else None, "answer": one.value()}
        for one in answers
    ]
    good = bool(answers) and all(one.ok for one in answers)
    body = {"schema": "pdctl.router.manage/1", "success": good, "workers": results}
    exchange.json(200 if good else _failure(answers), body)


def _failure(answers: list[WorkerAnswer]) -> int:
    """Return the status for failures at some workers: their own if all are 4xx, as for a generation, else 502."""
    failed = [one.reply.status if one.reply else 502 for one in answers if not one.ok]
    return failed[0] if failed and all(400 <= status < 500 for status in failed) else 502


def _worker_spec(raw: bytes) -> tuple[WorkerRole, Origin, int | None]:
    try:
        spec = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise UsageError(
            f"the body is not valid JSON: {error}", 'send {"url", "worker_type", "bootstrap_port"}'
        ) from None
    if not isinstance(spec, dict) or not isinstance(spec.get("url"), str):
        raise UsageError("`url` is missing", 'send {"url", "worker_type", "bootstrap_port"}')
    kind, port = spec.get("worker_type"), spec.get("bootstrap_port")
    if kind not in (WorkerRole.PREFILL.value, WorkerRole.DECODE.value):
        raise UsageError(f"worker_type {kind!r}", "it is prefill or decode")
    if port is not None and not (isinstance(port, int) and not isinstance(port, bool) and 0 < port < 65536):
        raise UsageError(f"bootstrap_port {port!r}", "it is 1 to 65535, or left out to be read from the prefill")
    if port is not None and kind == WorkerRole.DECODE.value:
        raise UsageError("a decode has no bootstrap port", "leave it out")
    return WorkerRole(kind), Origin.parse(spec["url"]), port


def _no_worker(exchange: Exchange, name: str) -> None:
    exchange.refuse(404, f"no worker {name!r}; GET /workers lists them", "no_worker")


def _room(text: str) -> int | None:
    digits, base = (text[2:], 16) if text[:2].lower() == "0x" else (text, 10)
    if base == 10 and not text.isdigit():
        base = 16  # as some logs print it
    if len(digits) > MAX_DIGITS:
        return None
    try:
        return int(digits, base)
    except ValueError:
        return None


class Fanout:
    def __init__(self, args: RouterArgs, registry: Registry, ledger: RoomLedger) -> None:
        self._args, self._registry, self._ledger = args, registry, ledger

    async def every(
        self, method: str, target: str, body: bytes = b"", role: WorkerRole | None = None, admin: bool = True
    ) -> list[WorkerAnswer]:
        """Ask all workers (of a role) at once. `admin`: in the router's own name, not in that of a client."""
        chosen = [one for one in self._registry.workers.values() if role in (None, one.role)]
        return list(await asyncio.gather(*(self._one(worker, method, target, body, admin) for worker in chosen)))

    async def first(self, target: str) -> WorkerAnswer | None:
        """Return the first 200 answer, asking usable workers and prefills first; if there is none, the first answer."""
        workers = sorted(
            self._registry.workers.values(), key=lambda one: (not one.usable, one.role is WorkerRole.DECODE)
        )
        best = None
        for worker in workers:
            answer = await self._one(worker, "GET", target, b"")
            if answer.ok:
                return answer
            if best is None or best.reply is None:
                best = answer
        return best

    async def _one(self, worker: Worker, method: str, target: str, body: bytes, admin: bool = True) -> WorkerAnswer:
        headers = self._args.signed(method, target, body) if admin else self._args.bearer
        try:
            reply = await ask(worker.pool, method, target, timeout=self._args.probe_timeout, body=body, headers=headers)
        except UpstreamError as error:
            return WorkerAnswer(worker, None, str(error))
        return WorkerAnswer(worker, reply, "")

    async def canaries(self, pairs: Sequence[WorkerPair]) -> list[dict[str, object]]:
        """Send one real token through each pair, one pair after another; breakers are not affected."""
        return [await self._canary(pair) for pair in pairs]

    async def _canary(self, pair: WorkerPair) -> dict[str, object]:
        body = GenerationBody(b"/generate", CANARY)
        rooms, port = body.rooms(), pair.prefill.bootstrap_port
        host = pair.prefill.origin.uri_host
        record = Record(
            rooms=rooms, request_id=f"canary-{rooms[0]}", rids=(), path="/generate", stream=False, attempt=1,
            prefill=pair.prefill.url, decode=pair.decode.url, bootstrap=f"{host}:{port}",
        )  # fmt: skip
        self._ledger.open(record)
        payload = body.addressed(host, port, rooms)
        legs = (self._one(worker, "POST", "/generate", payload) for worker in (pair.prefill, pair.decode))
        answers = await asyncio.gather(*legs)
        passed = all(answer.ok for answer in answers)
        self._ledger.close(record, AttemptOutcome.OK if passed else AttemptOutcome.FAILED, 200 if passed else 502)
        logger.info(
            "Canary room=%d prefill=%s decode=%s %s", rooms[0], record.prefill, record.decode, record.outcome.value
        )
        problems = [
            f"{one.worker.role.value} {one.worker.url}: {one.error or one.value()}" for one in answers if not one.ok
        ]
        return {
            "prefill": record.prefill,
            "decode": record.decode,
            "room": rooms[0],
            "ok": passed,
            "problems": problems,
        }


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """One worker's reply, or why there is none."""

    worker: Worker
    reply: WorkerReply | None
    error: str

    @property
    def ok(self) -> bool:
        return self.reply is not None and self.reply.status == 200

    def value(self) -> object:
        """Return the JSON it answered, or its text if that is not JSON."""
        if self.reply is None:
            return {"error": self.error}
        try:
            return orjson.loads(self.reply.body)
        except orjson.JSONDecodeError:
            return self.reply.text()
