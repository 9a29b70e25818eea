"""One thread of those that write, and what is queued for it: the threads' side of workers.py."""

from __future__ import annotations

import functools
import logging
import math
import threading
import time
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pdctl.engine.drill import fault_points
from pdctl.engine.transfer.transport import Op, OpState, TransferError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.engine.transfer.transport import Pages, TransferPlan, Transport

log = logging.getLogger("pdctl.engine")

SLOWEST = 200e6  # bytes a second: what a copy is granted before it counts as stuck
SOON, LATE = 1e-4, 1e-3  # seconds between looks at a write that does not say when it will be done
LATEST = 0.1  # and at one that does: its peer may die before
GONE = "the peer is gone"
GIVEN_UP = "given up before it was written"


class Owner(Protocol):
    """Who wants to know what became of a job; called from the threads."""

    inner: Transport

    def report(self, job: Job) -> None: ...
    def died(self, thread: str, error: BaseException) -> None: ...


@dataclass(slots=True, eq=False)
class Job:
    """One post on its way. `op` is what the caller holds: it changes on the loop's thread only."""

    op: Op
    plan: TransferPlan
    src: Pages
    dst: Pages
    shard: Shard
    made: Op | None = None  # the inner transport's; its shard's thread looks at it
    taken: bool = False  # by a thread, or given up: whoever comes second leaves it alone
    began: float = 0.0
    look_at: float = 0.0

    def schedule(self) -> None:
        """When to look at the write next: when it says, else the rarer the longer it takes."""
        now, due = time.monotonic(), self.made.due if self.made is not None else 0.0
        if due > now:
            self.look_at = min(due, now + LATEST)
        else:
            self.look_at = now + min(LATE, max(SOON, (now - self.began) / 8))


class Order(NamedTuple):
    peer: str  # as the inner transport knows it
    nbytes: int
    act: Callable[[Worker], None]


@dataclass(slots=True, eq=False)
class Shard:
    """`lock` guards what a thread and its successor share, and who takes a job; nobody holds it across a call."""

    number: int
    inbox: SimpleQueue[Order | None] = field(default_factory=SimpleQueue)
    lock: threading.Lock = field(default_factory=threading.Lock)
    peers: set[str] = field(default_factory=set)
    parked: dict[str, list[Order]] = field(default_factory=dict)  # by peer whose call has not returned
    worker: Worker | None = None
    watched: bool = False  # the loop will look whether the running call returns


def posted(transport: Transport, job: Job) -> Op:
    """What became of the post: whatever it raises is the failure of this one write."""
    try:
        return transport.post(job.plan, job.src, job.dst)
    except TransferError as error:
        return Op(job.plan.peer, 0, OpState.FAILED, str(error))
    except Exception as error:
        # Peers share this thread, and the libraries beneath are not ours: what nobody foresaw costs one peer its rooms.
        log.exception("A KV write into session %s hit an exception", job.plan.peer)
        return Op(job.plan.peer, 0, OpState.FAILED, f"{type(error).__name__}: {error}")


class Worker:
    """One thread of a shard."""

    def __init__(self, shard: Shard, owner: Owner, underway: list[Job]) -> None:
        self.shard = shard
        self.underway = underway
        self.order: Order | None = None  # the call it is in
        self.since = 0.0
        self.replaced = False
        self._owner = owner
        self._reach = fault_points.raiser("thread.kv-transfer")
        self.thread = threading.Thread(target=self._run, name=f"kv-transfer-{shard.number}", daemon=True)
        self.thread.start()

    def overdue(self, now: float, patience: float) -> float:
        """Seconds until the running call counts as stuck; infinite when there is none."""
        order = self.order
        return self.since + patience + order.nbytes / SLOWEST - now if order is not None else math.inf

    def _run(self) -> None:
        try:
            while self._turn():
                if self._reach is not None:
                    self._reach()
        except BaseException as error:
            log.critical("Thread %s hit an exception; this rank ends", self.thread.name, exc_info=True)
            self._owner.died(self.thread.name, error)

    def _turn(self) -> bool:
        try:
            order = self.shard.inbox.get(timeout=self._patience())
        except Empty:
            pass
        else:
            if order is None or not self._guarded(order):
                return False
        return all(self._guarded(Order(job.plan.peer, 0, functools.partial(look, job))) for job in self._due())

    def _patience(self) -> float | None:
        if not self.underway:
            return None
        return max(0.0, min(job.look_at for job in self.underway) - time.monotonic())

    def _due(self) -> list[Job]:
        now = time.monotonic()
        return [job for job in self.underway if job.look_at <= now]

    def _guarded(self, order: Order) -> bool:
        """Do it; False when it took so long that another thread has taken this one's place."""
        with self.shard.lock:
            parked = self.shard.parked.get(order.peer)
            if parked is not None:
                parked.append(order)
                return True
            self.since, self.order = time.monotonic(), order
        try:
            order.act(self)
        except Exception as error:
            # As in `posted`. Errors of anything but an order still end the thread, and with it the rank.
            log.exception("A KV transfer for session %s hit an exception; its writes fail", order.peer)
            self._fail(order.peer, f"{type(error).__name__}: {error}")
        with self.shard.lock:
            self.order = None
            if not self.replaced:
                return True
            for waiting in self.shard.parked.pop(order.peer):
                self.shard.inbox.put(waiting)
            for job in self.underway:
                self.shard.inbox.put(Order(order.peer, 0, functools.partial(adopt, job)))
        return False

    def _fail(self, peer: str, why: str) -> None:
        for job in [job for job in self.underway if job.plan.peer == peer]:
            self.underway.remove(job)
            job.made = Op(peer, 0, OpState.FAILED, why)
            self._owner.report(job)

    # --- orders

    def post(self, job: Job) -> None:
        with self.shard.lock:
            if job.taken:
                return
            job.taken = True
        job.began = time.monotonic()
        job.made = posted(self._owner.inner, job)
        self._owner.report(job)
        if job.made.state == OpState.RUNNING:
            job.schedule()
            self.underway.append(job)

    def look(self, job: Job) -> None:
        if job.made is None or job not in self.underway:
            return
        if self._owner.inner.poll(job.made) != OpState.RUNNING:
            self.underway.remove(job)
            self._owner.report(job)
        else:
            job.schedule()

    def release(self, job: Job, why: str) -> None:
        made = job.made
        if made is None or job not in self.underway or not self._owner.inner.release(made):
            return
        self.underway.remove(job)
        if made.state == OpState.RUNNING:
            made.state, made.error, made.nbytes = OpState.FAILED, why, 0
        self._owner.report(job)

    def drop(self, peer: str) -> None:
        for job in [job for job in self.underway if job.plan.peer == peer]:
            self.release(job, GONE)
        self._owner.inner.drop_peer(peer)


def look(job: Job, worker: Worker) -> None:
    worker.look(job)


def adopt(job: Job, worker: Worker) -> None:
    job.schedule()
    worker.underway.append(job)


def post(job: Job, worker: Worker) -> None:
    worker.post(job)


def release(job: Job, worker: Worker) -> None:
    worker.release(job, GIVEN_UP)
