"""One task per worker: looks at it until it may be used, then checks its health, and starts over when that fails."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from pdctl.router.log import logger
from pdctl.router.probe import Rejected, check_health, examine
from pdctl.router.registry import Registry, Role, Worker
from pdctl.router.upstream import Unreachable, UpstreamError, ask
from pdctl.thread_death import guard_task

if TYPE_CHECKING:
    from pdctl.router.args import RouterArgs
    from pdctl.thread_death import Tell


OWN = "pdctl-"  # how the version of pdctl's engine begins, in its /server_info
READY = "/ready"  # its own route: from memory, without a forward pass


class Monitor:
    def __init__(self, args: RouterArgs, registry: Registry, lose: Tell) -> None:
        """`lose`: told when a worker is watched no more although it is still listed."""
        self._lose = lose
        self._args = args
        self._registry = registry
        self._auth = f"authorization: Bearer {args.api_key}\r\n".encode() if args.api_key else b""
        self._tasks: set[asyncio.Task[None]] = set()

    def watch(self, worker: Worker) -> None:
        """From now until the worker is removed."""
        task = asyncio.get_running_loop().create_task(self._watch(worker), name=f"monitor {worker.url}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        guard_task(task, f"monitor of {worker.url}", self._lose, may_end=True)

    async def close(self) -> None:
        """After the workers were removed: a cancellation alone can be lost in `wait_for` before Python 3.12."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _watch(self, worker: Worker) -> None:
        while worker.id in self._registry.workers:
            worker.wake.clear()
            if worker.usable:
                await self._check(worker)
            else:
                await self._examine(worker)
            worker.pool.sweep()
            pause = self._args.health_interval if worker.usable else self._args.probe_interval
            if worker.usable and worker.failed_checks:
                pause = min(pause, self._args.probe_interval)
            if not await self._woken(worker, pause):
                continue
            # Woken by a refused connection or a removal. Many requests may fail at once: one look serves them all.
            await asyncio.sleep(min(0.1, pause))

    async def _woken(self, worker: Worker, pause: float) -> bool:
        """Wait for `pause` seconds, and see meanwhile that the worker is not gone; True when it was woken before."""
        loop = asyncio.get_running_loop()
        end = loop.time() + pause
        while (left := end - loop.time()) > 0:
            asks = worker.usable and worker.facts.version.startswith(OWN)
            try:
                await asyncio.wait_for(worker.wake.wait(), min(left, self._args.liveness_interval) if asks else left)
            except asyncio.TimeoutError:
                why = await self._gone(worker) if asks and left > self._args.liveness_interval else ""
            else:
                return True
            if why and worker.usable and worker.id in self._registry.workers:
                worker.good_checks = 0
                self._registry.set_usable(worker, False, why)
                return False
        return False

    async def _gone(self, worker: Worker) -> str:
        """Why no request can be served there any more; a slow answer is no reason, /health has its own patience."""
        try:
            reply = await ask(worker.pool, "GET", READY, timeout=self._args.health_timeout, headers=self._auth)
        except Unreachable as error:
            return str(error)
        except UpstreamError:
            return ""
        return f"{READY} answered 503 {reply.text(100)}".rstrip() if reply.status == 503 else ""

    async def _examine(self, worker: Worker) -> None:
        try:
            found = await examine(worker, self._args, self._auth)
            if not self._registry.misled:
                self._check_twins(worker, found.bootstrap_port)
        except Rejected as error:
            worker.good_checks = 0
            if worker.id in self._registry.workers:
                self._registry.set_usable(worker, False, str(error))
            return
        worker.facts = found.facts
        worker.bootstrap_port, worker.port_source = found.bootstrap_port, found.port_source
        worker.good_checks += 1
        worker.failed_checks = 0
        if worker.id not in self._registry.workers:
            return
        needed = self._args.health_success_threshold
        if worker.good_checks >= needed:
            self._registry.set_usable(worker, True, found.note)
        else:
            self._registry.set_usable(worker, False, f"{worker.good_checks} of {needed} good health checks")

    def _check_twins(self, worker: Worker, port: int | None) -> None:
        """Two prefills cannot share a bootstrap server: decode would fetch both's KV cache from one of them."""
        for other in self._registry.of(Role.PREFILL):
            same = (other.host, other.bootstrap_port) == (worker.host, port)
            if same and other is not worker and other.usable:
                raise Rejected(f"bootstrap address {worker.host}:{port} is already that of {other.url}")

    async def _check(self, worker: Worker) -> None:
        asked = time.monotonic()
        try:
            await check_health(worker, self._args)
        except UpstreamError as error:
            if worker.last_success > asked:
                return  # busy, not ill: it answered a client while it kept the check waiting
            worker.failed_checks += 1
            worker.good_checks = 0
            logger.info("Health check %d failed: %s %s %s", worker.failed_checks, worker.role.value, worker.url, error)
            if worker.failed_checks >= self._args.health_failure_threshold and worker.id in self._registry.workers:
                self._registry.set_usable(
                    worker, False, f"{worker.failed_checks} health checks failed in a row: {error}"
                )
        else:
            worker.failed_checks = 0
