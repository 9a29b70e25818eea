"""Writes on a few threads of their own, so that a large copy holds up neither the KV manager nor other peers' rooms.

With some transports a `post` blocks for its whole copy, and one that hangs may never return. So every peer belongs to
one shard, a shard is one thread with a queue, and results come back as calls to the loop (sglang:
SGLANG_DISAGGREGATION_QUEUE_SIZE queues). A call that does not return loses its thread: the shard goes on with a new
one, and only orders for the same peer keep waiting.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import threading
import time
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Protocol

from pdctl.engine.drill import fault_points
from pdctl.engine.transfer.transport import Op, OpState, TransferError, TransportWrapper, require_pairs
from pdctl.quick_definitions import NamedTuple
from pdctl.thread_death import ThreadEndedError, in_words

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.engine.kvcache.pool_geometry import PoolGeometry
    from pdctl.engine.transfer.transport import Cut, Pages, TransferPlan, Transport

log = logging.getLogger("pdctl.engine")

CORES_PER_THREAD = 8
STUCK = 1.0  # seconds a call may take beyond what its bytes need
IN_PLACE = 4 << 20  # bytes, about a millisecond: a smaller write is copied at once if no other is under way
BREATH = 2e-4  # seconds after such a copy before the next may start
CLOSE = 2.0  # seconds allowed for the threads to end
SLOWEST = 200e6  # bytes a second: the slowest copy that does not count as stuck
SOON, LATE = 1e-4, 1e-3  # seconds between checks of a write that does not say when it will be done
LATEST = 0.1  # the same for one that does: its peer may die earlier
GONE = "the peer is gone"
GIVEN_UP = "given up before it was written"


def threads(asked: int = 0) -> int:
    """Return the number of shards: as asked, else by cores and at least 2, so that a slow session cannot block all."""
    return asked or min(4, max(2, (os.cpu_count() or 1) // CORES_PER_THREAD))


class Caller(Protocol):
    """The loop that owns the workers. Call `later` on its own thread only."""

    def call(self, action: Callable[[], None]) -> bool: ...
    def later(self, seconds: float, action: Callable[[], None]) -> object: ...


@dataclass(slots=True, eq=False)
class Job:
    """One post under way. `op` is what the caller holds: it changes on the loop's thread only."""

    op: Op
    plan: TransferPlan
    src: Pages
    dst: Pages
    shard: WorkerShard
    made: Op | None = None  # the inner transport's op; the shard's thread checks it
    taken: bool = False  # by a thread, or given up: whichever comes second leaves it alone
    began: float = 0.0
    next_poll_at: float = 0.0

    def schedule(self) -> None:
        """Set when to check the write next: when it says, else less often the longer it takes."""
        now, due = time.monotonic(), self.made.due if self.made is not None else 0.0
        if due > now:
            self.next_poll_at = min(due, now + LATEST)
        else:
            self.next_poll_at = now + min(LATE, max(SOON, (now - self.began) / 8))


class Order(NamedTuple):
    peer: str  # as the inner transport knows it
    nbytes: int
    act: Callable[[TransferWorker], None]


@dataclass(slots=True, eq=False)
class WorkerShard:
    """`lock` guards what a thread and its successor share, and who takes a job; it is never held across a call."""

    number: int
    inbox: SimpleQueue[Order | None] = field(default_factory=SimpleQueue)
    lock: threading.Lock = field(default_factory=threading.Lock)
    peers: set[str] = field(default_factory=set)
    parked: dict[str, list[Order]] = field(default_factory=dict)  # by peer, while that peer's call has not returned
    worker: TransferWorker | None = None
    watched: bool = False  # the loop will check whether the running call returns
    closing: bool = False  # an order to close connections that strangers left is queued or running


