"""How long an engine's HTTP process stands still while large bodies come: `python -m tests.bench.large_bodies_engine`.

`--checkouts A B`: engines of several checkouts, kind by kind in turn, `--rounds` times. Printed is the longest time a
GET /ready took meanwhile (median and worst of the rounds), and what the last body was answered with.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KINDS: dict[str, Callable[[int], bytes]] = {
    "one string": lambda size: b'{"text":"' + b"abcdefg " * (size // 8) + b'"}',
    "escapes": lambda size: b'{"text":"' + b"\\n" * (size // 2) + b'"}',
    "token ids": lambda size: b'{"input_ids":[' + b"12345," * (size // 6) + b"1]}",
    "rows of ids": lambda size: b'{"input_ids":[' + (b"[" + b"123," * 2000 + b"1],") * (size // 8003) + b"[1]]}",
    "4095 rows": lambda size: b'{"input_ids":[' + (b"[" + b"1234," * (size // 20480) + b"1],") * 4094 + b"[1]]}",
    "4096 texts": lambda size: b'{"text":[' + (b'"' + b"abcdefg " * 240 + b'",') * 4095 + b'"a"]}',
    "settings": lambda size: b'{"text":"a","sampling_params":[' + b"{}," * 85_000 + b"{}]}",
    "texts": lambda size: b'{"text":[' + b'"abcdefg",' * (size // 10) + b'"a"]}',
    "errors": lambda size: b'{"text":[' + b"1," * (size // 2) + b"1]}",
    "unknown": lambda size: (
        b'{"x":[' + b'{"a":1},' * (size // 8) + b'1],"text":"a","sampling_params":{"max_new_tokens":1}}'
    ),
}


class Engine:
    def __init__(self, checkout: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        argv = [sys.executable, "-m", "pdctl.engine", "--model-path", str(checkout / "pdctl/checkpoints/tiny")]
        environ = {**os.environ, "PYTHONPATH": str(checkout)}
        argv += ["--port", str(self.port)]
        self.process = subprocess.Popen(
            argv, env=environ, cwd=checkout, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def ask(self, method: str, path: str, body: bytes | None = None, seconds: float = 600.0) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            connection.request(method, path, body, {"content-type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            return answer.status
        finally:
            connection.close()

    def wait(self) -> None:
        for _ in range(600):
            with contextlib.suppress(OSError):
                if self.ask("GET", "/ready", seconds=5) == 200:
                    return
            time.sleep(0.2)
        raise SystemExit("the engine is not ready")

    def stall(self, body: bytes) -> tuple[float, int]:
        """The longest /ready in milliseconds, and the status of the answer to `body`."""
        over, longest, status = threading.Event(), 0.0, list[int]()

        def send() -> None:
            status.append(self.ask("POST", "/generate", body))
            over.set()

        sender = threading.Thread(target=send)
        sender.start()
        while not over.is_set():
            began = time.monotonic()
            self.ask("GET", "/ready")
            longest = max(longest, time.monotonic() - began)
            over.wait(0.002)
        sender.join()
        return 1000 * longest, status[0]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.large_bodies_engine", description=__doc__)
    parser.add_argument("--checkouts", type=Path, nargs="+", default=[ROOT])
    parser.add_argument("--mib", type=float, default=31.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    args = parser.parse_args()
    engines = [Engine(checkout.resolve()) for checkout in args.checkouts]
    try:
        for engine in engines:
            engine.wait()
        for kind in args.kinds:
            body = KINDS[kind](int(args.mib * 2**20))
            rounds = [[engine.stall(body) for engine in engines] for _ in range(args.rounds)]
            for checkout, found in zip(args.checkouts, zip(*rounds, strict=True), strict=True):
                stalls = [stall for stall, _ in found]
                print(
                    f"{kind:12} {checkout}: median {statistics.median(stalls):7.0f} ms, worst {max(stalls):7.0f} ms, "
                    f"answered {found[-1][1]}",
                    flush=True,
                )
    finally:
        for engine in engines:
            engine.process.terminate()
            engine.process.wait(60)


if __name__ == "__main__":
    main()
