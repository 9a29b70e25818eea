"""Small real HTTP workers for the router's tests: a prefill or decode with its faults, and a bootstrap server."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

GENERATION = ("/generate", "/v1/chat/completions", "/v1/completions")
SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass
class Asked:
    """One request as a worker saw it."""

    method: str
    target: str
    headers: dict[str, str]
    raw: bytes
    hung_up: bool = False

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def body(self) -> dict:
        return json.loads(self.raw)


class Way:
    """Back to the asker, from inside a behaviour."""

    def __init__(
        self, worker: Worker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: Asked
    ) -> None:
        self.worker, self.asked, self._reader, self._writer = worker, asked, reader, writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def json(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        await self.send(head.encode() + body)

    async def chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def stream(self, events: list[bytes], gap: float = 0.0) -> None:
        await self.send(SSE_HEAD)
        for event in events:
            await self.chunk(event)
            await asyncio.sleep(gap)
        await self.send(b"0\r\n\r\n")

    async def hang(self) -> None:
        """Until the asker leaves."""
        with contextlib.suppress(ConnectionError):
            while await self._reader.read(1024):
                pass
        self.asked.hung_up = True
        self.cut()

    def cut(self) -> None:
        self._writer.transport.abort()

    def finish(self) -> None:
        """Close in good order."""
        self._writer.close()


Behaviour = Callable[[Way], Awaitable[None]]


def events(count: int = 4) -> list[bytes]:
    made = [b"data: " + json.dumps({"text": "x" * (i + 1), "index": i}).encode() + b"\n\n" for i in range(count)]
    return [*made, b"data: [DONE]\n\n"]


async def fine(way: Way) -> None:
    """One token from a prefill, four from a decode; a list for a batch."""
    asked = way.asked.body
    if asked.get("stream"):
        await way.stream(events(1 if way.worker.role == "prefill" else 4))
        return
    answer = {"text": way.worker.role, "meta_info": {"id": asked.get("rid", "x")}}
    batch = asked["bootstrap_room"] if isinstance(asked.get("bootstrap_room"), list) else None
    await way.json(200, [answer] * len(batch) if batch else answer)


async def hang(way: Way) -> None:
    await way.hang()


async def close(way: Way) -> None:
    way.cut()


def status(code: int, message: str = "injected") -> Behaviour:
    async def answer(way: Way) -> None:
        await way.json(code, {"error": {"message": message}})

    return answer


def sends(data: bytes, then: Behaviour = close) -> Behaviour:
    async def answer(way: Way) -> None:
        await way.send(data)
        await asyncio.sleep(0.02)
        await then(way)

    return answer


def after(delay: float, then: Behaviour) -> Behaviour:
    async def answer(way: Way) -> None:
        await asyncio.sleep(delay)
        await then(way)

    return answer


class Worker:
    """`script` holds the behaviours of the next generations, `usual` the one after them; `info` is /server_info.

    `others` has the behaviours of other paths.
    """

    def __init__(self, role: str) -> None:
        self.role = role
        self.asked: list[Asked] = []
        self.aborts: list[str] = []
        self.script: list[Behaviour] = []
        self.usual: Behaviour = fine
        self.others: dict[str, Behaviour] = {}  # by path: what is answered there instead
        self.healthy = 200
        self.info_paths = ("/server_info",)
        self.ready = 0
        self.info: dict[str, object] = {"disaggregation_mode": role, "model_path": "m", "page_size": 16, "pp_size": 1}
        self.bootstrap: Bootstrap | None = None
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        return len(self._open)

    @property
    def generations(self) -> list[Asked]:
        return [one for one in self.asked if one.path in GENERATION]

    @property
    def rooms(self) -> list[int]:
        return [one.body["bootstrap_room"] for one in self.generations]

    async def start(self, port: int = 0) -> Worker:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]
        self.info["port"] = self.port
        if self.role == "prefill":
            self.bootstrap = await Bootstrap(self).start()
            self.info["disaggregation_bootstrap_port"] = self.bootstrap.port
        return self

    async def stop(self) -> None:
        """As a kill would: the port is closed and every connection is cut."""
        if self.bootstrap is not None:
            await self.bootstrap.stop()
        if self._server is not None:
            self._server.close()
        for writer in list(self._open):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while (asked := await read_request(reader)) is not None:
                self.asked.append(asked)
                await self._answer(Way(self, reader, writer, asked))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    async def _answer(self, way: Way) -> None:
        path = way.asked.path
        if path in GENERATION:
            behaviour = self.script.pop(0) if self.script else self.usual
            await behaviour(way)
        elif path in self.others:
            await self.others[path](way)
        elif path in self.info_paths:
            await way.json(200, self.info)
        elif path == "/health":
            await way.json(self.healthy, {})
        elif path == "/ready" and self.ready:  # of pdctl's engine alone
            await way.json(self.ready, {"status": "dead" if self.ready == 503 else "up"})
        elif path == "/abort_request":
            self.aborts.append(way.asked.body["rid"])
            await way.json(200, {})
        elif path in ("/v1/models", "/flush_cache"):
            await way.json(200, {"from": self.role})
        else:
            await way.json(404, {"detail": "Not Found"})


class Bootstrap:
    """A prefill's bootstrap server, in the style of sglang 0.5.23 or (`old`) of 0.5.8."""

    def __init__(self, prefill: Worker) -> None:
        self.prefill = prefill
        self.old = False
        self.registered = True
        self.queries: list[str] = []
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> Bootstrap:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while (asked := await read_request(reader)) is not None:
                self.queries.append(asked.target)
                code, body = self._answer(asked)
                writer.write(f"HTTP/1.1 {code} X\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
                await writer.drain()
        writer.close()

    def _answer(self, asked: Asked) -> tuple[int, str]:
        if asked.path == "/health":
            return 200, "OK"
        if asked.path != "/route":
            return 404, "404: Not Found"
        if ("engine_rank=" in asked.target) is not self.old:
            return 400, "Missing inputs for bootstrap server."
        if self.old:
            size = 1 if self.registered else None
            return 200, json.dumps({"prefill_attn_tp_size": size, "prefill_dp_size": size, "prefill_pp_size": size})
        if not self.registered:
            return 503, "Prefill server not fully registered yet (0 workers registered)."
        return 200, json.dumps(
            {"attn_tp_size": 1, "pp_size": 1, "page_size": 16, "prefill_http_port": self.prefill.port}
        )


async def read_request(reader: asyncio.StreamReader) -> Asked | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").strip().split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    raw = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(method, target, headers, raw)
