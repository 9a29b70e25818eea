"""How near the KV transfer comes to copying memory, what other ways of sending cost, and what a modelled network adds.

    python tests/bench/transfer_limits.py                                  # shm, nixl, nixl over TCP, shaped
    python tests/bench/transfer_limits.py --backends shm --rounds 50
    python tests/bench/transfer_limits.py --backends mooncake --python .../bin/python   # an environment that has it

61 layers of one latent each, 16 KiB per page and layer, 16 pages (256 tokens, 15 MiB) between two processes. Every
round does everything once, with a copy of the same bytes within this process among it; ratios are between medians of
one run, of wall time without what the sending thread waited for a core. Each backend has a process of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from pdctl.engine.drill.kv_faults import ShapedTransport
from pdctl.engine.drill.modelled_link import ModelledLink, Wire
from pdctl.engine.kvcache.pool_geometry import Layout, PoolGeometry
from pdctl.engine.transfer import segment, select
from pdctl.engine.transfer.transport import Op, OpState, Transport
from tests.bench.transfer_patterns import Cost, Patterns, timed

HOST = "127.0.0.1"
LAYERS, PAGES, POOL_PAGES = 61, 16, 160
BULK = 4  # times as many bytes, in one piece
PATIENCE = 60.0
# Over TCP both kinds of nixl peers are processes like any other; UCX must not find a shorter way.
ENVIRONMENTS = {"shm": {}, "nixl": {}, "nixl-tcp": {"UCX_TLS": "tcp,self", "UCX_MODULES": ""}, "mooncake": {}}
GOALS = {"bulk": 0.92, "merged": 0.95, "scattered": 0.85}

# The paper arithmetic: MLA, 61 layers, 400 Gb/s of which 45 GB/s are payload.
TOKEN_BYTES, USABLE, COMPUTE = 1152, 45e9, 20_000
TOKENS, COSTS, LANES = (256, 1024, 4096), (50e-6, 150e-6), (1, 3, 12)


def shape(layout: Layout) -> PoolGeometry:
    return PoolGeometry(
        layers=LAYERS, slabs_per_layer=1, num_pages=POOL_PAGES, page_size=16, kv_heads=1, head_dim=256, itemsize=4,
        layout=layout,
    )  # fmt: skip


class Copies:
    """The floor: memory copies of the same size, walking through buffers far larger than the caches."""

    def __init__(self, nbytes: int) -> None:
        span = max(256 << 20, 2 * nbytes)
        self._nbytes, self._count, self._next = nbytes, span // nbytes, 0
        self._src, self._dst = (segment.as_bytes(segment.anonymous(span)) for _ in range(2))

    def once(self, *_: object) -> None:
        start = self._next * self._nbytes
        self._next = (self._next + 1) % self._count
        self._dst[start : start + self._nbytes] = self._src[start : start + self._nbytes]


def pool(backend: str, geometry: PoolGeometry) -> Transport:
    transport = select.create(backend.removesuffix("-tcp"), HOST)
    transport.register(transport.allocate(geometry.nbytes))
    return transport


def far_process(pipe: Connection, backend: str, geometries: list[PoolGeometry]) -> None:
    """Pools that are written into; over TCP somebody has to help."""
    transports = [pool(backend, geometry) for geometry in geometries]
    pipe.send([transport.descriptor() for transport in transports])
    helps = backend == "nixl-tcp"
    while not pipe.poll(0 if helps else None):
        for transport in transports:
            transport.progress()
    os._exit(0)


class Far:
    def __init__(self, backend: str, geometries: list[PoolGeometry]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=far_process, args=(theirs, backend, geometries), daemon=True)
        self._process.start()
        if not self._pipe.poll(PATIENCE):
            raise TimeoutError(f"the other process opened no pool within {PATIENCE:g} s")
        self.descriptors: list[bytes] = self._pipe.recv()
        self.pid = self._process.pid or 0

    def close(self) -> None:
        self._pipe.send(None)
        self._process.join(PATIENCE)


def run(rng: np.random.Generator, count: int = PAGES) -> np.ndarray:
    start = int(rng.integers(1, POOL_PAGES - count))
    return np.arange(start, start + count, dtype=np.int32)


def scatter(rng: np.random.Generator) -> np.ndarray:
    return rng.permutation(np.arange(1, POOL_PAGES))[:PAGES].astype(np.int32)


class Work(NamedTuple):
    """`pages` makes a page list, for each side one, before the clock starts. `batch` names what the engine would do."""

    act: Callable[..., object]
    pages: Callable[[], np.ndarray]
    size: int = 1  # of the bytes of the others
    batch: str = ""
    others: bool = False  # threads or processes that do the copying, so that waiting for them counts


def measure(works: dict[str, Work], rounds: int, warm_up: int = 3) -> dict[str, Cost]:
    """One of each per round."""
    times: dict[str, list[Cost]] = {name: [] for name in works}
    for index in range(warm_up + rounds):
        for name, work in works.items():
            spent = timed(partial(work.act, work.pages(), work.pages()))
            if index >= warm_up:
                times[name].append(spent)
    return {name: Cost(*map(statistics.median, zip(*values, strict=True))) for name, values in times.items()}


def limits(backend: str, rounds: int) -> None:
    rng = np.random.default_rng(1)
    layouts = [shape(Layout.LAYER_MAJOR), shape(Layout.PAGE_MAJOR)]
    far = Far(backend, layouts)
    both = []
    for geometry, descriptor in zip(layouts, far.descriptors, strict=True):
        transport = pool(backend, geometry)
        transport.add_peer("far", descriptor)
        both.append(Patterns(transport, "far", geometry, geometry))
    layers, pages = both
    nbytes = layers.whole.nbytes(PAGES)
    others = backend not in ("shm", "nixl")
    merged, scattered, large = partial(run, rng), partial(scatter, rng), partial(run, rng, BULK * PAGES)
    works = {
        "memcpy": Work(Copies(nbytes).once, merged),
        "memcpy, bulk": Work(Copies(BULK * nbytes).once, merged, BULK),
        "bulk": Work(pages.batch, large, BULK, others=others),
        "merged": Work(layers.batch, merged, others=others),
        "scattered": Work(layers.batch, scattered, others=others),
        "scattered, page-major": Work(pages.batch, scattered, others=others),
    }
    if backend == "nixl":
        kernel = KernelCopies(far.pid, layers, far.descriptors[0])
        works["process_vm_writev, merged"] = Work(kernel.merged, merged)
        works["process_vm_writev, scattered"] = Work(kernel.scattered, scattered)
    for batch, lists in (("merged", merged), ("scattered", scattered)):
        works[f"{batch}, serial"] = Work(layers.serial, lists, batch=batch, others=others)
        for threads in (1, 3, 4):
            works[f"{batch}, executor-{threads}"] = Work(
                partial(layers.executor, threads), lists, batch=batch, others=True
            )
    found = measure(works, rounds)
    print(f"\n{backend}: {nbytes / 2**20:.1f} MiB, {LAYERS} layers, median of {rounds} rounds")
    print(f"{'':30}{'ms':>9}{'CPU ms':>9}{'GB/s':>8}{'x memcpy':>10}{'goal':>7}{'/ batch':>9}{'its CPU':>9}")
    for name in found:
        print(f"{name:30}{row(name, works, found, nbytes)}")
    pipelines(layers, rng, max(5, rounds // 4))
    for one in both:
        one.close()
        one.transport.close()
    far.close()


def row(name: str, works: dict[str, Work], found: dict[str, Cost], nbytes: int) -> str:
    def spent(name: str) -> float:
        return found[name].wall if works[name].others else found[name].own

    work, cost = works[name], found[name]
    floor = spent("memcpy" if work.size == 1 else "memcpy, bulk")
    goal = f"{GOALS[name]:7.2f}" if name in GOALS and not work.others else " " * 7
    speed = f"{work.size * nbytes / spent(name) / 1e9:8.2f}{floor / spent(name):10.2f}"
    batch = work.batch
    against = f"{spent(name) / spent(batch):9.2f}{cost.cpu / found[batch].cpu:9.2f}" if batch else ""
    return f"{spent(name) * 1e3:9.2f}{cost.cpu * 1e3:9.2f}{speed}{goal}{against}"


class KernelCopies:
    """What UCX does for nixl between processes of one host, without nixl and UCX: the kernel's own copy."""

    def __init__(self, pid: int, layers: Patterns, descriptor: bytes) -> None:
        self._pid, self._geometry = pid, shape(Layout.LAYER_MAJOR)
        ours, theirs = (msgspec.msgpack.decode(one) for one in (layers.transport.descriptor(), descriptor))
        self._near, self._far = ours["address"], theirs["address"]
        self._call = ctypes.CDLL(None, use_errno=True).process_vm_writev
        self._call.restype, self._call.argtypes = ctypes.c_ssize_t, [
            ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong,
        ]  # fmt: skip

    def merged(self, src: np.ndarray, dst: np.ndarray) -> None:
        self._copy(src[:1], dst[:1], len(src) * self._geometry.item_bytes)

    def scattered(self, src: np.ndarray, dst: np.ndarray) -> None:
        self._copy(src, dst, self._geometry.item_bytes)

    def _copy(self, src: np.ndarray, dst: np.ndarray, length: int) -> None:
        near, far = self._vector(self._near, src, length), self._vector(self._far, dst, length)
        count = len(near)
        moved = self._call(self._pid, near.ctypes.data, count, far.ctypes.data, count, 0)
        if moved != count * length:
            raise OSError(ctypes.get_errno(), f"{moved} of {count * length} bytes moved")

    def _vector(self, base: int, pages: np.ndarray, length: int) -> np.ndarray:
        one = self._geometry
        offsets = np.arange(LAYERS)[:, None] * one.slab_stride + pages.astype(np.int64) * one.page_stride
        vector = np.empty((offsets.size, 2), dtype=np.uint64)
        vector[:, 0], vector[:, 1] = base + offsets.ravel(), length
        return vector


