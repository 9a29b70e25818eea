"""What doctor's probes cost at size: 256 prefills, their bootstrap servers and 256 decodes, all served by one process.

    python tests/bench/doctor_scale.py                      # probes of 512 engines, then a 16 x 16 canary matrix
    python tests/bench/doctor_scale.py --delay-ms 50        # every answer takes that long, as a busy scheduler's does
    python tests/bench/doctor_scale.py --verb               # the verb itself, as a user runs it
    python tests/bench/doctor_scale.py --clients            # the same GETs with http.client and with httpx

The engines answer with what a real SGLang 0.5.23 answered (tests/data/answers): 32 KB /server_info, 76 KB /metrics.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ANSWERS = ROOT / "tests" / "data" / "answers" / "0.5.23-2p1d"
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
LOOKS = ("/server_info", "/model_info", "/v1/loads", "/metrics", "/health")
AT_ONCE = 48


def answer(body: bytes, status: int = 200) -> bytes:
    return b"HTTP/1.1 %d X\r\nserver: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (
        status,
        len(body),
        body,
    )


def recorded(name: str) -> bytes:
    return (ANSWERS / name).read_bytes()


class Face(asyncio.Protocol):
    """One request per connection, which is how pdctl asks."""

    def __init__(self, known: dict[bytes, bytes], delay: float) -> None:
        self._known, self._delay = known, delay
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        found = LENGTH.search(self._buffer[:end])
        if len(self._buffer) >= end + 4 + (int(found[1]) if found else 0):
            if self._delay:
                asyncio.get_running_loop().call_later(self._delay, self._reply)
            else:
                self._reply()

    def _reply(self) -> None:
        target = self._buffer.split(b" ", 2)[1]
        path = target.partition(b"?")[0]
        self._transport.write(self._known.get(target) or self._known.get(path) or answer(b"{}", 404))
        self._transport.close()


async def listen(known: dict[bytes, bytes], delay: float) -> int:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Face(known, delay), "127.0.0.1", 0, backlog=1024)
    return int(server.sockets[0].getsockname()[1])


def engine(who: str, bootstrap: int) -> dict[bytes, bytes]:
    info = {**json.loads(recorded(f"{who}.server_info")), "disaggregation_bootstrap_port": bootstrap}
    finish = {"type": "length", "length": 8}
    tokens = {"text": " tok" * 8, "output_ids": [1] * 8, "meta_info": {"finish_reason": finish, "completion_tokens": 8}}
    return {
        b"/server_info": answer(json.dumps(info).encode()),
        b"/model_info": answer(recorded("prefill0.model_info")),
        b"/v1/loads": answer(recorded(f"{who}.v1_loads")),
        b"/metrics": answer(recorded("prefill0.metrics")),
        b"/health": answer(b""),
        b"/generate": answer(json.dumps(tokens).encode()),
        b"/abort_request": answer(b""),
    }


async def serve(pairs: int, delay: float) -> None:
    layout = b"/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"
    prefills, decodes = [], []
    for _ in range(pairs):
        rank = json.dumps({"rank_ip": "127.0.0.1", "rank_port": await listen({}, 0.0)}).encode()
        known = {b"/health": answer(b"OK"), b"/route": answer(rank)}
        known[layout] = answer(recorded("prefill0.bootstrap8998.route4"))
        bootstrap = await listen(known, delay)
        prefills.append((await listen(engine("prefill0", bootstrap), delay), bootstrap))
        decodes.append(await listen(engine("decode0", 8998), delay))
    print(json.dumps({"prefills": prefills, "decodes": decodes}), flush=True)
    await asyncio.Event().wait()


def measured(what: str, work: Callable[[], object]) -> object:
    wall, cpu = time.monotonic(), time.process_time()
    result = work()
    wall, cpu = time.monotonic() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{what:44} {wall:6.2f} s  CPU {cpu:5.2f} s  peak RSS {peak:4} MB", flush=True)
    return result


def probes(ports: dict[str, list], width: int) -> None:
    from pdctl.autoscale.fleet_watch import FleetWatch
    from pdctl.doctor.request import listed_endpoints
    from pdctl.fleet import canary_probe
    from pdctl.fleet.bootstrap_probe import Claim, probe_bootstraps
    from pdctl.fleet.engine_probe import probe_engines
    from pdctl.fleet.observations import Endpoint

    urls = [f"http://127.0.0.1:{port}" for port, _ in ports["prefills"]]
    urls += [f"http://127.0.0.1:{port}" for port in ports["decodes"]]
    endpoints = [Endpoint(url, "prefill", url) for url in urls]
    claims = [Claim(str(port), "127.0.0.1", port, ("flag",), 1) for _, port in ports["prefills"]]
    engines = measured(f"{len(endpoints)} engines, 5 looks each", lambda: probe_engines(endpoints, 60.0))
    assert all(one.info and one.loads and one.metrics and one.health.ok for one in engines)
    servers = measured(f"{len(claims)} bootstrap servers", lambda: probe_bootstraps(claims, 60.0))
    assert all(one.ranks and one.ranks[0].reached for one in servers)
    sides = [
        canary_probe.Side(str(port), f"http://127.0.0.1:{port}", "127.0.0.1", boot)
        for port, boot in ports["prefills"][:width]
    ]
    others = [canary_probe.Side(str(port), f"http://127.0.0.1:{port}") for port in ports["decodes"][:width]]
    cells = measured(f"canary matrix {len(sides)} x {len(others)}", lambda: canary_probe.matrix(sides, others, 60.0))
    assert len(cells) == len(sides) * len(others)
    assert all(cell.ok for cell in cells)
    left = measured(f"queues of {len(endpoints)} engines", lambda: canary_probe.queues(endpoints, 60.0))
    assert all(one.read and not one.left for one in left)
    watch = FleetWatch(endpoints, "", listed_endpoints, timeout=60.0)
    look = measured(f"advise's look at {len(endpoints)} engines", lambda: watch.look(0.0))
    assert look.observation.prefills == len(ports["prefills"])


def verb(ports: dict[str, list], width: int) -> None:
    """`pdctl doctor` as a user runs it: all of them once, then `width` of each with the canary matrix."""
    every = len(ports["prefills"])
    for count, words in ((every, []), (width, ["--canary", "--no-extras"])):
        command = [sys.executable, "-m", "pdctl", "doctor", "-o", "json", *words]
        for port, boot in ports["prefills"][:count]:
            command += ["--prefill", f"http://127.0.0.1:{port},{boot}"]
        for port in ports["decodes"][:count]:
            command += ["--decode", f"http://127.0.0.1:{port}"]
        began = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=False)
        wall = time.monotonic() - began
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
        report = json.loads(done.stdout)
        assert all(cell["ok"] for cell in report["matrix"])
        what = f"pdctl doctor {' '.join(words)} on {2 * count} engines, {len(report['matrix'])} pairs"
        print(f"{what:70} {wall:6.2f} s  peak RSS {peak:4} MB  exit {done.returncode}", flush=True)


def clients(ports: dict[str, list]) -> None:
    every = [*(port for port, _ in ports["prefills"]), *ports["decodes"]]
    todo = [(port, path) for port in every for path in LOOKS]
    for name, work in (("pdctl.fleet.http_client", _own), ("http.client", _plain), ("httpx.AsyncClient", _httpx)):
        assert all(measured(f"{len(todo)} GETs with {name}", partial(work, todo)))


def _own(todo: list[tuple[int, str]]) -> list[bool]:
    from pdctl.fleet import http_client

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda one: http_client.get(f"http://127.0.0.1:{one[0]}{one[1]}", 10.0).ok, todo))


def _plain(todo: list[tuple[int, str]]) -> list[bool]:
    from http.client import HTTPConnection

    def get(one: tuple[int, str]) -> bool:
        connection = HTTPConnection("127.0.0.1", one[0], timeout=10.0)
        connection.request("GET", one[1])
        response = connection.getresponse()
        response.read()
        connection.close()
        return response.status == 200

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(get, todo))


def _httpx(todo: list[tuple[int, str]]) -> list[bool]:
    import httpx

    async def run() -> list[bool]:
        at_once = asyncio.Semaphore(AT_ONCE)  # its own pool takes minutes to hand out 2560 places
        limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=0)
        async with httpx.AsyncClient(trust_env=False, limits=limits, timeout=60.0) as client:

            async def get(port: int, path: str) -> bool:
                async with at_once:
                    return (await client.get(f"http://127.0.0.1:{port}{path}")).status_code == 200

            return await asyncio.gather(*(get(*one) for one in todo))

    return asyncio.run(run())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=256, help="prefills, and as many decodes (default: %(default)s)")
    parser.add_argument("--matrix", type=int, default=16, help="width of the canary matrix (default: %(default)s)")
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--clients", action="store_true")
    parser.add_argument("--verb", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        asyncio.run(serve(args.pairs, args.delay_ms / 1000))
        return
    command = [sys.executable, __file__, "--serve", "--pairs", str(args.pairs), "--delay-ms", str(args.delay_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            ports = json.loads(server.stdout.readline())
            if args.clients:
                clients(ports)
            elif args.verb:
                verb(ports, args.matrix)
            else:
                probes(ports, args.matrix)
        finally:
            server.terminate()


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
