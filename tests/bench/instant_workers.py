"""Prefills and decodes that answer at once, all in one process: what is left of a request's time is the router's.

    python tests/bench/instant_workers.py --prefill 31001:31501 --decode 31011 --gap-ms 0

Speaks what routers ask: /generate, the OpenAI routes, /health, /server_info, /model_info, /v1/models, and a bootstrap
server per prefill. A stream is 33 events: at once, or `--gap-ms` apart.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections.abc import Callable

import uvloop

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
TOKENS = 32
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


def answer(value: object, status: int = 200) -> bytes:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        status,
        len(body),
        body,
    )


def chunk(value: object) -> bytes:
    event = b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(event), event)


class Worker:
    """The answers of one worker, made once."""

    def __init__(self, role: str, port: int, bootstrap: int, gap: float) -> None:
        self.gap = gap if role == "decode" else 0.0
        tokens = TOKENS if role == "decode" else 1
        text, choice = " tok" * tokens, {"index": 0, "logprobs": None, "finish_reason": "length"}
        usage = {"prompt_tokens": 4, "completion_tokens": tokens, "total_tokens": 4 + tokens}
        meta = {"id": "x", "finish_reason": {"type": "length", "length": tokens}, "prompt_tokens": 4}
        base = {"id": "x", "created": 1, "model": "instant"}
        message = {"role": "assistant", "content": text}
        chat = {**base, "object": "chat.completion", "choices": [{**choice, "message": message}], "usage": usage}
        completion = {**base, "object": "text_completion", "choices": [{**choice, "text": text}], "usage": usage}
        self.plain = {
            b"/generate": answer({"text": text, "output_ids": list(range(tokens)), "meta_info": meta}),
            b"/v1/chat/completions": answer(chat),
            b"/v1/completions": answer(completion),
        }
        delta = {**base, "object": "chat.completion.chunk", "choices": [{**choice, "delta": {"content": " tok"}}]}
        self.events = [chunk(delta)] * tokens + [chunk(b"[DONE]")]
        self.burst = SSE + b"".join(self.events) + LAST
        info = {
            "disaggregation_mode": role, "disaggregation_bootstrap_port": bootstrap, "port": port, "tp_size": 1,
            "dp_size": 1, "pp_size": 1, "page_size": 1, "model_path": "instant", "served_model_name": "instant",
            "version": "0.5.23",
        }  # fmt: skip
        model = {"model_path": "instant", "served_model_name": "instant", "is_generation": True, "model_type": "llama"}
        listed = {
            "id": "instant",
            "object": "model",
            "created": 1,
            "owned_by": "x",
            "root": "instant",
            "max_model_len": 32768,
        }
        self.known = {
            b"/health": answer(b""), b"/server_info": answer(info), b"/get_server_info": answer(info),
            b"/model_info": answer(model), b"/get_model_info": answer(model),
            b"/v1/models": answer({"object": "list", "data": [listed]}),
        }  # fmt: skip

    def respond(self, connection: Connection, method: bytes, path: bytes, body: bytes) -> None:
        if method != b"POST":
            connection.write(self.known.get(path, answer({}, 404)))
        elif b'"stream":true' not in body:
            connection.write(self.plain.get(path, answer({})))
        elif not self.gap:
            connection.write(self.burst)
        else:
            connection.write(SSE)
            self._tick(connection, 0)

    def _tick(self, connection: Connection, number: int) -> None:
        if connection.closed:
            return
        connection.write(self.events[number])
        if number + 1 == len(self.events):
            connection.write(LAST)
        else:
            asyncio.get_running_loop().call_later(self.gap, self._tick, connection, number + 1)


class Bootstrap:
    def __init__(self, http_port: int) -> None:
        sizes = {"attn_tp_size": 1, "attn_cp_size": 1, "dp_size": 1, "pp_size": 1, "page_size": 1}
        self.known = {b"/health": answer(b"OK"), b"/route": answer({**sizes, "prefill_http_port": http_port})}

    def respond(self, connection: Connection, method: bytes, path: bytes, body: bytes) -> None:
        connection.write(self.known.get(path, answer({}, 404)))


class Connection(asyncio.Protocol):
    """Whole requests with a length only: that is what routers send."""

    def __init__(self, respond: Callable[[Connection, bytes, bytes, bytes], None]) -> None:
        self._respond = respond
        self._buffer = b""
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.write = transport.write  # type: ignore[attr-defined]

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end]
            found = LENGTH.search(head)
            whole = end + 4 + (int(found[1]) if found else 0)
            if len(self._buffer) < whole:
                return
            body, self._buffer = self._buffer[end + 4 : whole], self._buffer[whole:]
            line = head.split(b"\r\n", 1)[0].split(b" ")
            if len(line) != 3 or line[2] != b"HTTP/1.1":
                self._transport.close()  # sglang-router tries gRPC first: its HTTP/2 preface is no request of ours
                return
            method, target, _ = line
            self._respond(self, method, target.partition(b"?")[0], body)


async def serve(args: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    for text in args.prefill:
        port, bootstrap = map(int, text.split(":"))
        prefill, server = Worker("prefill", port, bootstrap, 0.0), Bootstrap(port)
        await loop.create_server(lambda one=prefill: Connection(one.respond), "127.0.0.1", port, backlog=1024)
        await loop.create_server(lambda one=server: Connection(one.respond), "127.0.0.1", bootstrap)
    for port in args.decode:
        decode = Worker("decode", port, 0, args.gap_ms / 1000)
        await loop.create_server(lambda one=decode: Connection(one.respond), "127.0.0.1", port, backlog=1024)
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prefill", action="append", default=[], metavar="PORT:BOOTSTRAP_PORT")
    parser.add_argument("--decode", action="append", default=[], type=int, metavar="PORT")
    parser.add_argument("--gap-ms", type=float, default=0.0)
    uvloop.run(serve(parser.parse_args()))