def pipelines(patterns: Patterns, rng: np.random.Generator, rounds: int) -> None:
    """One batch behind the compute, or every layer beside it: what is exposed, and what the whole prefill takes."""
    left, right = np.ones((256, 384), dtype=np.float32), np.ones((384, 384), dtype=np.float32)

    def compute() -> None:
        np.tanh(left @ right, out=left)

    times: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for _ in range(rounds):
        for pipelined, values in times.items():
            values.append(patterns.computed(compute, run(rng), run(rng), pipelined))
    for pipelined, values in times.items():
        exposed = statistics.median(whole - last for last, whole in values)
        whole = statistics.median(whole for _, whole in values)
        what = "every layer, beside the compute" if pipelined else "one batch behind the compute"
        print(f"{what:34} exposed {exposed * 1e3:6.2f} ms   compute and transfer {whole * 1e3:7.2f} ms")


def shaped(slower: float, rounds: int) -> None:
    """A modelled link in slow motion beside the arithmetic: without bytes, and one batch of real ones through shm.

    Of `rounds` tries the least disturbed counts: what else runs on the machine can only add to a wait.
    """
    page = 64
    geometry = PoolGeometry(
        layers=LAYERS, slabs_per_layer=1, num_pages=1 + max(TOKENS) // page, page_size=page, kv_heads=1,
        head_dim=TOKEN_BYTES // 2, itemsize=2,
    )  # fmt: skip
    far = Far("shm", [geometry])
    real, fake = pool("shm", geometry), pool("fake", geometry)
    real.add_peer("far", far.descriptors[0])
    fake.add_peer("far", fake.descriptor())
    print(f"\nshaped, 400 Gb/s, {LAYERS} layers of {TOKEN_BYTES} B a token; ms (here {slower:g} times as long)")
    print(f"{'':44}{'measured':>10}{'model':>10}{'paper':>10}{'meas. / paper':>14}{'/ batch':>9}")
    worst = 0.0
    for tokens in TOKENS:
        pages = np.arange(1, 1 + tokens // page, dtype=np.int32)
        for cost in COSTS:
            batch = 0.0
            for inner, lanes in ((real, 0), (fake, 0), *((fake, lanes) for lanes in LANES)):
                link = ModelledLink(rate=USABLE, op=cost, lanes=max(1, lanes))
                slow = link.slowed(slower)
                found = min(send(inner, geometry, slow, pages, lanes) for _ in range(rounds)) / slower
                paper = arithmetic(tokens, cost, lanes)
                batch = batch or found
                worst = max(worst, abs(found / paper - 1))
                how = (
                    f"per layer, {lanes} at a time" if lanes else f"one batch{', real bytes' if inner is real else ''}"
                )
                times = "".join(f"{value * 1e3:10.2f}" for value in (found, modelled(link, tokens, lanes), paper))
                name = f"{tokens:5} tokens, {cost * 1e6:3.0f} us, {how:23}"
                print(f"{name}{times}{found / paper:14.3f}{found / batch:9.1f}", flush=True)
            tail = exposed(ModelledLink(rate=USABLE, op=cost), tokens)
            print(f"{'':21}{'layers beside compute: tail':33}{tail * 1e3:10.2f}", flush=True)
    print(f"farthest from the paper: {worst:.1%} (goal 10%)")
    real.close()
    far.close()


class Moment:
    """A clock that stands still while all layers are posted: the arithmetic takes them to begin at once.

    Where they do not, one layer's preparation hides behind another's bytes and the whole takes less.
    """

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.posting = True

    def __call__(self) -> float:
        return self.began if self.posting else time.monotonic()


def send(inner: Transport, geometry: PoolGeometry, link: ModelledLink, pages: np.ndarray, lanes: int) -> float:
    """Seconds from the first post to the last arrival. The link has `lanes`; who posts need not be as many threads."""
    clock = Moment()
    transport = ShapedTransport(inner, link, clock)
    patterns = Patterns(transport, "far", geometry, geometry)
    clock.began = time.monotonic()
    ops = [transport.post(plan, pages, pages) for plan in (patterns.layers if lanes else [patterns.whole])]
    clock.posting = False
    finish(transport, ops)
    took = time.monotonic() - clock.began
    patterns.close()
    return took


def finish(transport: Transport, ops: list[Op]) -> None:
    while running := [op for op in ops if transport.poll(op) == OpState.RUNNING]:
        time.sleep(max(0.0, min(op.due for op in running) - time.monotonic()))
    assert all(op.state == OpState.DONE for op in ops)


def modelled(link: ModelledLink, tokens: int, lanes: int) -> float:
    wire, layer = Wire(link, 0.0), tokens * TOKEN_BYTES
    for size in [layer] * LAYERS if lanes else [layer * LAYERS]:
        wire.begin(size, 1, 0.0)
    return drained(wire)


def exposed(link: ModelledLink, tokens: int) -> float:
    """What is left of the transfer when the last layer has been computed, 20,000 tokens a second."""
    wire, step = Wire(link, 0.0), tokens / COMPUTE / LAYERS
    for layer in range(LAYERS):
        wire.begin(tokens * TOKEN_BYTES, 1, (layer + 1) * step)
    return drained(wire) - LAYERS * step


def drained(wire: Wire) -> float:
    while wire.due < math.inf:
        wire.advance(wire.due)
    return wire.now


def arithmetic(tokens: int, cost: float, lanes: int) -> float:
    """ceil(61 / k) * o + bytes / rate: only the cost per operation divides by k, the wire is shared."""
    return (math.ceil(LAYERS / lanes) if lanes else 1) * cost + LAYERS * tokens * TOKEN_BYTES / USABLE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = [*ENVIRONMENTS, "shaped"]
    parser.add_argument("--backends", nargs="+", default=["shm", "nixl", "nixl-tcp", "shaped"], choices=every)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--slower", type=float, default=100.0, help="slow motion of `shaped` (default: %(default)s)")
    parser.add_argument("--python", default=sys.executable, help="the interpreter for the backends")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    for backend in args.backends:
        if not args.here:
            words = [args.python, __file__, "--here", "--backends", backend, "--rounds", str(args.rounds)]
            command = [*words, "--slower", str(args.slower)]
            subprocess.run(command, env={**os.environ, **ENVIRONMENTS.get(backend, {})}, check=False)
        elif backend == "shaped":
            shaped(args.slower, max(1, args.rounds // 10))
        else:
            limits(backend, args.rounds)
    sys.stdout.flush()
    with contextlib.suppress(BrokenPipeError):
        os._exit(0)


if __name__ == "__main__":
    main()
