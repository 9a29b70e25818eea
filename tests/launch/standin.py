"""A process that behaves towards pdctl as an engine or a router does, in the fewest lines; started by the tests.

It takes sglang's flags for its role and ports, ignores the others, and has a few faults: --exit CODE (at once),
--never-ready, --deaf (ignores SIGTERM), --slow-stop SECONDS, --brood FILE (starts a child in a session of its own and
writes its pid), --child (starts one in its own session), --wrong-answer, --missing-ranks N, --load N
(what a router says is in flight).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit
from urllib.request import urlopen

parser = argparse.ArgumentParser()
parser.add_argument("--disaggregation-mode", default="router")
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--disaggregation-bootstrap-port", dest="bootstrap", type=int, default=0)
parser.add_argument("--tp-size", dest="ranks", type=int, default=1)
parser.add_argument("--missing-ranks", type=int, default=0)
parser.add_argument("--workers", nargs="*", default=[])
parser.add_argument("--exit", type=int, default=None)
parser.add_argument("--never-ready", action="store_true")
parser.add_argument("--deaf", action="store_true")
parser.add_argument("--slow-stop", type=float, default=0.0)
parser.add_argument("--brood", default="")
parser.add_argument("--child", action="store_true")
parser.add_argument("--wrong-answer", action="store_true")
parser.add_argument("--load", type=int, default=0)
args, _ = parser.parse_known_args()


def log(text: str) -> None:
    sys.stderr.write(time.strftime("[%Y-%m-%d %H:%M:%S] ") + text + "\n")
    sys.stderr.flush()


def stop(*_: object) -> None:
    log("stopping")
    threading.Timer(args.slow_stop, os._exit, (0,)).start()


def workers() -> list[dict[str, object]]:
    known = []
    for url in args.workers:
        try:
            with urlopen(url + "/health", timeout=1) as answer:
                healthy = answer.status == 200
        except OSError:
            healthy = False
        role = "decode" if url == args.workers[-1] else "prefill"
        known.append({"url": url, "worker_type": role, "is_healthy": healthy, "load": args.load})
    return known


class Face(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/route":
            here = args.ranks - args.missing_ranks
            if args.missing_ranks:
                self.answer(503, f"Prefill server not fully registered yet ({here} workers registered).")
            else:
                self.answer(200, json.dumps({"attn_tp_size": args.ranks, "dp_size": 1, "pp_size": 1}))
        elif path == "/workers":
            self.answer(200, json.dumps({"workers": workers()}))
        elif path == "/readiness":
            ready = all(worker["is_healthy"] for worker in workers())
            self.answer(200 if ready else 503, json.dumps({"status": "ready" if ready else "a worker is missing"}))
        elif path == "/server_info":
            info = {"disaggregation_mode": args.disaggregation_mode, "disaggregation_bootstrap_port": args.bootstrap}
            self.answer(200, json.dumps(info))
        elif path == "/v1/models":
            self.answer(200, json.dumps({"data": [{"id": "standin"}]}))
        else:
            self.answer(503 if args.never_ready else 200, "")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        log(f"{self.path} room={body.get('bootstrap_room')}")
        if args.wrong_answer:
            self.answer(500, "KVTransferError(bootstrap_room=1): Failed to get kvcache from prefill instance")
        elif body.get("stream"):
            self.stream()
        else:
            self.answer(200, json.dumps({"text": "a b", "meta_info": {"completion_tokens": 2}}))

    def stream(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("x-pd-prefill", "http://127.0.0.1:1")
        self.send_header("x-pd-decode", "http://127.0.0.1:2")
        self.send_header("x-pd-room", "77")
        self.send_header("connection", "close")
        self.end_headers()
        for word in ("the ", "red ", "fox"):
            delta = {"choices": [{"delta": {"content": word}, "text": word}]}
            self.wfile.write(f"data: {json.dumps(delta)}\n\n".encode())
        usage = {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 3}}
        self.wfile.write(f"data: {json.dumps(usage)}\n\ndata: [DONE]\n\n".encode())
        self.close_connection = True

    def answer(self, status: int, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


class Listener(ThreadingHTTPServer):
    def handle_error(self, request: object, address: object) -> None:
        """Write no traceback into the log for a client that left before its answer, as no engine does."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, address)


if args.exit is not None:
    log("RuntimeError: no memory for the KV pool")
    sys.exit(args.exit)
signal.signal(signal.SIGTERM, signal.SIG_IGN if args.deaf else stop)
if args.child:
    subprocess.Popen(["sleep", "600"])
if args.brood:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    with open(args.brood, "w") as file:
        file.write(str(child.pid))
log("Load weight end. elapsed=0.01 s, type=Standin")
if args.bootstrap:
    server = Listener(("127.0.0.1", args.bootstrap), Face)
    threading.Thread(target=server.serve_forever, daemon=True).start()
face = Listener(("127.0.0.1", args.port), Face)
log(f"Uvicorn running on http://127.0.0.1:{args.port} (Press CTRL+C to quit)")
face.serve_forever()
