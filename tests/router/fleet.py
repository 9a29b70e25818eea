"""A client for the router's tests, and the router together with its workers in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from pdctl.router.router_args import Origin, RouterArgs, WorkerArg
from pdctl.router.router_process import RouterProcess
from tests.router.workers import Worker


@dataclass
class Answer:
    """`chunks` as they were framed by the router; `body` is all of them."""

    status: int
    headers: dict[str, str]
    body: bytes
    chunks: list[bytes] = field(default_factory=list)
    complete: bool = True

    def json(self) -> dict:
        return json.loads(self.body)

    @property
    def room(self) -> int:
        return int(self.headers["x-pd-room"])

    @property
    def pair(self) -> tuple[str, str]:
        return self.headers["x-pd-prefill"], self.headers["x-pd-decode"]


class Client:
    """One keep-alive connection to the router."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def __aenter__(self) -> Client:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    def send(self, method: str, path: str, body: bytes | dict = b"", **headers: str) -> None:
        raw = json.dumps(body).encode() if isinstance(body, dict) else body
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = f"{method} {path} HTTP/1.1\r\nhost: router\r\ncontent-length: {len(raw)}\r\n{lines}\r\n"
        self.writer.write(head.encode() + raw)

    async def head(self) -> Answer:
        text = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = text.strip().split("\r\n")
        pairs = (line.split(":", 1) for line in lines)
        return Answer(int(first.split(" ")[1]), {name.lower(): value.strip() for name, value in pairs}, b"")

    async def chunk(self) -> bytes:
        """The next chunk; empty for the last."""
        size = int((await self.reader.readline()).strip(), 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    async def answer(self, *, bodiless: bool = False) -> Answer:
        answer = await self.head()
        try:
            if answer.headers.get("transfer-encoding") == "chunked":
                while chunk := await self.chunk():
                    answer.chunks.append(chunk)
                answer.body = b"".join(answer.chunks)
            elif not bodiless:
                answer.body = await self.reader.readexactly(int(answer.headers["content-length"]))
        except (ValueError, asyncio.IncompleteReadError):
            answer.complete = False
        return answer


class Fleet:
    """Workers and the router in front of them."""

    def __init__(self, prefills: list[Worker], decodes: list[Worker], router: RouterProcess, port: int) -> None:
        self.prefills, self.decodes, self.router, self.port = prefills, decodes, router, port

    @property
    def workers(self) -> list[Worker]:
        return [*self.prefills, *self.decodes]

    def client(self) -> Client:
        return Client(self.port)

    async def ask(self, method: str, path: str, body: bytes | dict = b"", **headers: str) -> Answer:
        async with self.client() as client:
            client.send(method, path, body, **headers)
            return await asyncio.wait_for(client.answer(bodiless=method == "HEAD"), 60)

    async def generate(self, body: dict | None = None, path: str = "/generate", **headers: str) -> Answer:
        return await self.ask("POST", path, {"text": "hi"} if body is None else body, **headers)

    async def get(self, path: str) -> dict:
        return (await self.ask("GET", path)).json()

    async def worker(self, one: Worker) -> dict:
        """Its entry in GET /workers."""
        return next(entry for entry in (await self.get("/workers"))["workers"] if entry["url"] == one.url)

    async def ready(self, pairs: int) -> None:
        async def enough() -> bool:
            return (await self.get("/readiness"))["usable_pairs"] == pairs

        await until(enough, f"{pairs} usable pairs")


QUICK = {
    "health_interval": 0.05,
    "probe_interval": 0.05,
    "probe_timeout": 10.0,
    "health_timeout": 10.0,
    "retry_backoff": 0.01,
    "cb_timeout": 0.3,
}


@contextlib.asynccontextmanager
async def fleet(
    prefills: int = 1,
    decodes: int = 1,
    *,
    ready: bool = True,
    ports: bool = False,
    prepare: Callable[[list[Worker], list[Worker]], Awaitable[None]] | None = None,
    **changes: object,
) -> AsyncIterator[Fleet]:
    """A router before that many workers; `ports` gives it their ports, `prepare` alters workers before it looks."""
    ps = [await Worker("prefill").start() for _ in range(prefills)]
    ds = [await Worker("decode").start() for _ in range(decodes)]
    if prepare is not None:
        await prepare(ps, ds)
    args = RouterArgs(
        prefill=tuple(WorkerArg(Origin.parse(one.url), one.bootstrap.port if ports else None) for one in ps),
        decode=tuple(WorkerArg(Origin.parse(one.url)) for one in ds),
        port=0,
        **{**QUICK, **changes},
    )
    router = RouterProcess(args)
    made = Fleet(ps, ds, router, await router.start())
    try:
        if ready:
            await made.ready(prefills * decodes)
        yield made
    finally:
        await router.stop()
        for worker in made.workers:
            await worker.stop()
        await until(lambda: not any(worker.connections for worker in made.workers), "all connections to end")


async def until(condition: Callable[[], bool | Awaitable[bool]], what: str, timeout: float = 60.0) -> None:
    """Poll with a deadline that names what was waited for."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        value = condition()
        if value is True or (not isinstance(value, bool) and await value):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"not within {timeout:g} s: {what}")
