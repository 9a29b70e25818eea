"""The HTTP calls engines make to a prefill's bootstrap server (sglang 0.5.23). They block: keep them off any loop."""

from __future__ import annotations

import functools
import http.client
import io
import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import msgspec

from pdctl.deployment_secret import ENV, DeploymentSecret
from pdctl.engine.kv_link.bootstrap_rows import (
    SHAPE,
    Index,
    ParallelInfo,
    RankEndpoint,
    RankKey,
    RankRow,
    RoomQuery,
    RoomRank,
)
from pdctl.engine.wire import MALFORMED
from pdctl.http_auth import SIGNATURE, sign
from pdctl.name_lookup import dial

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from typing_extensions import Buffer

log = logging.getLogger("pdctl.engine")

TIMEOUT = 5.0  # seconds, sglang 0.5.23
HEALTH_TIMEOUT = 3.0
MAX_ANSWER = 1 << 20

T = TypeVar("T")


class BootstrapError(Exception):
    """A call that got no usable answer (`status`, `text`: the one it got). `final`: asking again cannot help."""

    def __init__(self, message: str, final: bool = False, status: int = 0, text: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.final = final
        self.status = status
        self.text = text


def attempt(call: Callable[[], T]) -> T | BootstrapError:
    """`call`'s answer, or its BootstrapError as a value: what a pool thread hands back to the manager's."""
    try:
        return call()
    except BootstrapError as error:
        return error
    except Exception as error:
        # The address is a client's and the answer a stranger's. What nobody foresaw in them ends the rooms that asked
        # for it; raised on the manager's thread, it would end the rooms of everybody.
        log.exception("A question to a bootstrap server hit an exception")
        return BootstrapError(f"{type(error).__name__}: {error}", True)


def parallel_info(address: str) -> ParallelInfo:
    return _decoded(address, "/route?" + SHAPE.query, ParallelInfo)


def rank_endpoint(address: str, key: RankKey) -> RankEndpoint:
    return _decoded(address, "/route?" + key.query, RankEndpoint)


def health(address: str) -> None:
    _call(address, "GET", "/health", timeout=HEALTH_TIMEOUT)


def register_rank(address: str, row: RankRow) -> None:
    _call(address, "PUT", "/route", msgspec.json.encode(row))


def register_dp_rank(address: str, row: RoomRank) -> None:
    _call(address, "POST", "/register_dp_rank", msgspec.json.encode(row))


def query_dp_rank(address: str, room: int) -> int | None:
    """The DP rank a prefill announced for `room`; None while it has not."""
    body = _call(address, "POST", "/query_dp_ranks", msgspec.json.encode(RoomQuery([room])))
    return _parse(address, "/query_dp_ranks", body, dict[str, Index]).get(str(room))


def _decoded(address: str, target: str, kind: type[T]) -> T:
    return _parse(address, target, _call(address, "GET", target), kind)


def _parse(address: str, target: str, body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except MALFORMED as error:
        path = target.partition("?")[0]
        raise BootstrapError(f"http://{address}{path} answered something else than SGLang's: {error}", True) from None


def _call(address: str, method: str, target: str, body: bytes | None = None, timeout: float = TIMEOUT) -> bytes:
    """The body of a 200. Raises BootstrapError naming the URL, what happened, and the likely cause."""
    url = f"http://{address}{target.partition('?')[0]}"
    try:
        parts = urlsplit(f"//{address}")
        if parts.netloc != address or parts.port is None or "@" in address:
            raise ValueError("host:port is needed")
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)
        until = time.monotonic() + timeout
        connection.response_class = functools.partial(_Answer, until=until)  # type: ignore[assignment]
    except (ValueError, http.client.InvalidURL) as error:
        raise BootstrapError(f"{url}: not an address ({error})", True) from None
    try:
        headers = {"Content-Type": "application/json"} if body else {}
        secret = _secret(os.environ.get(ENV, "")) if body else None
        if secret is not None:
            headers[SIGNATURE] = sign(secret, method, target, body or b"")
        connection.sock = dial(parts.hostname or "", parts.port, timeout)
        connection.sock.settimeout(max(0.001, until - time.monotonic()))
        connection.request(method, target, body, headers)
        answer = connection.getresponse()
        text = answer.read(MAX_ANSWER)
    except ValueError as error:  # a name that cannot be looked up: a label that is too long, empty or no IDNA
        raise BootstrapError(f"{url}: not an address ({error})", True) from None
    except (OSError, http.client.HTTPException) as error:
        raise BootstrapError(f"{url}: {_cause(error, timeout)}") from None
    finally:
        connection.close()
    if answer.status != 200:
        raise _refused(url, answer.status, text.decode("utf-8", "replace")[:500])
    return text


class _Timed(io.RawIOBase):
    """Reads from `raw` until a moment: a drip of bytes, each in time, does not hold the thread any longer."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket, until: float) -> None:
        self._raw, self._sock, self._until = raw, sock, until

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int | None:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Answer(http.client.HTTPResponse):
    """An answer that has to be whole at `until` (monotonic seconds)."""

    def __init__(self, sock: socket.socket, method: str | None = None, *, until: float) -> None:
        super().__init__(sock, method=method)
        self.fp = io.BufferedReader(_Timed(self.fp.detach(), sock, until))


@functools.cache
def _secret(path: str) -> DeploymentSecret | None:
    """What registrations are signed with; a bootstrap server without it does not look."""
    return DeploymentSecret.read(Path(path)) if path else None


def _cause(error: Exception, timeout: float) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused; is the prefill running, and is this its --disaggregation-bootstrap-port?"
    if isinstance(error, TimeoutError) and not error.strerror:
        return f"no answer within {timeout:.0f} s; is the port open from this host?"
    if isinstance(error, http.client.HTTPException):
        return f"no HTTP answer ({type(error).__name__}: {error}); is this the bootstrap port, not a rank's?"
    return getattr(error, "strerror", None) or str(error)


def _refused(url: str, status: int, text: str) -> BootstrapError:
    message = f"{url}: {status} {text}"
    if status in (404, 405) and "Bootstrap info not found" not in text:
        message = f"{url}: {status}; no bootstrap server there: is this a prefill's HTTP port?"
    elif status == 400 and "Missing inputs" in text:
        message += " (a server of sglang 0.5.8 or older)"
    return BootstrapError(message, 400 <= status < 500, status, text)
