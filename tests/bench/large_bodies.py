"""How long the router's event loop stands still while large bodies pass: `python -m tests.bench.large_bodies [MB]`.

A ticker in the router's own loop wants to run every millisecond; the longest time between two of its turns is printed
for each kind of body, and the most CPU time the loop used between two turns: on a busy machine the first also has
what the system gave to others. Workers and client are other processes, so that only the router's work counts.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import sys
import time
from typing import TYPE_CHECKING

import uvloop

from pdctl.router.router_args import BootstrapCheck, Origin, RouterArgs, WorkerArg
from pdctl.router.router_process import RouterProcess

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

KINDS = {
    "one string": lambda size: b'{"text":"' + b"abcdefg " * (size // 8) + b'"}',
    "escapes": lambda size: b'{"text":"' + b"\\n" * (size // 2) + b'"}',
    "token ids": lambda size: b'{"input_ids":[' + b"12345," * (size // 6) + b"1]}",
    "short strings": lambda size: b'{"x":[' + b'"ab",' * (size // 5) + b'"a"],"text":"a"}',
    "own room": lambda size: b'{"bootstrap_room":1,"text":"' + b"abcdefg " * (size // 8) + b'"}',
    "cut off": lambda size: b'{"text":"' + b"abcdefg " * (size // 8),
}


def worker(pipe: Connection, role: str) -> None:
    """Reads requests of any size and answers them."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                return
            length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), b":0")
            left = int(length.split(b":")[1])
            while left:
                left -= len(await reader.read(min(left, 1 << 20)))
            info = {"disaggregation_mode": role, "disaggregation_bootstrap_port": 1}
            body = json.dumps(info if b"server_info" in head else {"text": "ok"}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body))
            writer.write(body)

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


def client(pipe: Connection, port: int, size: int) -> None:
    import http.client

    for name, make in KINDS.items():
        body = make(size)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        pipe.send((name, None))
        began = time.monotonic()
        connection.request("POST", "/generate", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        pipe.send((answer.status, time.monotonic() - began))
        connection.close()
    pipe.send(None)


async def measure(ports: list[int], size: int) -> None:
    origins = [WorkerArg(Origin.parse(f"http://127.0.0.1:{port}")) for port in ports]
    args = RouterArgs(
        prefill=(origins[0],), decode=(origins[1],), port=0, bootstrap_check=BootstrapCheck.OFF, retries=0,
        request_timeout=600.0,
    )  # fmt: skip
    router = RouterProcess(args)
    port = await router.start()
    await asyncio.sleep(2.0)
    longest, last, work, busy = 0.0, time.monotonic(), 0.0, time.thread_time()
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=client, args=(there, port, size), daemon=True)
    process.start()
    loop = asyncio.get_running_loop()
    waiting = loop.run_in_executor(None, here.recv)
    name = ""
    while True:
        await asyncio.sleep(0.001)
        now = time.monotonic()
        longest, last = max(longest, now - last), now
        spent = time.thread_time()
        work, busy = max(work, spent - busy), spent
        if not waiting.done():
            continue
        told = waiting.result()
        if told is None:
            break
        if told[1] is None:
            name, longest, work = told[0], 0.0, 0.0
        else:
            stall = f"longest stall {1000 * longest:6.1f} ms, of it CPU time of the loop {1000 * work:6.1f} ms"
            print(f"{name:14} {told[0]}  {told[1]:6.2f} s, {stall}", flush=True)
        waiting = loop.run_in_executor(None, here.recv)
    await router.stop()


def main() -> None:
    size = int(sys.argv[1]) * 1_000_000 if sys.argv[1:] else 100_000_000
    spawn = multiprocessing.get_context("spawn")
    ports = []
    for role in ("prefill", "decode"):
        here, there = spawn.Pipe()
        spawn.Process(target=worker, args=(there, role), daemon=True).start()
        ports.append(here.recv())
    sys.setswitchinterval(0.001)
    uvloop.run(measure(ports, size))


if __name__ == "__main__":
    main()
