"""One bounded HTTP call: an answer, or the reason there was none; never an exception for a server that is down."""

from __future__ import annotations

import http.client
import json
import socket
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_BODY = 32 * 1024 * 1024  # bytes; an engine's /server_info is about 100 KiB
JSON_HEADERS = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class Answer:
    """`status` 0: nobody answered, and `reason` says why."""

    status: int
    body: bytes = b""
    reason: str = ""

    @property
    def reached(self) -> bool:
        return self.status != 0

    @property
    def ok(self) -> bool:
        return self.status == 200

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", errors="replace")

    def json(self) -> object:
        """The body as JSON, or None when it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


def get(url: str, timeout: float = 2.0) -> Answer:
    return request("GET", url, timeout=timeout)


def post(url: str, body: object, timeout: float) -> Answer:
    return request("POST", url, json.dumps(body).encode(), JSON_HEADERS, timeout)


def request(
    method: str, url: str, body: bytes = b"", headers: Mapping[str, str] | None = None, timeout: float = 2.0
) -> Answer:
    try:
        with exchange(method, url, body, headers or {}, timeout) as response:
            return Answer(response.status, response.read(MAX_BODY))
    except (OSError, http.client.HTTPException) as error:
        return Answer(0, reason=explain(error, timeout))


@contextmanager
def exchange(
    method: str, url: str, body: bytes, headers: Mapping[str, str], timeout: float
) -> Iterator[http.client.HTTPResponse]:
    """One request with its response still open, for streams. Raises OSError or HTTPException."""
    parts = urlsplit(url)
    connection = _connection(parts, timeout)
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request(method, target, body=body or None, headers=dict(headers))
        yield connection.getresponse()
    finally:
        connection.close()


def _connection(parts: SplitResult, timeout: float) -> http.client.HTTPConnection:
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname or "127.0.0.1", parts.port, timeout=timeout)


def explain(error: OSError | http.client.HTTPException, timeout: float) -> str:
    """Why nobody answered, in words."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout:g} s"
    if isinstance(error, ConnectionResetError | http.client.RemoteDisconnected):
        return "the connection was closed before an answer came"
    if isinstance(error, socket.gaierror):
        return "the host name does not resolve"
    return str(error) or type(error).__name__
