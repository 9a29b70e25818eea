"""The workers, the pairs they form, and which of them may be used now."""

from __future__ import annotations

import asyncio
import math
import uuid
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from pdctl.router.log import logger
from pdctl.router.room_ledger import PairStats
from pdctl.router.router_args import misleads
from pdctl.router.upstream import ConnectionPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pdctl.router.router_args import Origin, RouterArgs


class Registry:
    """Every change that affects routing rebuilds the table, so that choosing a pair costs nothing."""

    def __init__(self, args: RouterArgs) -> None:
        self._args = args
        self._loop = asyncio.get_running_loop()
        self.rehearsal, self.misled = args.rehearse, misleads(args.rehearse)
        self.workers: dict[str, Worker] = {}
        self._removed: list[Worker] = []
        self.pairs: dict[tuple[str, str], WorkerPair] = {}
        self.table = Table(())

    def add(self, role: WorkerRole, origin: Origin, port: int | None, source: PortSource) -> Worker | None:
        """Return the new worker, not usable until it has been examined; None if the URL is known, in either role."""
        if any(worker.origin == origin for worker in self.workers.values()):
            return None
        args = self._args
        pool = ConnectionPool(origin, idle_timeout=args.upstream_idle_timeout, connect_timeout=args.connect_timeout)
        worker = Worker(role, origin, port, source, pool)
        self.workers[worker.id] = worker
        for other in self.of(WorkerRole.DECODE if role is WorkerRole.PREFILL else WorkerRole.PREFILL):
            prefill, decode = (worker, other) if role is WorkerRole.PREFILL else (other, worker)
            breaker = Breaker(args.cb_failure_threshold, args.cb_timeout, self.rebuild)
            self.pairs[prefill.id, decode.id] = WorkerPair(prefill, decode, breaker)
        self.rebuild()
        return worker

    def remove(self, worker: Worker) -> None:
        """Route nothing more to it; requests in flight run to their end."""
        del self.workers[worker.id]
        self.pairs = {key: pair for key, pair in self.pairs.items() if worker.id not in key}
        worker.usable = False
        worker.reason = "removed"
        worker.wake.set()
        worker.pool.close()
        self._removed = [*self.leaving, worker]
        self.rebuild()

    @property
    def leaving(self) -> list[Worker]:
        """Removed workers that still have requests in flight."""
        return [worker for worker in self._removed if worker.load]

    def of(self, role: WorkerRole) -> list[Worker]:
        return [worker for worker in self.workers.values() if worker.role is role]

    def set_usable(self, worker: Worker, usable: bool, reason: str) -> None:
        """Log and apply what was found out about a worker."""
        changed = usable is not worker.usable
        if changed or reason != worker.reason:
            say = logger.info if usable and not reason else logger.warning
            state = "usable" if usable else "not routed to"
            port = (
                f" bootstrap_port={worker.bootstrap_port} source={worker.port_source.value}"
                if worker.port_source
                else ""
            )
            say("Worker %s %s %s%s%s", worker.role.value, worker.url, state, port, f": {reason}" if reason else "")
        worker.usable, worker.reason = usable, reason
        if changed:
            self.rebuild()

    def report(self, pair: WorkerPair, failed: bool) -> None:
        """Record the end of an attempt that says something about its pair."""
        if not failed:
            pair.breaker.succeed()
        elif pair.breaker.fail(self._loop.time()):
            until = pair.breaker.open_until
            self._loop.call_at(until, pair.breaker.allow_trial, until)  # a timer may fire slightly before its time
            logger.warning(
                "Breaker open for %g s after %d failures in a row: prefill=%s decode=%s",
                self._args.cb_timeout, pair.breaker.failures, pair.prefill.url, pair.decode.url,
            )  # fmt: skip

    def rebuild(self) -> None:
        self.table = Table(
            pair
            for pair in walk(self.of(WorkerRole.PREFILL), self.of(WorkerRole.DECODE), self.pairs)
            if pair.prefill.usable and pair.decode.usable and pair.breaker.allows
        )

    def obstacles(self) -> list[str]:
        """Return why there is no pair to use, one line per cause."""
        found = []
        for role in WorkerRole:
            if not self.of(role):
                found.append(f"no {role.value} is registered")
            found += [f"{role.value} {one.url}: {one.reason}" for one in self.of(role) if not one.usable]
        now = self._loop.time()
        for pair in self.pairs.values():
            if not pair.breaker.allows:
                left = max(0.0, pair.breaker.open_until - now)
                found.append(
                    f"pair {pair.prefill.url} {pair.decode.url}: breaker {pair.breaker.state.value} after "
                    f"{pair.breaker.failures} failures in a row, tried again in {left:.0f} s"
                )
        return found


def walk(prefills: list[Worker], decodes: list[Worker], pairs: dict[tuple[str, str], WorkerPair]) -> list[WorkerPair]:
    """Return all pairs in an order in which each side takes turns.

    Two counters alone would walk in lock-step: if the counts have a common divisor, they are back at the start before
    every prefill has met every decode. From there on one of them is shifted.
    """
    order = []
    for step in range(len(prefills) * len(decodes)):
        prefill = prefills[step % len(prefills)]
        shift = step // math.lcm(len(prefills), len(decodes))
        order.append(pairs[prefill.id, decodes[(step + shift) % len(decodes)].id])
    return order


