"""One HTTP/1.x request on one non-blocking socket, and a wait for any number of them in one thread.

h11 implements HTTP (RFC 9112); the bounds, and the messages for answers that are not HTTP, are ours.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import re
import select
import socket
import time
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING

from pdctl.errors import limit_reached
from pdctl.fleet.address import HttpTarget, Unanswered, parse, places, words
from pdctl.fleet.deadline import SLICE, Deadline
from pdctl.fleet.observations import UNASKED

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping, Sequence

    from pdctl.deployment_secret import DeploymentSecret

MAX_HEAD = 64 * 1024  # bytes of status line and headers
MAX_INTERIM = 8  # 1xx answers before the final one
STEP = 4 * 1024  # bytes fed to h11 at a time; a chunk's size line or a trailer is shorter than two steps
PLAIN = ("", "identity")
PLAIN_WANTED = "a plain one was asked for"  # nothing is decompressed, since a few KiB could become gigabytes
HEAD_ENDS = re.compile(rb"\n\r?\n")
# h11 takes quadratic time to reject a line of blanks followed by one of these (0.16: 14 s for 64 KiB).
STRAY = re.compile(rb"[\0\v\f]|\r(?!\n)")
# How other protocols answer an HTTP/1.1 request: the port or the scheme is wrong.
OTHERS = (
    (re.compile(rb"[\x14-\x17]\x03[\x00-\x04]"), "TLS (write https://)"),
    (re.compile(rb"\xff\0{7}[\0\x01]\x7f"), "ZMQ, not HTTP"),
    (re.compile(rb"\0[\0-\xff]{2}[\x04\x07][\0-\xff]\0{4}"), "HTTP/2 only, as a gRPC server does"),
    (re.compile(rb"SSH-"), "SSH, not HTTP"),
)
READ = 64 * 1024  # bytes read from the socket at a time
MAX_BODY = 32 * 1024 * 1024  # bytes; an engine's /server_info is about 100 KiB
IN, OUT = select.POLLIN, select.POLLOUT
LEFT_HALFWAY = (errno.EPIPE, errno.ECONNRESET)
NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL")


class Reader:
    """Call `feed` with what arrives and `end` when the peer closes; both raise Unanswered if it is not HTTP.

    `status` is 0 until the head is complete. Header names are lower-case; of several with one name the last counts.
    """

    __slots__ = ("_head", "_interim", "_peer", "complete", "headers", "status")

    def __init__(self) -> None:
        import h11  # late: listing runs loads this module too, but sends nothing

        self.status = 0
        self.headers: Mapping[str, str] = MappingProxyType({})
        self.complete = False
        self._head = bytearray()  # the part received so far
        self._interim = 0
        self._peer = h11.Connection(h11.CLIENT, max_incomplete_event_size=STEP)

    def request(self, method: str, path: str, fields: list[tuple[str, str]], body: bytes) -> bytes:
        import h11

        headers = [(name.encode(), value.encode("ascii", "replace")) for name, value in fields]
        try:
            head = self._peer.send(h11.Request(method=method, target=path, headers=headers))
        except h11.LocalProtocolError:  # its text would reveal the key
            raise Unanswered("not asked: the address or the key cannot stand in a request") from None
        return head + self._peer.send(h11.Data(data=body)) + self._peer.send(h11.EndOfMessage())

    def feed(self, data: bytes) -> bytes:
        """Process `data` and return the bytes of the body in it."""
        if not self.status:
            data = self._heads(data)
        return b"".join(self._read(data[at : at + STEP]) for at in range(0, len(data), STEP))

    def end(self) -> None:
        if not self.status:
            when = "in the middle of its headers" if self._head else "without sending a response"
            raise Unanswered(f"server disconnected {when}")
        with suppress(Unanswered):
            self._read(b"")
        if not self.complete:
            raise Unanswered(f"peer closed connection without sending complete answer (its status was {self.status})")

    def _heads(self, data: bytes) -> bytes:
        """Pass each complete head to h11; return what follows the last one."""
        seen = max(0, len(self._head) - 2)
        self._head += data
        while not self.status:
            if not b"HTTP/1.".startswith(self._head[:7]):
                raise _stranger(self._head)
            found = HEAD_ENDS.search(self._head, seen, MAX_HEAD)
            if found is None:
                if len(self._head) > MAX_HEAD:
                    raise Unanswered(f"answered with more than {MAX_HEAD // 1024} KiB of headers")
                return b""
            head, self._head, seen = bytes(self._head[: found.end()]), self._head[found.end() :], 0
            if STRAY.search(head):
                raise Unanswered("answered with malformed HTTP: a stray control character in its head")
            self._read(head)
        return bytes(self._head)

    def _read(self, data: bytes) -> bytes:
        import h11

        body: list[bytes] = []
        try:
            self._peer.receive_data(data)
            while not self.complete and (event := self._peer.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.Data):
                    body.append(event.data)
                elif isinstance(event, h11.InformationalResponse):
                    self._interim += 1
                    if self._interim > MAX_INTERIM:
                        raise Unanswered(f"answered with more than {MAX_INTERIM} interim statuses")
                elif isinstance(event, h11.Response):
                    told = {name.decode("ascii"): value.decode("latin-1") for name, value in event.headers}
                    coding = told.get("content-encoding", "").strip().lower()
                    if coding not in PLAIN:
                        raise Unanswered(f"its answer is compressed (content-encoding: {coding!a:.40}); {PLAIN_WANTED}")
                    self.status, self.headers = event.status_code, MappingProxyType(told)
                else:
                    self.complete = True
        except h11.RemoteProtocolError as error:
            raise Unanswered(f"answered with malformed HTTP: {error!s:.100}".replace("bytearray", "")) from None
        return b"".join(body)


def _stranger(said: bytearray) -> Unanswered:
    """The error for bytes that are not an HTTP head."""
    for beginning, speaks in OTHERS:
        if beginning.match(said):
            return Unanswered(f"it speaks {speaks}")
    return Unanswered(f"answered with something that is not HTTP: {bytes(said[:24])!r}")


class Call:
    """`advance` does what is possible without waiting. `over`: the answer is complete, or `reason` says why not.

    Body bytes accumulate in `pieces`; a caller may take them from there early. `connected`: something listened.
    """

    def __init__(
        self,
        method: str,
        url: str,
        body: object,
        deadline: Deadline,
        *,
        key: str = "",
        limit: int = MAX_BODY,
        secret: DeploymentSecret | None = None,
    ) -> None:
        self.reader = Reader()
        self.pieces: list[bytes] = []
        self.reason = ""
        self.over = self.connected = False
        self.events = 0
        self.seconds = self.ended = 0.0  # duration; time of the end, since the epoch
        self._began = time.monotonic()
        self._limit, self._got = limit, 0
        self._socket: socket.socket | None = None
        self._stage: Callable[[int], int] = self._connect
        self.grant(deadline)
        try:
            if deadline.passed:
                raise Unanswered(f"{UNASKED} within the {deadline.granted:.3g} s granted")
            self._target = parse(url)
            self._places = list(places(self._target.host, self._target.port, deadline))
            self._unsent = memoryview(_request(self.reader, method, self._target, body, key, secret))
        except Unanswered as error:
            self.fail(str(error))

    def grant(self, deadline: Deadline) -> None:
        """Set a new deadline for the rest of the answer."""
        self._deadline = self._until = deadline

    def fileno(self) -> int:
        return -1 if self._socket is None else self._socket.fileno()

    @property
    def left(self) -> float:
        """Seconds until `advance` must be called even if no event occurs."""
        return self._until.left

    def advance(self, happened: int = 0) -> None:
        """Do what is possible now. `happened`: the events that poll() reported for this socket, 0 for none."""
        if not self.over and self._until.passed:
            self._too_late()
        try:
            while not self.over:
                self.events = self._stage(happened)
                if self.events:
                    return
                happened = 0
        except Unanswered as error:
            self.fail(str(error))
        except OSError as error:
            self.fail(words(error))

    def fail(self, reason: str) -> None:
        self.reason = reason
        self.close()

    def close(self) -> None:
        """Close the socket. This also cancels a call: the peer sees its client disconnect."""
        if not self.over:
            self.over = True
            self.seconds, self.ended = time.monotonic() - self._began, time.time()
        self._drop()

    @property
    def _wire(self) -> socket.socket:
        if self._socket is None:
            raise Unanswered("closed")
        return self._socket

    # Each stage returns the events it waits for, or 0 if the next one can begin at once.

    def _connect(self, _: int) -> int:
        if not self._places:
            raise Unanswered(self.reason)
        place = self._places.pop(0)
        # An address that drops packets must leave time for the next one.
        self._until = self._deadline.within(self._deadline.left / (1 + len(self._places)))
        self._drop()
        try:
            self._socket = socket.socket(place.family, socket.SOCK_STREAM)
            self._socket.setblocking(False)
            code = self._socket.connect_ex(place.address)
        except OSError as error:  # this host does not support the address family
            if reached := limit_reached(error):
                raise reached from None
            self.reason = words(error)
            return 0
        if code in (errno.EINPROGRESS, errno.EWOULDBLOCK):
            self._stage = self._connected
            return OUT
        return self._check(code)

    def _connected(self, happened: int) -> int:
        return self._check(self._wire.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)) if happened else OUT

    def _check(self, code: int) -> int:
        if code:
            self.reason = words(OSError(os.strerror(code)))
            self._stage = self._connect
            return 0
        self.connected, self.reason, self._until = True, "", self._deadline
        self._wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stage = self._secure if self._target.secure else self._send
        return 0

    def _secure(self, _: int) -> int:
        try:
            self._socket = _trust().wrap_socket(
                self._wire, server_hostname=self._target.host, do_handshake_on_connect=False
            )
        except ValueError as error:  # not a valid server name
            raise Unanswered(f"TLS: {words(error)}") from None
        self._stage = self._shake
        return 0

    def _shake(self, _: int) -> int:
        import ssl

        try:
            self._wire.do_handshake()  # type: ignore[attr-defined]
        except ssl.SSLError as error:
            waits = _waits(error)
            if waits:
                return waits
            raise Unanswered(_tls_reason(error)) from None
        self._stage = self._send
        return 0

    def _send(self, happened: int) -> int:
        """Send until everything is sent, or until an answer arrives first: the request was refused part-way."""
        watched = 0 if self._target.secure else IN  # TLS has its own records to read
        if not happened & watched:
            try:
                while self._unsent:
                    self._unsent = self._unsent[self._wire.send(self._unsent) :]
            except OSError as error:
                if waits := _waits(error, OUT):
                    return waits | watched
                if error.errno not in LEFT_HALFWAY:
                    raise
        self._stage = self._receive
        return IN

    def _receive(self, _: int) -> int:
        try:
            data = self._wire.recv(READ)
        except OSError as error:
            if waits := _waits(error):
                return waits
            raise
        if data:
            self._take(self.reader.feed(data))
        else:
            self.reader.end()
        if self.reader.complete:
            self.close()
        elif self._target.secure and self._wire.pending():  # type: ignore[attr-defined]
            return 0  # already decrypted, so poll() reports no event
        return IN

    def _take(self, piece: bytes) -> None:
        self._got += len(piece)
        if self._got > self._limit:
            raise Unanswered(f"its answer is longer than {self._limit >> 10} KiB")
        if piece:
            self.pieces.append(piece)

    def _too_late(self) -> None:
        granted = f"{self._deadline.seconds:.3g} s"
        if self.connected:
            what = "its answer did not end" if self.reader.status else "no answer"
            self.fail(f"{what} within {granted}")
            return
        self.reason = f"no connection within {granted}"
        if not self._places or self._deadline.passed:
            self.close()
        else:
            self._stage = self._connect

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def wait(calls: Sequence[Call], until: Callable[[], bool] | None = None) -> None:
    """Wait until every call is over or `until` returns true, but never past a call's deadline."""
    for call in calls:
        if not call.events:
            call.advance()
    while open_calls := [call for call in calls if not call.over]:
        if until is not None and until():
            return
        poll = select.poll()
        for call in open_calls:
            poll.register(call, call.events)
        patience = min(SLICE, *(call.left for call in open_calls))
        happened = dict(poll.poll(int(patience * 1000) + 1))
        for call in open_calls:
            event = happened.get(call.fileno(), 0)
            if event or not call.left:
                call.advance(event)


