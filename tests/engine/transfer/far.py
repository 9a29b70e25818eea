"""A pool in another OS process: the far side of every transfer test."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

import numpy as np

from pdctl.engine.kvcache.pool_geometry import Layout, PoolGeometry
from pdctl.engine.transfer import select
from pdctl.engine.transfer.transport import OpState, TransferPlan, Transport
from tests.engine.processes import pipe, started

PATIENCE = 20.0  # seconds


def geometry(
    layout: Layout = Layout.LAYER_MAJOR, num_pages: int = 24, layers: int = 3, head_dim: int = 8
) -> PoolGeometry:
    return PoolGeometry(
        layers=layers, num_pages=num_pages, page_size=4, kv_heads=2, head_dim=head_dim, itemsize=4, layout=layout
    )


def noise(nbytes: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


def open_pool(backend: str, shape: PoolGeometry, seed: int) -> tuple[Transport, np.ndarray]:
    """A transport whose registered pool is full of the noise of `seed`, and the pool."""
    transport = select.create(backend, "127.0.0.1")
    memory = transport.allocate(shape.nbytes)
    transport.register(memory)
    pool = np.frombuffer(memory, dtype=np.uint8)
    pool[:] = noise(shape.nbytes, seed)
    return transport, pool


def item(pool: np.ndarray, shape: PoolGeometry, slab: int, page: int) -> np.ndarray:
    start = shape.address(slab, page)
    return pool[start : start + shape.item_bytes]


def wait_for(what: str, check: Callable[[], object], seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() > deadline:
            raise AssertionError(f"no {what} within {seconds} s")
        time.sleep(0.002)


class FarPool:
    """The process, its descriptor, and what its pool holds now."""

    def __init__(self, backend: str, shape: PoolGeometry, seed: int = 2) -> None:
        self._pipe, theirs = pipe()
        self.process = started(_serve, theirs, backend, shape, seed)
        theirs.close()
        self.descriptor = self._receive()

    def _receive(self) -> bytes:
        if not self._pipe.poll(PATIENCE):
            raise AssertionError(f"the far process said nothing within {PATIENCE} s")
        return self._pipe.recv_bytes()

    def content(self) -> np.ndarray:
        self._pipe.send_bytes(b"content")
        return np.frombuffer(self._receive(), dtype=np.uint8)

    def kill(self) -> None:
        if self.process.pid is not None and self.process.is_alive():
            with contextlib.suppress(ProcessLookupError):  # it may have ended since, and another process reaps it
                os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(PATIENCE)

    def close(self) -> None:
        self.kill()
        self._pipe.close()
        self.process.close()


def _serve(pipe: Connection, backend: str, shape: PoolGeometry, seed: int) -> None:
    transport, pool = open_pool(backend, shape, seed)
    pipe.send_bytes(transport.descriptor())
    with contextlib.suppress(EOFError):
        while True:
            if not pipe.poll(0.001):
                transport.progress()
                continue
            pipe.recv_bytes()
            pipe.send_bytes(pool.tobytes())
    os._exit(0)


@contextlib.contextmanager
def pair(
    backend: str, near: PoolGeometry, far: PoolGeometry
) -> Iterator[tuple[Transport, np.ndarray, FarPool, TransferPlan]]:
    """Our transport and pool, the far process, and a plan for writing into it."""
    other = FarPool(backend, far)
    transport, pool = open_pool(backend, near, seed=1)
    try:
        transport.add_peer("far", other.descriptor)
        yield transport, pool, other, transport.plan("far", near, far)
    finally:
        transport.close()
        other.close()


def move(transport: Transport, plan: TransferPlan, src: np.ndarray, dst: np.ndarray) -> OpState:
    op = transport.post(plan, src, dst)
    wait_for("end of the transfer", lambda: transport.poll(op) != OpState.RUNNING)
    if op.state == OpState.FAILED:
        assert op.error
    assert transport.release(op)
    return op.state
