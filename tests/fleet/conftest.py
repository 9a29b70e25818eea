"""Real servers for the probes: recorded answers of real engines and routers, and peers that say what a test wants."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import strategies as st

ANSWERS = Path(__file__).resolve().parents[1] / "data" / "answers"
LONG = 60.0  # seconds: what a test grants where time is not the point; the machine may be shared
Answers = dict[str, tuple[int, str | bytes]]
Serve = Callable[[Answers], str]
Say = Callable[..., str]


def recorded(folder: str, who: str) -> Answers:
    """What one component answered, by path with query: `who` is "prefill0", "prefill0.bootstrap8998" or "router"."""
    found: Answers = {}
    for line in (ANSWERS / folder / "INDEX.tsv").read_text().splitlines():
        file, url, status, _ = line.split("\t")
        if file.startswith(who + ".") and file.count(".") == who.count(".") + 1:
            path = "/" + url.split("/", 3)[3]
            found[path] = (int(status), (ANSWERS / folder / file).read_bytes())
    return found


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


class Server(ThreadingHTTPServer):
    request_queue_size = 256  # probes come many at once


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a server that answers each path (with its query) with a status and a body."""
    servers: list[ThreadingHTTPServer] = []

    def start(answers: Answers) -> str:
        class Face(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = answers.get(self.path, (404, ""))
                self.send_response(status)
                self.send_header("x-pd-room", "77")
                self.end_headers()
                self.wfile.write(body if isinstance(body, bytes) else body.encode())

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        server = Server(("127.0.0.1", 0), Face)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True, kwargs={"poll_interval": 0.01}).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


class Peer:
    """Accepts connections, reads a little of each, says its pieces, and closes (or keeps quiet until the test ends)."""

    def __init__(self, pieces: tuple[bytes, ...], *, forever: bytes, hold: bool, host: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._pieces, self._forever, self._hold = pieces, forever, hold
        self._listener = socket.create_server((host, 0), family=family, backlog=64)
        self.port = int(self._listener.getsockname()[1])
        self.closing = threading.Event()
        self.heard: list[bytes] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection:
            try:
                self.heard.append(connection.recv(65536))
                for piece in self._pieces:
                    connection.sendall(piece)
                while self._forever and not self.closing.wait(0.01 if len(self._forever) == 1 else 0):
                    connection.sendall(self._forever)
                if self._hold:
                    self.closing.wait(60)
            except OSError:
                return  # the client has had enough

    def close(self) -> None:
        self.closing.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def peer() -> Iterator[Callable[..., Peer]]:
    """A peer that says these bytes to whoever connects; `forever`: bytes it then repeats; `hold`: it does not close."""
    peers: list[Peer] = []

    def start(*pieces: bytes, forever: bytes = b"", hold: bool = False, host: str = "127.0.0.1") -> Peer:
        peers.append(Peer(pieces, forever=forever, hold=hold, host=host))
        return peers[-1]

    yield start
    for one in peers:
        one.close()


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