def _request(
    reader: Reader, method: str, target: HttpTarget, body: object, key: str, secret: DeploymentSecret | None
) -> bytes:
    # A kept connection would delay a draining server, or be one to a server that was since restarted.
    fields = [("host", target.authority), ("connection", "close"), ("accept", "*/*"), ("user-agent", "pdctl")]
    fields.append(("accept-encoding", "identity"))  # else a proxy in between may compress
    if key:
        fields.append(("authorization", f"Bearer {key.strip()}"))
    data = b"" if body is None else json.dumps(body).encode()
    if secret is not None:
        from pdctl.http_auth import SIGNATURE, sign  # late: most requests need no signature

        fields.append((SIGNATURE, sign(secret, method, target.path, data)))
    if body is not None:
        fields += [("content-type", "application/json"), ("content-length", str(len(data)))]
    return reader.request(method, target.path, fields, data)


def _waits(error: OSError, plain: int = IN) -> int:
    """The event to wait for if the error only means "try again"; 0 if it is a real error."""
    if isinstance(error, BlockingIOError):
        return plain
    if isinstance(error, ConnectionError):
        return 0
    import ssl

    return IN if isinstance(error, ssl.SSLWantReadError) else OUT if isinstance(error, ssl.SSLWantWriteError) else 0


@functools.cache
def _trust() -> ssl.SSLContext:
    """One TLS context per process, because loading the certificates takes 20 ms of CPU."""
    import ssl

    return ssl.create_default_context()


def _tls_reason(error: ssl.SSLError) -> str:
    if error.reason in NO_TLS:
        return "it does not speak TLS (write http://)"
    return f"TLS: {words(error)}"