class Table:
    """The pairs that may be used now, in the form the policies need."""

    __slots__ = ("cycle", "partners", "prefills")

    def __init__(self, pairs: Iterable[WorkerPair]) -> None:
        self.cycle = tuple(pairs)
        self.partners: dict[str, list[WorkerPair]] = {}
        prefills: dict[str, Worker] = {}
        for pair in self.cycle:
            self.partners.setdefault(pair.prefill.id, []).append(pair)
            prefills[pair.prefill.id] = pair.prefill
        self.prefills = tuple(prefills.values())

    def without(self, tried: Iterable[WorkerPair], failed: Iterable[Worker]) -> Table:
        """Return the table for a retry: no pair that was tried; no worker that failed, as long as another is left."""
        left = [pair for pair in self.cycle if pair not in tried]
        better = [pair for pair in left if pair.prefill not in failed and pair.decode not in failed]
        return Table(better or left)


class WorkerPair:
    """One prefill with one decode: the unit of counters, breaker and round robin."""

    __slots__ = ("breaker", "decode", "head", "prefill", "stats")

    def __init__(self, prefill: Worker, decode: Worker, breaker: Breaker) -> None:
        self.prefill = prefill
        self.decode = decode
        self.breaker = breaker
        self.stats = PairStats()
        self.head = f"x-pd-prefill: {prefill.url}\r\nx-pd-decode: {decode.url}\r\nx-pd-room: ".encode()


class Breaker:
    """`changed` is called whenever `allows` changes; the caller supplies the time (`now` in seconds)."""

    __slots__ = ("_changed", "_failures", "_open_for", "_threshold", "_trial", "open_until", "state")

    def __init__(self, threshold: int, open_for: float, changed: Callable[[], None]) -> None:
        self._threshold = threshold
        self._open_for = open_for
        self._changed = changed
        self._failures = 0
        self._trial = False
        self.state = BreakerState.CLOSED
        self.open_until = 0.0

    @property
    def failures(self) -> int:
        return self._failures

    @property
    def allows(self) -> bool:
        return self.state is BreakerState.CLOSED or (self.state is BreakerState.HALF_OPEN and not self._trial)

    def allow_trial(self, now: float) -> None:
        """Let a trial through once the time is up."""
        if self.state is BreakerState.OPEN and now >= self.open_until:
            self.state = BreakerState.HALF_OPEN
            self._trial = False
            self._changed()

    def begin(self) -> None:
        """Note that a request is being sent to the pair."""
        if self.state is BreakerState.HALF_OPEN:
            self._trial = True
            self._changed()

    def succeed(self) -> None:
        self._failures = 0
        if self.state is not BreakerState.CLOSED:
            self.state = BreakerState.CLOSED
            self._changed()

    def fail(self, now: float) -> bool:
        """Count a failure. Return whether it opened the breaker."""
        self._failures += 1
        if self.state is BreakerState.OPEN:
            return False
        if self.state is BreakerState.CLOSED and self._failures < self._threshold:
            return False
        self.state = BreakerState.OPEN
        self.open_until = now + self._open_for
        self._changed()
        return True

    def release(self) -> None:
        """The request ended without showing anything about the pair: the client left, or its request was refused."""
        if self.state is BreakerState.HALF_OPEN and self._trial:
            self._trial = False
            self._changed()


class BreakerState(str, Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"  # one trial request may pass; its outcome decides


class Worker:
    """A prefill or a decode. `reason`: why it is not routed to, or what is unusual about it; empty if all is well."""

    __slots__ = (
        "bootstrap_port",
        "facts",
        "failed_checks",
        "given_port",
        "good_checks",
        "host",
        "id",
        "last_success",
        "load",
        "origin",
        "pool",
        "port_source",
        "reason",
        "role",
        "url",
        "usable",
        "wake",
    )

    def __init__(
        self, role: WorkerRole, origin: Origin, given_port: int | None, source: PortSource, pool: ConnectionPool
    ) -> None:
        self.role = role
        self.origin = origin
        self.pool = pool
        self.url = origin.url
        self.host = origin.uri_host
        # The same worker keeps its id when the router restarts.
        self.id = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{role.value} {origin.url}"))
        self.given_port = given_port
        self.bootstrap_port = given_port
        self.port_source: PortSource | None = source if given_port is not None else None
        self.facts = WorkerFacts()
        self.usable = False
        self.reason = "not asked yet"
        self.load = 0
        self.good_checks = self.failed_checks = 0
        self.last_success = 0.0  # monotonic time of the last answer it gave to a client
        self.wake = asyncio.Event()


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What a worker reports in /server_info; empty or None if it does not."""

    disaggregation_mode: str = ""
    model_path: str = ""
    served_model_name: str = ""
    version: str = ""
    transfer_backend: str = ""
    tp_size: int | None = None
    dp_size: int | None = None
    page_size: int | None = None


class WorkerRole(str, Enum):
    PREFILL = "prefill"
    DECODE = "decode"


class PortSource(str, Enum):
    """How a prefill's bootstrap port became known."""

    FLAG = "flag"
    API = "api"
    SERVER_INFO = "server_info"
