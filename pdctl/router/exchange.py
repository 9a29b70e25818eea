"""One request of a client, and the way back for its answer."""

from __future__ import annotations

import http
from typing import TYPE_CHECKING, Protocol

import orjson

from pdctl.loopback import is_loopback

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.router.upstream import Connection, Headers

PHRASES = {status.value: status.phrase.encode() for status in http.HTTPStatus}
JSON = b"content-type: application/json\r\n"
# The `type` of an error that the router itself returns.
KINDS = {
    401: "authentication_error",
    403: "permission_error",
    409: "conflict",
    500: "internal_error",
    503: "service_unavailable",
}


class Client(Protocol):
    """The connection of a request. `chunks`: it accepts a chunked answer; `leaving`: it closes after this answer."""

    chunks: bool
    peer: str
    peer_is_own: bool

    @property
    def leaving(self) -> bool: ...
    def write(self, data: bytes) -> None: ...
    def cut(self) -> None: ...
    def finished(self, exchange: Exchange) -> None: ...


class Exchange:
    """One request and the way back to its client. Header names are lower-case.

    Answer with `respond`, or with `start`, `write` … and `end`. `on_gone` is called if the client leaves before that;
    `source` is the worker's connection, to be slowed down if the client reads more slowly than the worker writes.
    """

    __slots__ = (
        "_chunked", "_client", "admin", "body", "done", "gone", "headers", "keep_alive", "method", "on_gone", "path",
        "query", "source", "started", "status",
    )  # fmt: skip

    def __init__(
        self,
        client: Client,
        method: bytes,
        path: bytes,
        query: bytes,
        headers: Headers,
        body: bytes | bytearray,
    ) -> None:
        self._client = client
        self.method, self.path, self.query, self.headers, self.body = method, path, query, headers, body
        self.keep_alive = True
        self.started = self.done = self.gone = False
        self.admin = False  # whether it has admin rights (http_auth.py)
        self.status = 0
        self.on_gone: Callable[[], None] | None = None
        self.source: Connection | None = None
        self._chunked = False

    @property
    def peer(self) -> str:
        """The address of the client; empty if it is gone."""
        return self._client.peer

    @property
    def from_this_machine(self) -> bool:
        return is_loopback(self.peer) or self._client.peer_is_own

    def header(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key == name), None)

    def respond(self, status: int, head: bytes, body: bytes) -> None:
        """Send the whole answer. `head` is header lines, each ending in CRLF, without length and connection."""
        if self.gone or self.done:
            return
        if self.started:
            self._client.cut()  # part of another answer was sent, and this one cannot follow it
            return
        self.status = status
        sent = b"" if self.method == b"HEAD" else body
        self._client.write(b"%b%bcontent-length: %d\r\n\r\n%b" % (self._opening(status), head, len(body), sent))
        self._finish()

    def json(self, status: int, value: object, head: bytes = b"") -> None:
        """Send the whole answer as JSON."""
        self.respond(status, JSON + head, orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE))

    def refuse(self, status: int, message: str, code: str, head: bytes = b"", kind: str = "") -> None:
        """Send the whole answer as an error. `kind`: only if it differs from the one KINDS has for this status."""
        self.json(status, error_body(message, kind or KINDS.get(status, "invalid_request_error"), code), head)

    def start(self, status: int, head: bytes, data: bytes) -> None:
        """Begin an answer of unknown length with its first bytes."""
        if self.gone:
            return
        self.status = status
        self._chunked = self._client.chunks
        if self._chunked:
            frame = b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(data), data)
        else:
            self.keep_alive = False  # HTTP/1.0: the answer ends when the connection closes
            frame = b"\r\n" + data
        self._client.write(self._opening(status) + head + frame)
        self.started = True

    def write(self, data: bytes) -> None:
        """Send more bytes, at least one."""
        if self._chunked:
            self._client.write(b"%x\r\n%b\r\n" % (len(data), data))
        else:
            self._client.write(data)

    def end(self) -> None:
        if self.gone or self.done:
            return
        if self._chunked:
            self._client.write(b"0\r\n\r\n")
        self._finish()

    def _opening(self, status: int) -> bytes:
        close = b"" if self.keep_alive and not self._client.leaving else b"connection: close\r\n"
        return b"HTTP/1.1 %d %b\r\n%b" % (status, PHRASES.get(status, b"Status"), close)

    def _finish(self) -> None:
        self.done = True
        self.source = self.on_gone = None
        self._client.finished(self)


def error_body(message: str, kind: str, code: str | int) -> dict[str, dict[str, str | int]]:
    """Return the error object of the OpenAI API."""
    return {"error": {"message": message, "type": kind, "code": code}}
