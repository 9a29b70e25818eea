"""One HTTP/1.x exchange as bytes. h11 speaks it (RFC 9112); the bounds, and the words for what is no HTTP, are ours."""

from __future__ import annotations

import re
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING

from pdctl.fleet.address import Unanswered

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_HEAD = 64 * 1024  # bytes of status line and headers
MAX_INTERIM = 8  # answers of the 1xx kind before the real one
STEP = 4 * 1024  # bytes that h11 gets at a time; a chunk's size line or a trailer is shorter than two of them
PLAIN = ("", "identity")
UNASKED = "a plain one was asked for"  # nothing is unpacked: a few KiB could become gigabytes
HEAD_ENDS = re.compile(rb"\n\r?\n")
# h11 takes quadratic time to refuse a line of blanks with one of these behind (0.16: 14 s for 64 KiB).
STRAY = re.compile(rb"[\0\v\f]|\r(?!\n)")
# How others begin to speak when they are asked in HTTP/1.1: the wrong port, or the wrong scheme.
OTHERS = (
    (re.compile(rb"[\x14-\x17]\x03[\x00-\x04]"), "TLS (write https://)"),
    (re.compile(rb"\xff\0{7}[\0\x01]\x7f"), "ZMQ, not HTTP"),
    (re.compile(rb"\0[\0-\xff]{2}[\x04\x07][\0-\xff]\0{4}"), "HTTP/2 only, as a gRPC server does"),
    (re.compile(rb"SSH-"), "SSH, not HTTP"),
)


class Reader:
    """`feed` what arrives, `end` when the peer closes; both raise Unanswered for what is no HTTP answer.

    `status` is 0 until the head is complete. Names of headers are lower-case; of several with one name the last counts.
    """

    __slots__ = ("_head", "_interim", "_peer", "complete", "headers", "status")

    def __init__(self) -> None:
        import h11  # late: listing runs loads this module too, and asks nobody

        self.status = 0
        self.headers: Mapping[str, str] = MappingProxyType({})
        self.complete = False
        self._head = bytearray()  # as far as it has come
        self._interim = 0
        self._peer = h11.Connection(h11.CLIENT, max_incomplete_event_size=STEP)

    def request(self, method: str, path: str, fields: list[tuple[str, str]], body: bytes) -> bytes:
        import h11

        headers = [(name.encode(), value.encode("ascii", "replace")) for name, value in fields]
        try:
            head = self._peer.send(h11.Request(method=method, target=path, headers=headers))
        except h11.LocalProtocolError:  # its text would tell the key
            raise Unanswered("not asked: the address or the key cannot stand in a request") from None
        return head + self._peer.send(h11.Data(data=body)) + self._peer.send(h11.EndOfMessage())

    def feed(self, data: bytes) -> bytes:
        """The part of the body that these bytes complete."""
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
        """Hands each head over when it is whole; returns what follows the last one."""
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
                        raise Unanswered(f"its answer is compressed (content-encoding: {coding!a:.40}); {UNASKED}")
                    self.status, self.headers = event.status_code, MappingProxyType(told)
                else:
                    self.complete = True
        except h11.RemoteProtocolError as error:
            raise Unanswered(f"answered with malformed HTTP: {error!s:.100}".replace("bytearray", "")) from None
        return b"".join(body)


def _stranger(said: bytearray) -> Unanswered:
    """The words for bytes that are no HTTP head."""
    for beginning, speaks in OTHERS:
        if beginning.match(said):
            return Unanswered(f"it speaks {speaks}")
    return Unanswered(f"answered with something that is not HTTP: {bytes(said[:24])!r}")