class Workers(TransportWrapper):
    """A transport whose posts return at once: the op is RUNNING, and the loop is called when its state changes.

    Every method belongs to the loop's thread, except that `allocate`, `register` and `close` are called before it
    starts or after it ends. An op has not `begun` while it waits for a thread.
    """

    def __init__(self, inner: Transport, loop: Caller, count: int, patience: float = STUCK) -> None:
        super().__init__(inner)
        self.inner = inner
        self._loop = loop
        self._patience = patience
        self._shards = [WorkerShard(number) for number in range(count)]
        self._shard_of: dict[str, WorkerShard] = {}  # by the inner transport's name of a peer
        self._inner_name: dict[str, str] = {}
        self._outer_name: dict[str, str] = {}
        self._names_used: dict[str, int] = {}  # while their peers are being dropped
        self._open: dict[str, set[Job]] = {}  # by the inner transport's name of a peer
        self._jobs = 0  # open jobs, of all peers
        self._turn_at = 0.0  # monotonic: when the loop's thread may next copy by itself
        self._lost: list[TransferWorker] = []  # threads still in a call that does not return

    # --- peers

    def add_peer(self, peer: str, descriptor: bytes) -> None:
        self.drop_peer(peer)
        # A peer of this name may still be waiting for its thread to drop it: the new one must not be dropped with it.
        again = self._names_used.get(peer, 0)
        name = f"{peer}.{again}" if again else peer
        super().add_peer(name, descriptor)
        self._inner_name[peer], self._outer_name[name] = name, peer

    def plan(self, peer: str, local: PoolGeometry, remote: PoolGeometry, cut: Cut | None = None) -> TransferPlan:
        name = self._inner_name.get(peer, peer)
        plan = super().plan(name, local, remote, cut)
        if name not in self._shard_of:
            least = min(self._shards, key=lambda shard: len(shard.peers))
            shard = least if plan.lane is None else self._shards[plan.lane % len(self._shards)]
            shard.peers.add(name)
            self._shard_of[name], self._open[name] = shard, set()
        return plan

    def drop_peer(self, peer: str) -> None:
        name = self._inner_name.pop(peer, None)
        if name is None:
            return
        self._outer_name.pop(name)
        shard = self._shard_of.pop(name, None)
        if shard is None:  # never planned for, so never written to
            super().drop_peer(name)
            return
        shard.peers.discard(name)
        for job in list(self._open.pop(name)):
            self._withdraw(job, GONE)
        self._names_used[peer] = self._names_used.get(peer, 0) + 1
        self._put(shard, Order(name, 0, lambda worker: self._drop(peer, name, worker)))

    def _drop(self, peer: str, name: str, worker: TransferWorker) -> None:
        worker.drop(name)
        self._loop.call(lambda: self._dropped(peer))

    def _dropped(self, peer: str) -> None:
        if peer not in self._inner_name:
            self._names_used.pop(peer, None)

    # --- writes

    def post(self, plan: TransferPlan, src_pages: Pages, dst_pages: Pages) -> Op:
        """Post a write. `nbytes` and `descriptors` are the plan's figures until the write has ended."""
        require_pairs(src_pages, dst_pages, plan.local, plan.remote)  # a caller's mistake, not the peer's failure
        count = len(src_pages)
        peer = self._outer_name.get(plan.peer, plan.peer)
        op = Op(peer, plan.nbytes(count), OpState.RUNNING, descriptors=plan.per_page * count, due=math.inf)
        shard = self._shard_of.get(plan.peer)
        if shard is None:
            op.state, op.error, op.nbytes = OpState.FAILED, GONE, 0
            return op
        job = op.handle = Job(op, plan, src_pages, dst_pages, shard)
        if self.caps.prompt and op.nbytes <= IN_PLACE and not self._jobs and time.monotonic() >= self._turn_at:
            self._post_here(job)
        else:
            op.begun = False
            self._register(job)
            self._put(shard, Order(plan.peer, op.nbytes, lambda worker: worker.post(job)))
        return op

    def _post_here(self, job: Job) -> None:
        """Post on the loop's thread: two thread switches are expensive for a small copy. Of several, only the first."""
        began, op = time.monotonic(), job.op
        job.taken, job.began = True, began
        made = job.made = posted(self.inner, job)
        now = time.monotonic()
        self._turn_at = now + BREATH
        if made.state == OpState.RUNNING:
            self._register(job)
            self._put(job.shard, Order(job.plan.peer, 0, lambda worker: worker.adopt(job)))
        else:
            op.state, op.error, op.nbytes = made.state, made.error, made.nbytes
            op.descriptors, op.sums, op.handle = made.descriptors, made.sums, None

    def _register(self, job: Job) -> None:
        self._open[job.plan.peer].add(job)
        self._jobs += 1

    def poll(self, op: Op) -> OpState:
        return op.state

    def release(self, op: Op) -> bool:
        if op.state != OpState.RUNNING:
            return True
        job: Job = op.handle
        if self._withdraw(job, GIVEN_UP):
            return True
        self._put(job.shard, Order(job.plan.peer, 0, lambda worker: worker.release(job, GIVEN_UP)))
        return False

    def _withdraw(self, job: Job, why: str) -> bool:
        """Withdraw a job. Return whether no thread had taken it yet; then none will."""
        with job.shard.lock:
            free, job.taken = not job.taken, True
        if free:
            self._conclude(job, OpState.FAILED, why, 0, 0, b"")
        return free

    def close_left(self, lane: int | None = None) -> None:
        """Queue this for each thread, for its own lane: a post that hangs holds up no other lane."""
        for shard in self._shards:
            if not shard.closing and lane in (None, shard.number):
                shard.closing = True
                self._put(shard, Order("", 0, TransferWorker.close_left))

    def _put(self, shard: WorkerShard, order: Order) -> None:
        if shard.worker is None:
            shard.worker = TransferWorker(shard, self, [])
        shard.inbox.put(order)
        self._watch_later(shard, self._patience)

    def _watch_later(self, shard: WorkerShard, seconds: float) -> None:
        if not shard.watched:
            shard.watched = True
            self._loop.later(seconds, lambda: self._watch(shard))

    def _watch(self, shard: WorkerShard) -> None:
        """Replace the thread if its call does not return while orders wait behind it."""
        shard.watched = False
        worker = shard.worker
        if worker is None or shard.inbox.empty():
            return
        with shard.lock:
            order, wait = worker.order, worker.overdue(time.monotonic(), self._patience)
            stuck = order is not None and wait <= 0
            if order is not None and stuck:
                worker.replaced = True
                shard.parked[order.peer] = []
                moved = [job for job in worker.underway if job.plan.peer != order.peer]
                worker.underway = [job for job in worker.underway if job.plan.peer == order.peer]
        if order is not None and stuck:
            log.warning(
                "A write into session %s has not returned for %.1fs; the %d orders behind it go on without it",
                order.peer, time.monotonic() - worker.since, shard.inbox.qsize(),
            )  # fmt: skip
            self._lost = [*(lost for lost in self._lost if lost.thread.is_alive()), worker]
            shard.worker = TransferWorker(shard, self, moved)
        else:
            self._watch_later(shard, min(wait, self._patience))

    # --- news, from the threads

    def report(self, job: Job) -> None:
        made = job.made
        if made is None:
            return
        if made.state == OpState.RUNNING:
            self._loop.call(functools.partial(_begin, job.op))
        else:
            news = (made.state, made.error, made.nbytes, made.descriptors, made.sums)
            self._loop.call(functools.partial(self._conclude, job, *news))

    def _conclude(self, job: Job, state: OpState, error: str, nbytes: int, descriptors: int, sums: bytes) -> None:
        op = job.op
        if op.state != OpState.RUNNING:
            return
        self._open.get(job.plan.peer, set()).discard(job)
        self._jobs -= 1
        op.state, op.error, op.nbytes, op.descriptors, op.sums = state, error, nbytes, descriptors, sums
        op.handle = None

    def died(self, thread: str, error: BaseException) -> None:
        """A thread ended on an unexpected error: end the loop as well, so that every room of the rank fails."""
        self._loop.call(functools.partial(_die, f"thread {thread} ended on {in_words(error)}"))

    def close(self) -> None:
        """Close the transport. A thread that does not return from its call keeps it open until the process ends."""
        if self.detach():
            super().close()

    def detach(self) -> bool:
        """End the threads after their queued orders. Return whether no thread is left that uses the inner transport."""
        workers = [shard.worker for shard in self._shards if shard.worker is not None]
        for jobs in self._open.values():
            for job in list(jobs):
                self._withdraw(job, "the transport was closed")
        for worker in workers:
            worker.shard.inbox.put(None)
        deadline = time.monotonic() + CLOSE
        for worker in workers:
            worker.thread.join(max(0.0, deadline - time.monotonic()))
        return not any(worker.thread.is_alive() for worker in (*workers, *self._lost))


