"""Small real HTTP engines whose answer to a role switch is scripted: the rows of sglang 0.5.23's refusals.

They hold what `busy` says, tell the role they have where sglang tells it, and answer requests with `generation`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, object]
META = {"completion_tokens": 2, "finish_reason": {"type": "length"}}
TOKENS: Answer = 200, {"text": "x", "output_ids": [1, 2], "meta_info": META}
NOT_IDLE = "instance is not idle; drain all requests before switching"


class Quiet(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that leaves is no error."""


class Engine:
    """`script`: what the next switches answer, instead of switching."""

    def __init__(self, role: str, **info: object) -> None:
        self.role = self.launched = role
        self.busy = 0
        self.healthy = True
        self.generation: Answer = TOKENS
        self.script: list[Callable[[Engine], Answer | None]] = []
        self.asked: list[tuple[str, Any]] = []
        self._server = Quiet(("127.0.0.1", 0), self._handler())
        self._bootstrap = Quiet(("127.0.0.1", 0), self._bootstrap_handler())
        self.port, self.bootstrap_port = self._server.server_port, self._bootstrap.server_port
        self.info: dict[str, object] = {
            "version": "0.5.23", "enable_pd_role_switch": True, "disaggregation_transfer_backend": "mooncake",
            "tp_size": 1, "dp_size": 1, "pp_size": 1, "page_size": 1, "kv_cache_dtype": "auto", "model_path": "m",
            "served_model_name": "m", "port": self.port, "disaggregation_bootstrap_port": self.bootstrap_port,
            "disable_radix_cache": True, **info,
        }  # fmt: skip
        for server in (self._server, self._bootstrap):
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        for server in (self._server, self._bootstrap):
            server.shutdown()
            server.server_close()

    def of(self, path: str) -> list[Any]:
        """Bodies that were sent there."""
        return [body for where, body in self.asked if where == path]

    def answer(self, path: str, body: Any) -> Answer | None:
        self.asked.append((path, body))
        if path in ("/server_info", "/get_server_info"):
            states = [{"disaggregation_mode": self.role, **dict(self.info.get("graphs") or {})}]
            return 200, {**self.info, "disaggregation_mode": self.launched, "internal_states": states}
        if path == "/model_info":
            return 200, {"disaggregation_mode": self.role, "model_path": "m"}
        if path == "/v1/loads":
            return 200, {"loads": [{"dp_rank": 0, "num_running_reqs": self.busy, "num_waiting_reqs": 0}]}
        if path == "/health":
            return (200, {}) if self.healthy else (503, {})
        if path == "/generate":
            return self.generation
        if path == "/pd_role_switch":
            return self.script.pop(0)(self) if self.script else self.switched(body["new_role"])
        return 404, {}

    def switched(self, role: str) -> Answer:
        old, self.role = self.role, role
        return 200, {"success": True, "message": "ok", "old_role": old, "new_role": role, "safe_to_restore": False}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        return _handler(self.answer)

    def _bootstrap_handler(self) -> type[BaseHTTPRequestHandler]:
        def answer(path: str, body: Any) -> Answer:
            if path == "/health":
                return 200, "OK"
            if self.role != "prefill":
                return 503, "Prefill server not fully registered yet (0 workers registered)."
            sizes = {"attn_tp_size": 1, "attn_cp_size": 1, "dp_size": 1, "pp_size": 1, "page_size": 1}
            return 200, {**sizes, "prefill_http_port": self.port}

        return _handler(answer)


def refuses(message: str, *, safe: bool, status: int = 400) -> Callable[[Engine], Answer]:
    def answer(engine: Engine) -> Answer:
        said = {"success": False, "message": message, "old_role": engine.role, "new_role": "", "safe_to_restore": safe}
        return status, said

    return answer


def says(status: int, body: object) -> Callable[[Engine], Answer]:
    return lambda engine: (status, body)


def hangs_up(engine: Engine) -> None:
    """The connection ends without an answer; whether it switched, nobody knows."""
    del engine


def _handler(answer: Callable[[str, Any], Answer | None]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._give(None)

        def do_POST(self) -> None:
            size = int(self.headers.get("content-length", 0))
            self._give(json.loads(self.rfile.read(size) or b"null"))

        def _give(self, body: Any) -> None:
            made = answer(self.path.partition("?")[0], body)
            if made is None:
                self.close_connection = True
                return
            status, content = made
            data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    return Handler
