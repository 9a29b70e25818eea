"""Attention TP that differs between prefill and decode: 4 MiB of a room whose heads are cut, in every pool layout.

    python tests/bench/head_cuts.py                              # nixl and shm
    python tests/bench/head_cuts.py --backends nixl --rounds 100

16 layers, 256 tokens in pages of 16, heads of 64 float32; between two processes, all cases in every round, in turn.
Times are of a post until it is done, without what the thread waited for a core; and as a multiple of copying 4 MiB
within the process.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from pdctl.engine.kvcache.pool_geometry import Layout, PoolGeometry
from pdctl.engine.transfer.transport import Cut, TransferPlan, Transport
from tests.bench.kv_handoff import Copies
from tests.bench.transfer_patterns import timed, wait
from tests.engine.transfer.far import FarPool, open_pool

SLABS, PAGES, POOL_PAGES, HEADS = 32, 16, 256, 2
WARM_UP = 3
# Heads of a prefill rank, heads of a decode rank, and the first of those that move on either side.
CUTS = {
    "equal": (HEADS, HEADS, 0, 0),
    "prefill has twice the heads": (2 * HEADS, HEADS, HEADS, 0),
    "decode has twice the heads": (HEADS, 2 * HEADS, 0, HEADS),
}


def shape(heads: int, layout: Layout) -> PoolGeometry:
    return PoolGeometry(
        layers=16, num_pages=POOL_PAGES, page_size=16, kv_heads=heads, head_dim=64, itemsize=4, layout=layout
    )


def run(rng: np.random.Generator) -> np.ndarray:
    start = int(rng.integers(1, POOL_PAGES - PAGES))
    return np.arange(start, start + PAGES, dtype=np.int32)


def scattered(rng: np.random.Generator) -> np.ndarray:
    return rng.permutation(np.arange(1, POOL_PAGES))[:PAGES].astype(np.int32)


PLACES: tuple[Callable[[np.random.Generator], np.ndarray], ...] = (run, scattered)


def post(transport: Transport, plan: TransferPlan, src: np.ndarray, dst: np.ndarray) -> None:
    wait(transport, transport.post(plan, src, dst))


def bench(backend: str, rounds: int) -> None:
    rng, largest = np.random.default_rng(1), shape(2 * HEADS, Layout.LAYER_MAJOR)
    far = FarPool(backend, largest)
    transport, _ = open_pool(backend, largest, 1)
    transport.add_peer("far", far.descriptor)
    copies, floor = Copies(4 << 20), []
    plans = {}
    for layout, (name, (near, there, local, remote)) in itertools.product(Layout, CUTS.items()):
        cut = Cut(slabs=SLABS, heads=HEADS, local_head=local, remote_head=remote)
        plans[layout.value, name] = transport.plan("far", shape(near, layout), shape(there, layout), cut)
    times: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for index in range(WARM_UP + rounds):
        floor.append(timed(copies.once).own)
        for ((layout, name), plan), pages in itertools.product(plans.items(), PLACES):
            src, dst = pages(rng), pages(rng)
            cost = timed(partial(post, transport, plan, src, dst))
            if index >= WARM_UP:
                times[layout, name, pages.__name__].append(cost.own)
    copy = statistics.median(floor[WARM_UP:])
    for (layout, name, where), taken in times.items():
        middle, pieces = statistics.median(taken), plans[layout, name].per_page * PAGES
        print(f"{backend:6}{layout:13}{name:30}{where:11}{pieces:7}{middle * 1e3:9.2f}{middle / copy:9.1f}", flush=True)
    transport.close()
    far.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", nargs="+", default=["nixl", "shm"], choices=["nixl", "shm"])
    parser.add_argument("--rounds", type=int, default=40)
    args = parser.parse_args()
    print(f"{'':60}{'pieces':>7}{'p50 ms':>9}{'÷ memcpy':>9}")
    for backend in args.backends:
        bench(backend, args.rounds)


if __name__ == "__main__":
    main()
