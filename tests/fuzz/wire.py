"""pdctl's own HTTP client with the socket taken out: what a case holds is what every peer says.

Everything else is the real code: addresses, requests, framing, limits, reasons, deadlines, threads. Names are not
looked up and ranks are not dialled, or a case could reach whoever it names.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from unittest import mock

from pdctl.doctor import gather
from pdctl.fleet import bootstrap_probe, canary_probe, http_client, http_connection, prober
from pdctl.fleet.address import SocketAddress, Unanswered
from pdctl.fleet.http_connection import READ, Call
from tests.fuzz.edits import SEPARATOR

Says = Callable[[str, int, str], bytes]  # host, port, path with query → bytes on the connection; b"": nobody is there
OK = b"HTTP/1.1 200 OK\r\ndate: Sat, 21 Nov 2026 02:04:44 GMT\r\n"
PATIENCE = 20.0  # seconds the other end of a socket waits
DRAINED = 0.05  # seconds for queues to become empty: a string of bytes says the same for ever
FEW = 6  # ranks of one prefill that are asked for: a thousand say no more


class Fed(Call):
    """Its connection is a string of bytes."""

    says: Says

    def _connect(self, _: int) -> int:
        target = self._target
        data = self.says(target.host, target.port, target.path)
        if not data:
            raise Unanswered("connection refused")
        self.connected = True
        for at in range(0, len(data), READ):
            self._take(self.reader.feed(data[at : at + READ]))
            if self.reader.complete:
                break
        else:
            self.reader.end()
        self.close()
        return 0


@contextmanager
def told(says: Says) -> Iterator[None]:
    """Every request within is answered by `says`."""
    fed = type("Fed", (Fed,), {"says": staticmethod(says)})
    with ExitStack() as stack:
        for module in (http_client, canary_probe, prober):
            stack.enter_context(mock.patch.object(module, "Call", fed))
        stack.enter_context(mock.patch.object(http_connection, "places", _nowhere))
        stack.enter_context(mock.patch.object(bootstrap_probe, "dial", _dialled))
        stack.enter_context(mock.patch.object(bootstrap_probe, "MAX_RANKS", FEW))
        stack.enter_context(mock.patch.object(canary_probe, "AGAIN", 0.0))
        stack.enter_context(mock.patch.object(gather, "DRAIN", DRAINED))
        yield


@contextmanager
def spoken(data: bytes) -> Iterator[str]:
    """The URL of a real server on loopback that reads one request, says `data` and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE)
        talking = threading.Thread(target=_talk, args=(listener, data), daemon=True)
        talking.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        talking.join(PATIENCE)


def _talk(listener: socket.socket, data: bytes) -> None:
    connection, _ = listener.accept()
    with connection, suppress(OSError):  # a client that has read enough leaves
        connection.settimeout(PATIENCE)
        while b"\r\n\r\n" not in connection.recv(65536, socket.MSG_PEEK):
            pass
        connection.recv(65536)
        connection.sendall(data)


def _nowhere(host: str, port: int, _: object) -> tuple[SocketAddress, ...]:
    return (SocketAddress(socket.AF_INET, (host, port)),)


def _dialled(host: str, port: int, _: object) -> str:
    return "" if port % 2 else f"{host}: connection refused"


def answers(data: bytes) -> list[bytes]:
    """The parts of a case as bytes of a connection: `404 {"detail": …}`, a body alone (200), or a whole HTTP/1.1 …"""
    return [_answer(part) for part in data.split(SEPARATOR)]


def _answer(part: bytes) -> bytes:
    if not part or part.startswith(b"HTTP/"):
        return part
    status, space, body = part[:3], part[3:4], part[4:]
    if not (space == b" " and status.isdigit()):
        status, body = b"200", part
    head = OK if status == b"200" else b"HTTP/1.1 " + status + b" X\r\n"
    return head + b"content-length: %d\r\n\r\n" % len(body) + body
