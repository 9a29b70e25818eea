"""CPU of this router per 1,000 requests, next to other routers on the same instant workers.

    python tests/bench/router.py                                         # this router alone
    python tests/bench/router.py --sglang-router VENV/bin/python --mini-lb VENV/bin/python --smg VENV/bin/smg
    python tests/bench/router.py --other 'NAME=COMMAND with {port} {spare} {pd}' --rounds 5 --secs 2

The router has core 0 to itself; workers and load generator share core 1. Within a round the routers come in random
order and each does every cell; a ratio is to the first other router in the same round. CPU seconds per 1,000 requests
are what survives a busy machine; `others` says how busy it was, and latencies mean little when that is not near 0.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import uvloop

from tests.ports import free_ports

HERE = Path(__file__).resolve().parent
PROMPT = "The quick brown fox jumps over the lazy dog. Say something short."
BODY = '{"model":"instant","messages":[{"role":"user","content":"%s"}],"max_tokens":32,"temperature":0%s}'
RUST = "--policy round_robin --log-level warn --prometheus-host 127.0.0.1 --prometheus-port {spare}"
PD = "--host 127.0.0.1 --port {port} --pd-disaggregation {pd}"


@dataclass(frozen=True)
class Cell:
    """One kind of load: `gap_ms` between the events of a stream, `clients` at a time."""

    name: str
    clients: int
    stream: bool = False
    gap_ms: float = 0.0


CELLS = (
    Cell("chat c=1", 1), Cell("chat c=16", 16), Cell("chat c=64", 64),
    Cell("burst c=16", 16, True), Cell("burst c=64", 64, True), Cell("paced c=64", 64, True, 10.0),
)  # fmt: skip


@dataclass(frozen=True)
class Window:
    """`cpu` in seconds per 1,000 requests; times in milliseconds; `spread` from first to last byte of a stream."""

    cpu: float
    p50: float
    p99: float
    spread: float
    others: float
    bad: int
    rss: float


class Requester(asyncio.Protocol):
    """One client: the next request as soon as an answer is whole."""

    def __init__(self, request: bytes, end: float, seen: list[tuple[float, float, int]]) -> None:
        self._request, self._end, self._seen = request, end, seen
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._buffer = b""
        self._began = self._first = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self._seen.append((0.0, 0.0, 0))
            self.done.set_result(None)

    def _next(self) -> None:
        self._buffer, self._first, self._began = b"", 0.0, time.perf_counter()
        self._transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self._first = self._first or now
        self._buffer += data
        if not self._whole():
            return
        self._seen.append((now - self._began, now - self._first, int(self._buffer[9:12])))
        if now < self._end:
            self._next()
        elif not self.done.done():
            self.done.set_result(None)
            self._transport.close()

    def _whole(self) -> bool:
        head, split, body = self._buffer.partition(b"\r\n\r\n")
        if b"chunked" in head.lower():
            return body.endswith(b"0\r\n\r\n")
        at = head.lower().find(b"content-length:")
        return bool(split) and at >= 0 and len(body) >= int(head[at + 15 :].split(b"\r\n", 1)[0])


async def load(port: int, cell: Cell, secs: float) -> list[tuple[float, float, int]]:
    body = (BODY % (PROMPT, ',"stream":true' if cell.stream else "")).encode()
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    loop, seen, end = asyncio.get_running_loop(), [], time.perf_counter() + secs
    made = [
        await loop.create_connection(lambda: Requester(head % len(body) + body, end, seen), "127.0.0.1", port)
        for _ in range(cell.clients)
    ]
    await asyncio.wait_for(asyncio.gather(*(requester.done for _, requester in made)), secs + 60)
    return seen


class Tree:
    """A process with its children, on one core."""

    def __init__(self, argv: list[str], core: int, log: Path) -> None:
        with log.open("wb") as out:
            pin = lambda: os.sched_setaffinity(0, {core % (os.cpu_count() or 1)})  # noqa: E731
            self._process = subprocess.Popen(argv, stdout=out, stderr=out, start_new_session=True, preexec_fn=pin)
        self._root = psutil.Process(self._process.pid)

    def _all(self) -> list[psutil.Process]:
        return [self._root, *self._root.children(recursive=True)]

    def cpu(self) -> float:
        return sum(sum(one.cpu_times()[:2]) for one in self._all())

    def rss(self) -> float:
        return sum(one.memory_info().rss for one in self._all()) / 2**20

    def stop(self) -> None:
        members = self._all()
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        for one in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        self._process.wait(5)


@contextlib.contextmanager
def workers(gap_ms: float, log: Path) -> Iterator[str]:
    """Two instant workers; what a router's command line says of them."""
    prefill, bootstrap, decode = free_ports(3)
    argv = [
        sys.executable,
        str(HERE / "instant_workers.py"),
        "--prefill",
        f"{prefill}:{bootstrap}",
        "--decode",
        str(decode),
    ]
    tree = Tree([*argv, "--gap-ms", str(gap_ms)], 1, log)
    try:
        wait_for(f"http://127.0.0.1:{decode}/health", None)
        yield f"--prefill http://127.0.0.1:{prefill} {bootstrap} --decode http://127.0.0.1:{decode}"
    finally:
        tree.stop()


def wait_for(url: str, body: bytes | None, timeout: float = 90.0) -> None:
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with contextlib.suppress(OSError, urllib.error.URLError):
            urllib.request.urlopen(request, timeout=5).read()
            return
        time.sleep(0.05)
    raise TimeoutError(f"no good answer from {url} within {timeout:g} s")


