"""Ways to send the KV cache of one chunk, for transfer_limits.py: the engine's own, and those it does not use.

batch             one post for all layers: what the engine does
serial            layer after layer, each waited for
executor-K        one task per layer on a pool of K threads, each waited for by its thread
pipeline          layer by layer from a thread of its own, while the layers behind it are still being computed
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pdctl.engine.kvcache.pool_geometry import PoolGeometry
from pdctl.engine.transfer.transport import Cut, Op, OpState, TransferPlan, Transport

SCHEDSTAT = Path("/proc/thread-self/schedstat")
PATIENCE = 60.0
Pages = np.ndarray


def queued() -> float:
    """Seconds this thread has waited for a core; 0 where the kernel does not say."""
    return int(SCHEDSTAT.read_text().split()[1]) / 1e9 if SCHEDSTAT.exists() else 0.0


class Cost(NamedTuple):
    """Seconds: on the wall, the same without what this thread waited for a core, and of processor time.

    Other work on the machine is nobody's fault; but where other threads do the copying, waiting for them is no excuse.
    """

    wall: float
    own: float
    cpu: float


def timed(work: Callable[[], object]) -> Cost:
    waited, used, began = queued(), time.process_time(), time.perf_counter()
    work()
    wall = time.perf_counter() - began
    return Cost(wall, max(1e-9, wall - (queued() - waited)), time.process_time() - used)


def wait(transport: Transport, op: Op) -> None:
    """Until `op` is over, asleep as long as it says how long that will take."""
    deadline = time.monotonic() + PATIENCE
    while transport.poll(op) == OpState.RUNNING:
        now = time.monotonic()
        if now > deadline:
            raise TimeoutError(f"{op.nbytes} bytes to {op.peer} did not arrive within {PATIENCE:g} s")
        if op.due > now:
            time.sleep(op.due - now)
    if op.state == OpState.FAILED:
        raise RuntimeError(op.error)
    transport.release(op)


class Patterns:
    """All of them over one transport and one peer."""

    def __init__(self, transport: Transport, peer: str, near: PoolGeometry, far: PoolGeometry) -> None:
        self.transport = transport
        self.whole = transport.plan(peer, near, far)
        self.layers = [transport.plan(peer, near, far, self.layer(near, layer)) for layer in range(near.layers)]
        self._pools = {size: ThreadPoolExecutor(size) for size in (1, 3, 4)}

    @staticmethod
    def layer(geometry: PoolGeometry, layer: int) -> Cut:
        slabs = geometry.slabs_per_layer
        first = layer * slabs
        return Cut(slabs=slabs, heads=geometry.kv_heads, local_slab=first, remote_slab=first)

    def move(self, plan: TransferPlan, src: Pages, dst: Pages) -> None:
        wait(self.transport, self.transport.post(plan, src, dst))

    def batch(self, src: Pages, dst: Pages) -> None:
        self.move(self.whole, src, dst)

    def serial(self, src: Pages, dst: Pages) -> None:
        for plan in self.layers:
            self.move(plan, src, dst)

    def executor(self, threads: int, src: Pages, dst: Pages) -> None:
        for done in [self._pools[threads].submit(self.move, plan, src, dst) for plan in self.layers]:
            done.result(PATIENCE)

    def computed(self, compute: Callable[[], None], src: Pages, dst: Pages, pipelined: bool) -> tuple[float, float]:
        """Seconds until the last layer is computed, and until everything has arrived."""
        ready: queue.SimpleQueue[TransferPlan | None] = queue.SimpleQueue()
        sender = threading.Thread(target=self._send, args=(ready, src, dst))
        began = time.perf_counter()
        if pipelined:
            sender.start()
        for plan in self.layers:
            compute()
            ready.put(plan)
        ready.put(None)
        last = time.perf_counter()
        if pipelined:
            sender.join(PATIENCE)
        else:
            self.batch(src, dst)
        return last - began, time.perf_counter() - began

    def _send(self, ready: queue.SimpleQueue[TransferPlan | None], src: Pages, dst: Pages) -> None:
        while (plan := ready.get()) is not None:
            self.move(plan, src, dst)

    def close(self) -> None:
        for pool in self._pools.values():
            pool.shutdown()
