"""One task per worker: examines it until it may be used, then checks its health, and starts over when that fails.

Examined are its role and, for a prefill, the bootstrap port and the server that answers there.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.router.log import logger
from pdctl.router.registry import PortSource, Registry, Worker, WorkerFacts, WorkerRole
from pdctl.router.router_args import BootstrapCheck, Origin, RouterArgs, misleads
from pdctl.router.upstream import ConnectionPool, RouterExhausted, Unreachable, UpstreamError, ask
from pdctl.thread_death import guard_task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.thread_death import Tell

OWN = "pdctl-"  # the beginning of the version that pdctl's engine reports in /server_info
READY = "/ready"  # its own route: answered from memory, without a forward pass
# sglang 0.5.3 has only the second; 0.5.8 on has both and warns about the second.
INFO_PATHS = ("/server_info", "/get_server_info")
# The "all -1" query asks for the topology. The parameter names changed after 0.5.8; a query in the other style gets
# 400.
TOPOLOGY_QUERIES = (
    "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1",
    "/route?engine_rank=-1&target_dp_group=-1&target_pp_rank=-1",
)


class Monitor:
    def __init__(self, args: RouterArgs, registry: Registry, lose: Tell) -> None:
        """`lose` is called if the monitoring of a worker ends while the worker is still listed."""
        self._lose = lose
        self._args = args
        self._registry = registry
        self._tasks: set[asyncio.Task[None]] = set()

    def watch(self, worker: Worker) -> None:
        """Monitor the worker until it is removed."""
        task = asyncio.get_running_loop().create_task(self._watch(worker), name=f"monitor {worker.url}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        guard_task(task, f"monitor of {worker.url}", self._lose, may_end=True)

    async def close(self) -> None:
        """Stop all tasks, after the workers were removed: before Python 3.12 `wait_for` can lose a cancellation."""
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
            if not await self._wait(worker, pause):
                continue
            # Woken by a refused connection or a removal. Many requests may fail at once: one check serves them all.
            await asyncio.sleep(min(0.1, pause))

    async def _wait(self, worker: Worker, pause: float) -> bool:
        """Wait for `pause` seconds, and check meanwhile that the worker is alive. Return True if woken early."""
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
        """Return why it can serve no request any more. A slow answer is no reason: /health has its own patience."""
        try:
            reply = await ask(worker.pool, "GET", READY, timeout=self._args.health_timeout, headers=self._args.bearer)
        except Unreachable as error:
            return str(error)
        except UpstreamError:
            return ""
        return f"{READY} answered 503 {reply.text(100)}".rstrip() if reply.status == 503 else ""

    async def _examine(self, worker: Worker) -> None:
        try:
            found = await examine(worker, self._args)
            if not self._registry.misled:
                self._check_bootstrap_address(worker, found.bootstrap_port)
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

    def _check_bootstrap_address(self, worker: Worker, port: int | None) -> None:
        """Raise Rejected if two prefills share a bootstrap server: decode would fetch both KV caches from one."""
        for other in self._registry.of(WorkerRole.PREFILL):
            same = (other.host, other.bootstrap_port) == (worker.host, port)
            if same and other is not worker and other.usable:
                raise Rejected(f"bootstrap address {worker.host}:{port} is already that of {other.url}")

    async def _check(self, worker: Worker) -> None:
        asked = time.monotonic()
        try:
            await check_health(worker, self._args)
        except RouterExhausted:
            return  # says nothing about the worker
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


async def check_health(worker: Worker, args: RouterArgs) -> None:
    """Raise UpstreamError unless the worker answers 200 in time."""
    try:
        reply = await ask(worker.pool, "GET", args.health_path, timeout=args.health_timeout)
    except RouterExhausted:
        raise
    except UpstreamError as error:
        raise UpstreamError(f"{args.health_path}: {error}") from None
    if reply.status != 200:
        raise UpstreamError(f"{args.health_path} answered {reply.status} {reply.text(100)}".rstrip())


async def examine(worker: Worker, args: RouterArgs) -> Findings:
    """Return what may be relied on about this worker. Raise Rejected if it cannot be routed to."""
    info = await _server_info(worker.pool, args)
    facts = _facts(info)
    if misleads(args.rehearse):  # what a worker reports is shown but not used, as in sglang-router 0.3.2
        await _check_health(worker, args)
        return Findings(facts, worker.given_port, worker.port_source)
    _check_role(worker, facts)
    if worker.role is WorkerRole.DECODE:
        await _check_health(worker, args)
        return Findings(facts)
    port, source, note = _port(worker, info)
    if args.bootstrap_check is not BootstrapCheck.OFF:
        try:
            await _check_bootstrap(Origin("http", worker.origin.host, port), info, args)
        except UpstreamError as error:
            text = f"bootstrap server http://{worker.origin.uri_host}:{port} {error}"
            if args.bootstrap_check is BootstrapCheck.REQUIRE:
                fix = "start it, correct the port, or use --bootstrap-check warn if only decodes can reach it"
                raise Rejected(f"{text}; {fix}") from None
            note = f"{note}; {text}" if note else text
    await _check_health(worker, args)
    return Findings(facts, port, source, note)


@dataclass(frozen=True, slots=True)
class Findings:
    """`note` is unusual, but does not keep the worker from being used."""

    facts: WorkerFacts
    bootstrap_port: int | None = None
    port_source: PortSource | None = None
    note: str = ""


class Rejected(Exception):
    """Why a worker is not routed to."""


async def _server_info(pool: ConnectionPool, args: RouterArgs) -> Mapping[str, object] | None:
    """Return None for a worker without such a path: it speaks another engine's protocol."""
    for path in INFO_PATHS:
        try:
            reply = await ask(pool, "GET", path, timeout=args.probe_timeout, headers=args.bearer)
            if reply.status == 200:
                return reply.json()
        except UpstreamError as error:
            raise Rejected(f"{path}: {error}") from None
        if reply.status not in (404, 405):
            raise Rejected(f"{path} answered {reply.status} {reply.text(100)}".rstrip())
    return None


