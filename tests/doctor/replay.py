"""Recorded answers served again on free loopback ports, by real sockets: what a probe asks is what real servers said.

The port numbers in the recording are replaced in every answer, so that the servers still name each other.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from tests.doctor.fixtures.recorded import ANSWERS

Edit = Callable[[str, str], str]  # (name, body) → body
CONTEXT = 1024  # context_length of the recorded servers
LINE = re.compile(r"(?P<name>\S+)\tGET (?P<url>\S+)\t(?P<status>\d+)\t(?P<type>.*)")


@dataclass(frozen=True)
class Recorded:
    status: int
    body: str


@dataclass
class Replay:
    """`port` maps a recorded port to the one it is served on; `asked` counts "PORT PATH" by recorded port.

    A POST to /generate is answered as sglang 0.5.23 answers: eight tokens, twice for n = 2, 400 above CONTEXT.
    """

    port: Mapping[int, int]
    asked: Counter[str] = field(default_factory=Counter)
    posted: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)  # recorded port, path, body

    def url(self, port: int) -> str:
        return f"http://127.0.0.1:{self.port[port]}"


def recorded(source: str) -> dict[int, dict[str, Recorded]]:
    """Recorded port → path with query → answer. Where the second prefill's was not kept, it is the first one's."""
    servers: dict[int, dict[str, Recorded]] = {}
    for line in (ANSWERS / source / "INDEX.tsv").read_text().splitlines():
        found = LINE.fullmatch(line)
        assert found is not None, line
        parts = urlsplit(found["url"])
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        body = (ANSWERS / source / found["name"]).read_text(encoding="utf-8")
        servers.setdefault(parts.port or 80, {})[path] = Recorded(int(found["status"]), body)
    for path in ("/model_info", "/metrics"):
        if 30001 in servers:
            servers[30001].setdefault(path, servers[30000][path])
        servers[30002].setdefault(path, servers[30000][path])
    return servers


@contextmanager
def replay(source: str, *, without: tuple[int, ...] = (), edit: Edit = lambda _, body: body) -> Iterator[Replay]:
    """Servers of a recording; those of the ports in `without` are not started. `edit` may change a body by its path."""
    servers = {port: paths for port, paths in recorded(source).items() if port not in without}
    running: dict[int, ThreadingHTTPServer] = {}
    ranks: dict[int, socket.socket] = {}
    moved: dict[int, int] = {}
    replayed = Replay(moved)
    wanted = sorted((*servers, *without))
    bound = [ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) for _ in wanted]
    for port, server in zip(wanted, sorted(bound, key=lambda one: one.server_address[1]), strict=True):
        running[port] = server  # in the recorded order, by which a router's workers are named
        moved[port] = server.server_address[1]
    for paths in servers.values():
        for answer in paths.values():
            for number in map(int, re.findall(r'"rank_port": (\d+)', answer.body)):
                ranks[number] = ranks.get(number) or socket.create_server(("127.0.0.1", 0))
                moved[number] = ranks[number].getsockname()[1]
    for port, server in running.items():
        if port in without:
            server.server_close()
            continue
        server.RequestHandlerClass = _handler(port, servers[port], replayed, edit)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield replayed
    finally:
        for port, server in running.items():
            if port not in without:
                server.shutdown()
                server.server_close()
        for rank in ranks.values():
            rank.close()


def generated(body: dict[str, Any]) -> tuple[int, object]:
    if len(body.get("input_ids") or ()) > CONTEXT:
        return 400, {"error": {"message": "Input length exceeds the context length."}}
    meta = {"finish_reason": {"type": "length", "length": 8}, "prompt_tokens": 5, "completion_tokens": 8}
    one = {"text": "P1P1P1P1", "output_ids": [52, 21, 52, 21, 52, 21, 52, 21], "meta_info": meta}
    return 200, [one, one] if body["sampling_params"].get("n", 1) > 1 else one


def _handler(port: int, paths: Mapping[str, Recorded], replayed: Replay, edit: Edit) -> type[BaseHTTPRequestHandler]:
    numbers = re.compile(r"(?<![\d.])(" + "|".join(map(str, replayed.port)) + r")(?![\d.])")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            replayed.asked[f"{port} {urlsplit(self.path).path}"] += 1
            found = paths.get(self.path, Recorded(404, "404: Not Found"))
            text = edit(f"{port} {urlsplit(self.path).path}", found.body)
            body = numbers.sub(lambda hit: str(replayed.port[int(hit[1])]), text).encode()
            self.send_response(found.status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            path = urlsplit(self.path).path
            replayed.posted.append((port, path, body))
            status, said = generated(body) if path == "/generate" else (200, {})
            text = json.dumps(said).encode()
            if body.get("stream"):
                text = b"data: " + text + b"\n\ndata: [DONE]\n\n"
            self.send_response(status)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    return Handler
