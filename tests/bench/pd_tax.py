"""What disaggregation costs on this machine: TTFT of 1P1D beside the unified engine, start-up time, resident memory.

Usage: python tests/bench/pd_tax.py [--requests 100] [--tokens 256] [--set PATH=VALUE].
Starts its own processes on free ports.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.e2e.conftest import TINY, start, wait_for
from tests.ports import free_block


def ttft(client: httpx.Client, url: str, ids: list[int]) -> float:
    """Milliseconds to the first streamed token."""
    body = {
        "input_ids": ids,
        "sampling_params": {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True},
        "stream": True,
    }
    began = time.perf_counter()
    with client.stream("POST", f"{url}/generate", json=body) as answer:
        assert answer.status_code == 200
        first = 0.0
        for line in answer.iter_lines():
            if not first and line.startswith("data: {"):
                first = time.perf_counter()
    return (first - began) * 1e3


def moved(client: httpx.Client, url: str, tokens: int) -> int:
    """Bytes of KV cache that a prompt of so many tokens takes from prefill to decode."""
    body = {"input_ids": list(range(5, 5 + tokens)), "sampling_params": {"max_new_tokens": 1}}
    return int(client.post(f"{url}/generate", json=body).json()["meta_info"]["kv_transfer_bytes"])


def copies(nbytes: int, rounds: int) -> list[float]:
    """Milliseconds of copying that much memory which was not touched lately."""
    source, target = (np.ones(256 << 20, dtype=np.uint8) for _ in range(2))
    times = []
    for index in range(rounds):
        start = index * nbytes % (len(source) - nbytes)
        began = time.perf_counter()
        target[start : start + nbytes] = source[start : start + nbytes]
        times.append((time.perf_counter() - began) * 1e3)
    return times


def tree_rss(pid: int) -> float:
    """Resident megabytes of a process and everything below it (shared pages counted in each)."""
    parent = psutil.Process(pid)
    return sum(process.memory_info().rss for process in (parent, *parent.children(recursive=True))) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="of the 1P1D topology")
    options = parser.parse_args()
    rng = random.Random(3)
    with tempfile.TemporaryDirectory() as folder, httpx.Client(timeout=60) as client:
        port = free_block(1)
        engine = subprocess.Popen(
            [sys.executable, "-m", "pdctl.engine", "--model-path", str(TINY), "--port", str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        unified = f"http://127.0.0.1:{port}"
        pair = None
        try:
            wait_for("unified engine", lambda: httpx.get(f"{unified}/health", timeout=5).status_code == 200, 60)
            began = time.perf_counter()
            sets = [word for setting in options.set for word in ("--set", setting)]
            pair = start(Path(folder), "tax", "topologies/1p1d.yaml", 1, *sets)
            ready = time.perf_counter() - began
            targets = {"unified": unified, "1P1D through the router": pair.router}
            times: dict[str, list[float]] = {name: [] for name in targets}
            for index in range(options.requests + 5):
                for name, url in targets.items():
                    value = ttft(client, url, [rng.randrange(5, 250) for _ in range(options.tokens)])
                    if index >= 5:
                        times[name].append(value)
            for name, values in times.items():
                print(f"{name:26} TTFT p50 {statistics.median(values):7.2f} ms   p99 {sorted(values)[-1]:7.2f} ms")
            nbytes = moved(client, pair.router, options.tokens)
            copy = statistics.median(copies(nbytes, options.requests))
            print(f"{'memcpy of its KV cache':26}      p50 {copy:7.2f} ms   {nbytes} bytes")
            tax = statistics.median(times["1P1D through the router"]) - statistics.median(times["unified"])
            print(f"{'added by PD':26}      p50 {tax:7.2f} ms")
            print(f"{'launch -d to verified':26}          {ready:7.2f} s")
            pids = pair.processes()
            print(f"{'resident, 1P1D + router':26}          {sum(tree_rss(pid) for pid in pids.values()):7.0f} MB")
        finally:
            if pair is not None:
                pair.pdctl("down", "tax")
            engine.terminate()
            engine.wait(20)


if __name__ == "__main__":
    main()