def measure(command: str, cells: list[Cell], secs: float, log: Path) -> dict[str, Window]:
    """One router, every cell."""
    found = {}
    for gap_ms in sorted({cell.gap_ms for cell in cells}):
        with workers(gap_ms, log.with_suffix(".workers")) as pd:
            port, spare = free_ports(2)
            router = Tree(shlex.split(command.format(port=port, spare=spare, pd=pd)), 0, log)
            try:
                wait_for(f"http://127.0.0.1:{port}/v1/chat/completions", (BODY % (PROMPT, "")).encode())
                for cell in cells:
                    if cell.gap_ms == gap_ms:
                        uvloop.run(load(port, cell, 0.5))
                        found[cell.name] = window(router, port, cell, secs)
            finally:
                router.stop()
    return found


def window(router: Tree, port: int, cell: Cell, secs: float) -> Window:
    idle = lambda: sum(psutil.cpu_times()[3:5])  # noqa: E731
    own, mine, still, began = router.cpu(), time.process_time(), idle(), time.perf_counter()
    seen = uvloop.run(load(port, cell, secs))
    used, cores, passed = router.cpu() - own, os.cpu_count() or 1, time.perf_counter() - began
    times = sorted(whole for whole, _, status in seen if status == 200)
    busy = cores * passed - (idle() - still) - used - (time.process_time() - mine)
    return Window(
        cpu=used / max(1, len(seen)) * 1000,
        p50=statistics.median(times) * 1000,
        p99=times[min(len(times) - 1, int(len(times) * 0.99))] * 1000,
        spread=statistics.median(last for _, last, _ in seen) * 1000,
        others=max(0.0, busy) / passed / cores,
        bad=len(seen) - len(times),
        rss=router.rss(),
    )


def show(results: list[dict[str, dict[str, Window]]], names: list[str], cells: list[Cell]) -> None:
    base = names[1] if len(names) > 1 else names[0]
    print(f"\nratio: to {base} in the same round; median (min-max) of {len(results)} rounds")
    print("spread: first to last byte of an answer; others: share of the machine used by all but router and load")
    columns = (
        ("cpu s/1k", 22),
        ("ratio", 20),
        ("p50 ms", 9),
        ("p99 ms", 9),
        ("spread", 9),
        ("RSS", 7),
        ("bad", 5),
        ("others", 8),
    )
    print(f"{'cell':12}{'router':16}" + "".join(f"{title:>{width}}" for title, width in columns))
    for cell in cells:
        for name in names:
            found = [one[name][cell.name] for one in results]
            ratios = [one[name][cell.name].cpu / max(1e-9, one[base][cell.name].cpu) for one in results]
            mid = statistics.median
            print(
                f"{cell.name:12}{name:16}{spread([one.cpu for one in found], 3):>22}{spread(ratios, 2):>20}"
                f"{mid(one.p50 for one in found):9.2f}{mid(one.p99 for one in found):9.2f}"
                f"{mid(one.spread for one in found):9.2f}{max(one.rss for one in found):7.0f}"
                f"{sum(one.bad for one in found):5d}{mid(one.others for one in found):8.2f}"
            )


def spread(values: list[float], digits: int) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def commands(args: argparse.Namespace) -> dict[str, str]:
    """By name; this router first."""
    ours = f"{sys.executable} -m pdctl.router --host 127.0.0.1 --port {{port}} {{pd}}"
    found = (
        {"pdctl": f"{ours} --log-level warn", "pdctl info": ours}
        if args.info
        else {"pdctl": f"{ours} --log-level warn"}
    )
    if args.sglang_router:
        found = {
            "pdctl": found.pop("pdctl"),
            "sglang-router": f"{args.sglang_router} -m sglang_router.launch_router {PD} {RUST}",
            **found,
        }
    if args.smg:
        found["smg"] = f"{args.smg} launch {PD} {RUST}"
    if args.mini_lb:
        found["mini_lb"] = f"{args.mini_lb} -m sglang_router.launch_router --mini-lb --policy random {PD}"
    return {**found, **dict(one.split("=", 1) for one in args.other)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sglang-router", metavar="PYTHON", help="of an environment with sglang-router")
    parser.add_argument("--mini-lb", metavar="PYTHON", help="likewise")
    parser.add_argument("--smg", metavar="PATH", help="the smg command")
    parser.add_argument("--other", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--info", action="store_true", help="this router a second time, with its log lines per request")
    parser.add_argument(
        "--cells", nargs="+", default=[cell.name for cell in CELLS], choices=[cell.name for cell in CELLS]
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--secs", type=float, default=1.5)
    parser.add_argument("--logs", type=Path, default=Path(tempfile.gettempdir()) / "pdctl-bench")
    args = parser.parse_args()
    args.logs.mkdir(exist_ok=True)
    with contextlib.suppress(AttributeError, OSError):
        os.sched_setaffinity(0, {1 % (os.cpu_count() or 1)})
    chosen, cells = commands(args), [cell for cell in CELLS if cell.name in args.cells]
    results = []
    for number in range(args.rounds):
        order = random.sample(list(chosen), len(chosen))
        results.append({name: measure(chosen[name], cells, args.secs, args.logs / f"{name}.log") for name in order})
        print(f"round {number + 1} of {args.rounds} done", file=sys.stderr, flush=True)
    show(results, list(chosen), cells)


if __name__ == "__main__":
    main()
