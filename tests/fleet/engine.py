"""Engines in threads for the canaries: each does with /generate what a test asks of it, and remembers what it got."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PATIENCE = 90.0  # seconds a silent engine keeps a request whose client does not leave
Handler = Callable[["Engine", "Face", dict[str, Any]], None]


class Server(ThreadingHTTPServer):
    request_queue_size = 256


class Engine:
    """`generates` answers POST /generate. `bodies`, `aborted` (rids) and `left` (a client hung up) are what it saw."""

    def __init__(self, name: str, generates: Handler) -> None:
        self.name = name
        self.generates = generates
        self.bodies: list[dict[str, Any]] = []
        self.aborted: list[str] = []
        self.left = threading.Event()
        self.loads: list[dict[str, Any]] = [{"num_running_reqs": 0}]
        self.metrics = ""
        engine = self

        class Bound(Face):
            owner = engine

        self._server = Server(("127.0.0.1", 0), Bound)
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, daemon=True, kwargs={"poll_interval": 0.01}).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Face(BaseHTTPRequestHandler):
    owner: Engine

    def do_GET(self) -> None:
        if self.path == "/v1/loads" and self.owner.loads:
            self.answer(200, {"loads": self.owner.loads})
        elif self.path == "/metrics" and self.owner.metrics:
            self.answer(200, self.owner.metrics)
        else:
            self.answer(404, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/abort_request":
            self.owner.aborted.append(body["rid"])
            self.answer(200, "")
            return
        self.owner.bodies.append(body)
        try:
            self.owner.generates(self.owner, self, body)
        except ConnectionError:
            self.owner.left.set()

    def answer(self, status: int, value: object) -> None:
        data = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def wait_for_the_client_to_leave(self) -> None:
        self.connection.settimeout(PATIENCE)
        if not self.connection.recv(1):
            self.owner.left.set()

    def log_message(self, *_: object) -> None:
        pass


def result(text: str, finish: str = "length", **more: object) -> dict[str, object]:
    meta = {"completion_tokens": len(text.split()), "finish_reason": {"type": finish, **more}}
    return {"text": text, "output_ids": list(range(len(text.split()))), "meta_info": meta}


def speaks(text: str) -> Handler:
    """At once; as many times as there are samples, and in a stream word by word without an end."""

    def generate(engine: Engine, face: Face, body: dict[str, Any]) -> None:
        if body["stream"]:
            face.send_response(200)
            face.end_headers()
            face.wfile.write(f"data: {json.dumps(result(text))}\n\n".encode())
            face.wait_for_the_client_to_leave()
            return
        samples = body["sampling_params"].get("n", 1)
        face.answer(200, result(text) if samples == 1 else [result(text)] * samples)

    return generate


def refuses(status: int, message: str) -> Handler:
    return lambda engine, face, body: face.answer(status, {"error": {"message": message}})


def is_silent(engine: Engine, face: Face, body: dict[str, Any]) -> None:
    face.wait_for_the_client_to_leave()