def _facts(info: Mapping[str, object] | None) -> WorkerFacts:
    if info is None:
        return WorkerFacts()

    def text(name: str) -> str:
        value = info.get(name)
        return value if isinstance(value, str) else ""

    def number(name: str) -> int | None:
        value = info.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    return WorkerFacts(
        disaggregation_mode=_role_now(info) or text("disaggregation_mode"),
        model_path=text("model_path"),
        served_model_name=text("served_model_name"),
        version=text("version"),
        transfer_backend=text("disaggregation_transfer_backend"),
        tp_size=number("tp_size"),
        dp_size=number("dp_size"),
        page_size=number("page_size"),
    )


def _role_now(info: Mapping[str, object]) -> str:
    """Return its schedulers' role: after a role switch (sglang 0.5.23) it differs from the one it was started with."""
    states = info.get("internal_states")
    modes = (
        {state.get("disaggregation_mode") for state in states or () if isinstance(state, dict)}
        if isinstance(states, list)
        else set()
    )
    mode = modes.pop() if len(modes) == 1 else None
    return mode if isinstance(mode, str) else ""


def _check_role(worker: Worker, facts: WorkerFacts) -> None:
    mode = facts.disaggregation_mode
    if not mode or mode == worker.role.value:
        return
    if mode in (WorkerRole.PREFILL.value, WorkerRole.DECODE.value):
        raise Rejected(f"roles swapped: it runs with --disaggregation-mode {mode}; name it with --{mode}")
    raise Rejected(f"it runs with --disaggregation-mode {mode}, not {worker.role.value}")


def _port(worker: Worker, info: Mapping[str, object] | None) -> tuple[int, PortSource, str]:
    told = info.get("disaggregation_bootstrap_port") if info is not None else None
    known = told if isinstance(told, int) and not isinstance(told, bool) and 0 < told < 65536 else None
    given = worker.given_port
    if given is not None and worker.port_source is not None:
        if known is not None and known != given:
            raise Rejected(f"bootstrap port {given} was given, but its /server_info says {known}; give {known} or none")
        return given, worker.port_source, "" if known else "the given bootstrap port is not confirmed by /server_info"
    if known is None:
        where = "its /server_info does not name it" if info is not None else "it has no /server_info"
        raise Rejected(f"bootstrap port unknown: none was given and {where}; give it: --prefill {worker.url} PORT")
    return known, PortSource.SERVER_INFO, ""


async def _check_bootstrap(origin: Origin, info: Mapping[str, object] | None, args: RouterArgs) -> None:
    """Raise UpstreamError if there is no answer; Rejected if it is not from this prefill's bootstrap server."""
    pool = ConnectionPool(origin, idle_timeout=1.0, connect_timeout=min(args.connect_timeout, args.probe_timeout))
    try:
        reply = await ask(pool, "GET", "/health", timeout=args.probe_timeout)
        if reply.status != 200:
            raise Rejected(f"no bootstrap server at {origin.url}: /health answered {reply.status}")
        topology = await _topology(pool, args.probe_timeout)
    finally:
        pool.close()
    _compare(origin, topology, info or {})


async def _topology(pool: ConnectionPool, timeout: float) -> Mapping[str, object]:
    status, text = 0, ""
    for query in TOPOLOGY_QUERIES:
        reply = await ask(pool, "GET", query, timeout=timeout)
        if reply.status == 200:
            sizes = reply.json()
            if all(value is None for value in sizes.values()):
                status, text = 200, "no rank is registered yet"  # sglang 0.5.3 and 0.5.8 answer nulls
                break
            return sizes
        status, text = reply.status, reply.text()
        if reply.status != 400:
            break
    raise Rejected(f"bootstrap server {pool.origin.url} answered {status} on /route: {text}")


def _compare(origin: Origin, topology: Mapping[str, object], info: Mapping[str, object]) -> None:
    """Raise Rejected if this is not that prefill's bootstrap server: two on one host and port look alike otherwise."""
    pairs = (
        ("HTTP port", topology.get("prefill_http_port"), info.get("port")),  # sglang 0.5.18+
        ("pp_size", topology.get("pp_size", topology.get("prefill_pp_size")), info.get("pp_size")),
        ("page_size", topology.get("page_size", topology.get("prefill_page_size")), info.get("page_size")),
    )
    for what, registered, reported in pairs:
        if isinstance(registered, int) and isinstance(reported, int) and registered != reported:
            raise Rejected(
                f"bootstrap server {origin.url} belongs to another prefill: {what} {registered} is registered there, "
                f"/server_info says {reported}"
            )


async def _check_health(worker: Worker, args: RouterArgs) -> None:
    try:
        await check_health(worker, args)
    except UpstreamError as error:
        raise Rejected(str(error)) from None