def _begin(op: Op) -> None:
    op.begun = True


def _die(words: str) -> None:
    raise ThreadEndedError(words)


def posted(transport: Transport, job: Job) -> Op:
    """Post a job and return its op. Whatever the post raises is the failure of this one write."""
    try:
        return transport.post(job.plan, job.src, job.dst)
    except TransferError as error:
        return Op(job.plan.peer, 0, OpState.FAILED, str(error))
    except Exception as error:
        # Peers share this thread, and the libraries beneath are not ours: an unexpected error costs one peer its rooms.
        log.exception("A KV write into session %s hit an exception", job.plan.peer)
        return Op(job.plan.peer, 0, OpState.FAILED, f"{type(error).__name__}: {error}")


class TransferWorker:
    """One thread of a shard."""

    def __init__(self, shard: WorkerShard, owner: Workers, underway: list[Job]) -> None:
        self.shard = shard
        self.underway = underway
        self.order: Order | None = None  # the order it is executing
        self.since = 0.0
        self.replaced = False
        self._owner = owner
        self._reach = fault_points.raiser("thread.kv-transfer")
        self.thread = threading.Thread(target=self._run, name=f"kv-transfer-{shard.number}", daemon=True)
        self.thread.start()

    def overdue(self, now: float, patience: float) -> float:
        """Return the seconds until the running call counts as stuck; infinite if there is none."""
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
        return all(
            self._guarded(Order(job.plan.peer, 0, functools.partial(TransferWorker.look, job=job)))
            for job in self._due()
        )

    def _patience(self) -> float | None:
        if not self.underway:
            return None
        return max(0.0, min(job.next_poll_at for job in self.underway) - time.monotonic())

    def _due(self) -> list[Job]:
        now = time.monotonic()
        return [job for job in self.underway if job.next_poll_at <= now]

    def _guarded(self, order: Order) -> bool:
        """Execute an order. Return False if it took so long that another thread has replaced this one."""
        with self.shard.lock:
            parked = self.shard.parked.get(order.peer)
            if parked is not None:
                parked.append(order)
                return True
            self.since, self.order = time.monotonic(), order
        try:
            order.act(self)
        except Exception as error:
            # As in `posted`. An error outside an order still ends the thread, and with it the rank.
            log.exception("A KV transfer for session %s hit an exception; its writes fail", order.peer)
            self._fail(order.peer, f"{type(error).__name__}: {error}")
        with self.shard.lock:
            self.order = None
            if not self.replaced:
                return True
            for waiting in self.shard.parked.pop(order.peer):
                self.shard.inbox.put(waiting)
            for job in self.underway:
                self.shard.inbox.put(Order(order.peer, 0, functools.partial(TransferWorker.adopt, job=job)))
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
            self.adopt(job)

    def adopt(self, job: Job) -> None:
        """Take over a write that another thread has begun."""
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

    def close_left(self) -> None:
        self._owner.inner.close_left(self.shard.number)
        self.shard.closing = False

    def drop(self, peer: str) -> None:
        for job in [job for job in self.underway if job.plan.peer == peer]:
            self.release(job, GONE)
        self._owner.inner.drop_peer(peer)
