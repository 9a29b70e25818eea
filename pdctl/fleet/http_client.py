"""One bounded HTTP call: an answer, or the reason there was none; never an exception for a server that is down.

No proxy stands between pdctl and its processes, and no redirect is followed: the answer of the port itself is the fact.
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
    from collections.abc import Iterable, Iterator, Mapping

    from pdctl.deployment_secret import DeploymentSecret

CANCELLED = "cancelled"  # the reason of a call we gave up ourselves
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
DONE = b"[DONE]"  # how OpenAI's and sglang's streams end
MAX_LINE = 8 * 1024 * 1024  # bytes; a stream without line ends is no event stream


@dataclass(frozen=True, slots=True)
class Answer:
    """`status` 0: nobody answered, and `reason` says why. `connected`: somebody listens. Header names are lower-case.

    `seconds` is from the request to the end, `ended` when that was (seconds since the epoch).
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
        """The body as JSON, or None when it is not JSON."""
        return peer_json.parse(self.body)


def get(url: str, timeout: float | Deadline = 2.0, *, key: str = "", limit: int = MAX_BODY) -> Answer:
    """`timeout`: seconds until the answer must be whole. `key` is sent as bearer token, `limit` is bytes of body."""
    return _request("GET", url, None, timeout, key, limit)


def post(
    url: str, body: object, timeout: float | Deadline, *, key: str = "", secret: DeploymentSecret | None = None
) -> Answer:
    """`secret`: of the deployment the server belongs to; the request is signed with it."""
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
    """What became of a call that is over; one that was cancelled half-way has no status."""
    if call.reason or not call.reader.complete:
        return Answer(0, b"", call.reason or CANCELLED, call.seconds, call.ended, call.connected)
    reader = call.reader
    return Answer(reader.status, b"".join(call.pieces), "", call.seconds, call.ended, True, reader.headers)


class Response:
    """An answer that is still coming; each wait for its next piece has the same patience."""

    def __init__(self, call: Call, patience: float) -> None:
        self._call, self._patience = call, patience

    @property
    def status(self) -> int:
        return self._call.reader.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._call.reader.headers

    def read(self) -> bytes:
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        """The body as it comes; raises Unanswered when it breaks off."""
        call = self._call
        while True:
            while call.pieces:
                yield call.pieces.pop(0)
            if call.over:
                break
            call.grant(Deadline(self._patience))
            wait([call], lambda: bool(call.pieces))
        if call.reason:
            raise Unanswered(call.reason)


@contextmanager
def exchange(method: str, url: str, body: object, timeout: float, key: str = "") -> Iterator[Response]:
    """One request whose answer is read as it comes; entered when its head is there. `timeout`: for each wait."""
    call = Call(method, url, body, Deadline(timeout), key=key)
    response = Response(call, timeout)
    try:
        wait([call], lambda: call.reader.status != 0)
        if not response.status:
            raise Unanswered(call.reason)
        yield response
    finally:
        call.close()


def payloads(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """What follows each `data:`, DONE the last. Lines end at \\n only: JSON texts may hold U+2028."""
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
