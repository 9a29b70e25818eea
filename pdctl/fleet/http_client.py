"""Bounded HTTP calls: an answer, or the reason there was none; never an exception for a server that is down.

Proxies are not used and redirects are not followed, because the fact of interest is what the port itself answers.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from pdctl.fleet import peer_json
from pdctl.fleet.address import Unanswered
from pdctl.fleet.deadline import Deadline
from pdctl.fleet.http_connection import MAX_BODY, Call, wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pdctl.deployment_secret import DeploymentSecret

CANCELLED = "cancelled"  # the reason of a call that we cancelled
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
DONE = b"[DONE]"  # how OpenAI's and sglang's streams end
MAX_LINE = 8 * 1024 * 1024  # bytes; a stream without line ends is not an event stream


@dataclass(frozen=True, slots=True)
class Answer:
    """`status` 0: there was no answer, see `reason`. `connected`: something listens. Header names are lower-case.

    `seconds`: from the request to the end. `ended`: when that was (seconds since the epoch).
    """

    status: int
    body: bytes = b""
    reason: str = ""
    seconds: float = 0.0
    ended: float = 0.0
    connected: bool = False
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)

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
        """The body parsed as JSON, or None if it is not JSON."""
        return peer_json.parse(self.body)


def get(url: str, timeout: float | Deadline = 2.0, *, key: str = "", limit: int = MAX_BODY) -> Answer:
    """GET `url`. `timeout`: seconds for the whole answer. `key`: bearer token. `limit`: bytes of body."""
    return _request("GET", url, None, timeout, key, limit)


def post(
    url: str, body: object, timeout: float | Deadline, *, key: str = "", secret: DeploymentSecret | None = None
) -> Answer:
    """POST `body` as JSON. `secret`: the secret of the server's deployment, with which the request is signed."""
    return _request("POST", url, body, timeout, key, MAX_BODY, secret)


def delete(url: str, timeout: float | Deadline, *, key: str = "", secret: DeploymentSecret | None = None) -> Answer:
    return _request("DELETE", url, None, timeout, key, MAX_BODY, secret)


def _request(
    method: str,
    url: str,
    body: object,
    timeout: float | Deadline,
    key: str,
    limit: int,
    secret: DeploymentSecret | None = None,
) -> Answer:
    deadline = timeout if isinstance(timeout, Deadline) else Deadline(timeout)
    call = Call(method, url, body, deadline, key=key, limit=limit, secret=secret)
    try:
        wait([call])
    finally:
        call.close()
    return answer_of(call)


def answer_of(call: Call) -> Answer:
    """The answer of a call that is over; one cancelled before its end has status 0."""
    if call.reason or not call.reader.complete:
        return Answer(0, b"", call.reason or CANCELLED, call.seconds, call.ended, call.connected)
    reader = call.reader
    return Answer(reader.status, b"".join(call.pieces), "", call.seconds, call.ended, True, reader.headers)


def do_nothing() -> None:
    pass


class Response:
    """An answer that is still arriving; each wait for the next piece may take `patience` seconds.

    waiting: called several times a second during each wait; it may raise to end it.
    """

    def __init__(self, call: Call, patience: float, waiting: Callable[[], None]) -> None:
        self._call, self._patience, self._waiting = call, patience, waiting

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready` or the end of the call."""

        def look() -> bool:
            if not ready():
                self._waiting()
            return ready()

        wait([self._call], look)

    @property
    def status(self) -> int:
        return self._call.reader.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._call.reader.headers

    def read(self) -> bytes:
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        """The body as it arrives. Raise Unanswered if it breaks off."""
        call = self._call
        while True:
            while call.pieces:
                yield call.pieces.pop(0)
            if call.over:
                break
            call.grant(Deadline(self._patience))
            self.wait_until(lambda: bool(call.pieces))
        if call.reason:
            raise Unanswered(call.reason)


@contextmanager
def exchange(
    method: str, url: str, body: object, timeout: float, key: str = "", waiting: Callable[[], None] = do_nothing
) -> Iterator[Response]:
    """A context with the Response to one request, entered once its head has arrived. `timeout`: seconds per wait."""
    call = Call(method, url, body, Deadline(timeout), key=key)
    response = Response(call, timeout, waiting)
    try:
        response.wait_until(lambda: call.reader.status != 0)
        if not response.status:
            raise Unanswered(call.reason)
        yield response
    finally:
        call.close()


def payloads(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """What follows each `data:`, up to and including DONE. Lines end only at \\n: JSON texts may contain U+2028."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            yield data
            if data == DONE:
                return
        if len(rest) > MAX_LINE:
            return
