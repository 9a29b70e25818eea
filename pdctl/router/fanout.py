"""Questions that the router answers by asking its workers: models, server info, flush, abort, and a canary per pair."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from pdctl.http_auth import SIGNATURE, sign
from pdctl.router.body import Body
from pdctl.router.ledger import Ledger, Outcome, Record
from pdctl.router.log import logger
from pdctl.router.registry import Pair, Registry, Role, Worker
from pdctl.router.upstream import Reply, UpstreamError, ask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.router.args import RouterArgs

CANARY = json.dumps({"text": "Say one word.", "sampling_params": {"max_new_tokens": 1, "temperature": 0}}).encode()


def signed(args: RouterArgs, method: str, target: str, body: bytes) -> bytes:
    """The header line that tells engines of this deployment that its router asks; empty without a secret."""
    if args.secret is None or method == "GET":
        return b""
    return f"{SIGNATURE}: {sign(args.secret, method, target, body)}\r\n".encode()


@dataclass(frozen=True, slots=True)
class Answer:
    """Of one worker: a reply, or why there is none."""

    worker: Worker
    reply: Reply | None
    error: str

    @property
    def ok(self) -> bool:
        return self.reply is not None and self.reply.status == 200

    def value(self) -> object:
        """The JSON it answered; its text where that is not JSON."""
        if self.reply is None:
            return {"error": self.error}
        try:
            return orjson.loads(self.reply.body)
        except orjson.JSONDecodeError:
            return self.reply.text()


class Fanout:
    def __init__(self, args: RouterArgs, registry: Registry, ledger: Ledger) -> None:
        self._args, self._registry, self._ledger = args, registry, ledger
        self._auth = f"authorization: Bearer {args.api_key}\r\n".encode() if args.api_key else b""

    async def every(
        self, method: str, target: str, body: bytes = b"", role: Role | None = None, admin: bool = True
    ) -> list[Answer]:
        """All workers (of a role) at once. `admin`: in the router's own name, not in that of a client."""
        chosen = [one for one in self._registry.workers.values() if role in (None, one.role)]
        return list(await asyncio.gather(*(self._one(worker, method, target, body, admin) for worker in chosen)))

    async def first(self, target: str) -> Answer | None:
        """The first usable worker that answers 200; prefills before decodes."""
        workers = sorted(self._registry.workers.values(), key=lambda one: (not one.usable, one.role is Role.DECODE))
        answer = None
        for worker in workers:
            answer = await self._one(worker, "GET", target, b"")
            if answer.ok:
                break
        return answer

    async def _one(self, worker: Worker, method: str, target: str, body: bytes, admin: bool = True) -> Answer:
        headers = self._auth + (signed(self._args, method, target, body) if admin else b"")
        try:
            reply = await ask(worker.pool, method, target, timeout=self._args.probe_timeout, body=body, headers=headers)
        except UpstreamError as error:
            return Answer(worker, None, str(error))
        return Answer(worker, reply, "")

    async def canaries(self, pairs: Sequence[Pair]) -> list[dict[str, object]]:
        """One real token through each pair, one pair after another; a breaker learns nothing from it."""
        return [await self._canary(pair) for pair in pairs]

    async def _canary(self, pair: Pair) -> dict[str, object]:
        body = Body(b"/generate", CANARY)
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
        self._ledger.close(record, Outcome.OK if passed else Outcome.FAILED, 200 if passed else 502)
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
