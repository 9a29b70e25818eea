"""KV hand-off between two processes, as a multiple of copying the same bytes within one process.

    python tests/bench/kv_handoff.py                              # nixl and shm, both layouts
    python tests/bench/kv_handoff.py --backends shm --rooms 100 --idle 0

The hand-off is 256 tokens of 16 layers (4 MiB) through the engine's own managers, handshake cached: from the decode's
announcement of its pages to the decode's scheduler knowing that they arrived. Every round also copies 4 MiB in this
process from and to memory that was not touched lately; ratios are between medians of one run.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from pdctl.engine.decode.decode_manager import DecodeManager
from pdctl.engine.kv_link.kv_manager import DisaggConfig
from pdctl.engine.kv_link.room_state import KVPoll
from pdctl.engine.kvcache.pool_geometry import Layout, PoolGeometry
from pdctl.engine.prefill.bootstrap_server import BootstrapServer
from pdctl.engine.prefill.prefill_manager import PrefillManager
from pdctl.engine.transfer import segment, select
from pdctl.engine.transfer.transport import OpState, TransferPlan, Transport
from tests.bench.transfer_patterns import Patterns

HOST = "127.0.0.1"
PAGE_SIZE, LAYERS, TOKENS, POOL_PAGES = 16, 16, 256, 512
PAGES = TOKENS // PAGE_SIZE
WARM_UP = 20
PATIENCE = 20.0


def shape(layout: Layout) -> PoolGeometry:
    """Items of 8 KiB: 4 MiB for PAGES pages."""
    return PoolGeometry(
        layers=LAYERS, num_pages=POOL_PAGES, page_size=PAGE_SIZE, kv_heads=2, head_dim=64, itemsize=4, layout=layout
    )


class Copies:
    """The floor: memory copies of the same size, walking through buffers far larger than the caches."""

    def __init__(self, nbytes: int) -> None:
        span = max(256 << 20, 2 * nbytes)
        self._nbytes, self._count, self._next = nbytes, span // nbytes, 0
        self._src, self._dst = (segment.as_bytes(segment.anonymous(span)) for _ in range(2))

    def once(self) -> float:
        start = self._next * self._nbytes
        self._next = (self._next + 1) % self._count
        began = time.perf_counter()
        self._dst[start : start + self._nbytes] = self._src[start : start + self._nbytes]
        return time.perf_counter() - began


class Waiter:
    def __init__(self) -> None:
        self.event = threading.Event()

    def until(self, what: str, check: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not check():
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {what} within {PATIENCE} s")
            self.event.wait(0.5)
            self.event.clear()


def config(role: str, backend: str, port: int) -> DisaggConfig:
    return DisaggConfig(
        role=role,
        rank_ip=HOST,
        page_size=PAGE_SIZE,
        kv_dtype="float32",
        backend=backend,
        bootstrap_host=HOST,
        bootstrap_port=port,
    )


def pool(backend: str, layout: Layout) -> Transport:
    transport = select.create(backend, HOST)
    transport.register(transport.allocate(shape(layout).nbytes))
    return transport


def prefill_process(pipe: Connection, backend: str, layout: Layout) -> None:
    """Serves rooms by word over the pipe: (room, pages) → a sender whose only chunk waits for the decode."""
    server = BootstrapServer(HOST, 0)
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(PATIENCE)
    manager = PrefillManager(
        config("prefill", backend, server.port), pool(backend, layout), shape(layout), lambda: None
    )
    manager.start()
    if not manager.registered.wait(PATIENCE):
        raise TimeoutError(manager.registration_failure or "not registered")
    pipe.send((server.port, manager.transport.descriptor()))
    while True:
        order = pipe.recv()
        if order is None:
            manager.close()
            os._exit(0)
        elif order == "cpu":
            pipe.send(time.process_time())
        else:
            room, pages = order
            sender = manager.sender(room, f"bench-{room}")
            sender.send(pages, True, b"first token")
            pipe.send(None)


@dataclass(frozen=True)
class Times:
    """Seconds, one per round."""

    handoff: list[float]
    copy: list[float]

    def row(self, name: str) -> str:
        ranked, floor = sorted(self.handoff), statistics.median(self.copy)
        p10, p50, p99 = (ranked[int(len(ranked) * share)] for share in (0.1, 0.5, 0.99))
        cells = "".join(f"{value * 1e3:9.2f}" for value in (p10, p50, p99, floor))
        return f"{name:52}{cells}{p50 / floor:8.2f}"


def page_list(rng: np.random.Generator, scattered: bool) -> np.ndarray:
    if scattered:
        return rng.permutation(np.arange(1, POOL_PAGES))[:PAGES].astype(np.int32)
    start = int(rng.integers(1, POOL_PAGES - PAGES))
    return np.arange(start, start + PAGES, dtype=np.int32)


class Pair:
    """A prefill in a process of its own, and a decode in this one."""

    def __init__(self, backend: str, layout: Layout) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=prefill_process, args=(theirs, backend, layout), daemon=True)
        self.process.start()
        self.port, self.descriptor = self.pipe.recv()
        self.waiter = Waiter()
        self.transport = pool(backend, layout)
        self.decode = DecodeManager(config("decode", backend, 0), self.transport, shape(layout), self.waiter.event.set)
        self.decode.start()
        self._room = 0

    def handoff(self, src: np.ndarray, dst: np.ndarray) -> float:
        self._room += 1
        self.pipe.send((self._room, src))
        self.pipe.recv()
        receiver = self.decode.receiver(self._room, f"bench-{self._room}", HOST, self.port)
        self.waiter.until("handshake", lambda: receiver.poll() >= KVPoll.WAITING_FOR_INPUT)
        began = time.perf_counter()
        receiver.send_metadata(dst)
        self.waiter.until("KV cache", lambda: receiver.poll().final)
        took = time.perf_counter() - began
        if receiver.failure is not None:
            raise RuntimeError(receiver.failure.message)
        return took

    def idle(self, seconds: float) -> tuple[float, float]:
        """Cores used by the prefill and the decode process while nothing happens."""
        self.pipe.send("cpu")
        far, near = self.pipe.recv(), time.process_time()
        threading.Event().wait(seconds)
        used = time.process_time() - near
        self.pipe.send("cpu")
        return (self.pipe.recv() - far) / seconds, used / seconds

    def close(self) -> None:
        self.pipe.send(None)
        self.decode.close()
        self.process.join(PATIENCE)


def handoff(pair: Pair, pages: Callable[[], np.ndarray]) -> float:
    return pair.handoff(pages(), pages())


def copy_only(transport: Transport, plans: list[TransferPlan], pages: Callable[[], np.ndarray]) -> float:
    src, dst = pages(), pages()
    began = time.perf_counter()
    for plan in plans:
        op = transport.post(plan, src, dst)
        while transport.poll(op) == OpState.RUNNING:
            continue
        if op.state == OpState.FAILED:
            raise RuntimeError(op.error)
    return time.perf_counter() - began


def measure(rooms: int, once: Callable[[], float], copies: Copies) -> Times:
    handoff, copy = [], []
    for index in range(WARM_UP + rooms):
        took, floor = once(), copies.once()
        if index >= WARM_UP:
            handoff.append(took)
            copy.append(floor)
    return Times(handoff, copy)


def bench(backend: str, layout: Layout, rooms: int, idle: float, copies: Copies, bulk_copies: Copies) -> None:
    rng = np.random.default_rng(1)
    pair = Pair(backend, layout)
    name = f"{backend} {layout.value}"
    for scattered in (False, True):
        kind = "scattered pages" if scattered else "contiguous run"
        lists = partial(page_list, rng, scattered)
        print(measure(rooms, partial(handoff, pair, lists), copies).row(f"{name}: hand-off, {kind}"))
    if idle:
        far, near = pair.idle(idle)
        print(f"{name}: idle {far:.4f} core (prefill), {near:.4f} core (decode) over {idle:.0f} s")
    transport, geometry = pool(backend, layout), shape(layout)
    transport.add_peer("far", pair.descriptor)
    whole = [transport.plan("far", geometry, geometry)]
    layers = [transport.plan("far", geometry, geometry, Patterns.layer(geometry, layer)) for layer in range(LAYERS)]
    for label, plans in (("one post for all layers", whole), ("one post per layer", layers)):
        once = partial(copy_only, transport, plans, partial(page_list, rng, False))
        print(measure(rooms, once, copies).row(f"{name}: copy only, {label}"))
    bulk = np.arange(1, 1 + 16 * PAGES, dtype=np.int32)
    times = measure(max(10, rooms // 10), partial(copy_only, transport, whole, lambda: bulk), bulk_copies)
    speed = statistics.median(times.copy) / statistics.median(times.handoff)
    print(f"{times.row(f'{name}: bulk 64 MiB')}   {speed:.2f} x memcpy")
    transport.close()
    pair.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", nargs="+", default=["nixl", "shm"], choices=["nixl", "shm", "mooncake", "fake"])
    parser.add_argument("--layouts", nargs="+", default=["layer-major", "page-major"])
    parser.add_argument("--rooms", type=int, default=300)
    parser.add_argument("--idle", type=float, default=5.0, help="seconds to watch an idle pair; 0: not at all")
    args = parser.parse_args()
    copies, bulk_copies = Copies(shape(Layout.PAGE_MAJOR).page_bytes * PAGES), Copies(64 << 20)
    print(f"{'milliseconds':52}{'p10':>9}{'p50':>9}{'p99':>9}{'memcpy':>9}{'p50 / memcpy':>14}")
    for backend in args.backends:
        for layout in args.layouts:
            bench(backend, Layout(layout), args.rooms, args.idle, copies, bulk_copies)
    os._exit(0)


if __name__ == "__main__":
    main()
