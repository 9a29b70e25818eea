"""One bounded HTTP call: an answer, or the reason there was none; never an exception for a server that is down."""

from __future__ import annotations

import functools
import json
import re
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

MAX_BODY = 32 * 1024 * 1024  # bytes; an engine's /server_info is about 100 KiB


class Unanswered(Exception):
    """Nobody answered, or not to the end; the text is the reason, in words."""


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
    return _request("GET", url, None, timeout)


def post(url: str, body: object, timeout: float) -> Answer:
    return _request("POST", url, body, timeout)


def _request(method: str, url: str, body: object, timeout: float) -> Answer:
    try:
        with exchange(method, url, body, timeout) as response:
            return Answer(response.status_code, read(response))
    except Unanswered as error:
        return Answer(0, reason=str(error))


def read(response: httpx.Response) -> bytes:
    """The body, cut at MAX_BODY."""
    body = bytearray()
    for piece in response.iter_bytes():
        body += piece
        if len(body) > MAX_BODY:
            break
    return bytes(body[:MAX_BODY])


@contextmanager
def exchange(method: str, url: str, body: object, timeout: float) -> Iterator[httpx.Response]:
    """One request with its response still open, for streams. `timeout` (seconds) is for each wait."""
    with _making:  # many threads may ask first
        client = _client(url.startswith("https:"))
    import httpx

    try:
        with client.stream(method, url, json=body, timeout=timeout) as response:
            yield response
    except httpx.TimeoutException:
        raise Unanswered(f"no answer within {timeout:g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:  # UnicodeError: a host like "a..b"
        raise Unanswered(_reason(error)) from None


_making = threading.Lock()


@functools.cache
def _client(secure: bool) -> httpx.Client:
    """The process's one client of a scheme: making it is what costs, and threads may share it."""
    import ssl

    # Wherever click and rich are installed, httpx loads its own command line with them: 46 of 62 ms CPU.
    unused = sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    import httpx

    if unused is None:
        del sys.modules["httpx._main"]
    # Certificates take 20 ms CPU to load; without TLS a context that trusts nobody is as good.
    trust = ssl.create_default_context() if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # No connection is kept: an idle one would hold up a draining server, or belong to one that was restarted.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.Client(verify=trust, limits=limits, trust_env=False)  # no proxy between pdctl and its processes


def _reason(error: Exception) -> str:
    """The system's words without its number ("[Errno 111] Connection refused"), or httpx's own."""
    said = re.sub(r"^\[Errno -?\d+\] ", "", str(error)).rstrip(".") or type(error).__name__
    return said[0].lower() + said[1:]
