"""Just enough HTTP/1.1 for the bootstrap server: h11 on asyncio streams, with limits on size, count and patience."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

import h11

from pdctl.http_auth import SIGNATURE

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.engine.drill.fault_points import Armed

MAX_BODY = 64 << 10  # bytes; a rank's row has about 600
IDLE = 75.0  # seconds a kept-alive connection may say nothing
PATIENCE = 10.0  # seconds from the first byte of a request to its last, and for the client to take the answer
READ = 64 << 10
SIGNED = SIGNATURE.encode()


@dataclass(frozen=True, slots=True)
class Request:
    """`peer` and `own` are the addresses of the connection's two ends; empty where nobody asked over one."""

    method: str
    path: str
    query: dict[str, str]
    body: bytes
    target: str = ""
    signature: str = ""
    peer: str = ""
    own: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    content_type: str
    allow: str = ""


def text(status: int, body: str, kind: str = "text/plain", allow: str = "") -> Answer:
    return Answer(status, body.encode(), f"{kind}; charset=utf-8", allow)


def document(value: dict[str, object]) -> Answer:
    """With the blanks aiohttp's json_response leaves, so that answers equal SGLang's byte for byte."""
    return text(200, json.dumps(value), "application/json")


class AnswerFaults:
    """What PDCTL_FAULTS makes of a bootstrap server's answers."""

    def __init__(self, armed: Armed) -> None:
        self._armed = armed

    async def answer(self, given: Answer) -> Answer | None:
        """None: none is given."""
        fault = self._armed.at("bootstrap")
        if fault is None:
            return given
        if fault.action == "delay":
            await asyncio.sleep(fault.value)
        elif fault.action == "corrupt":
            return replace(given, body=given.body[::-1])
        return None if fault.action == "drop" else given


class TooLargeError(ValueError):
    """A body over MAX_BODY."""


class Exchange:
    """One connection: requests in, answers out, in turn."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, faults: AnswerFaults | None = None
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER)
        self._method = ""
        self._faults = faults
        names = (writer.get_extra_info(name) for name in ("peername", "sockname"))
        self._ends = tuple(str(name[0]) if isinstance(name, tuple) else "" for name in names)

    async def serve(self, answer: Callable[[Request], Answer]) -> None:
        """Until either side closes; a client that breaks the protocol is told so once."""
        try:
            while self._http.our_state is h11.IDLE:
                request = await self._next()
                if request is None:
                    return
                given = await self._faults.answer(answer(request)) if self._faults else answer(request)
                if given is None:
                    return
                await self._write(given, last=given.status == 500)  # aiohttp closes after a crash
                if self._reusable:
                    self._http.start_next_cycle()
        except h11.RemoteProtocolError as error:
            await self._refuse(text(error.error_status_hint, f"Bad Request: {error}"))
        except TooLargeError as error:
            await self._refuse(text(413, str(error)))
        except (OSError, asyncio.TimeoutError):
            return  # the client is gone, or had nothing to say
        finally:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()

    @property
    def _reusable(self) -> bool:
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    async def _next(self) -> Request | None:
        """The next request; a drip of bytes holds the connection no longer than PATIENCE."""
        if not self._http.trailing_data[0]:
            data = await asyncio.wait_for(self._reader.read(READ), IDLE)
            self._http.receive_data(data)
        return await self._read(asyncio.get_running_loop().time() + PATIENCE)

    async def _read(self, until: float) -> Request | None:
        """The next request; None when the client has closed. Raise TimeoutError where it is not whole `until` then."""
        head: h11.Request | None = None
        parts: list[bytes] = []
        size = 0
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                await self._fetch(until)
            elif isinstance(event, h11.Request):
                head = event
                self._method = head.method.decode("ascii")
                if {name for name, _ in head.headers} >= {b"content-length", b"transfer-encoding"}:
                    # Where one hop goes by this and the next by that, bytes of a body become a request.
                    raise h11.RemoteProtocolError("Content-Length and Transfer-Encoding in one request")
            elif isinstance(event, h11.Data):
                size += len(event.data)
                if size > MAX_BODY:
                    raise TooLargeError(f"Maximum request body size {MAX_BODY} exceeded.")
                parts.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                target = head.target.decode("ascii", "replace")
                path, _, query = target.partition("?")
                found = next((value for name, value in head.headers if name == SIGNED), b"")
                signature = found.decode("ascii", "replace")
                peer, own = self._ends
                return Request(self._method, path, _query(query), b"".join(parts), target, signature, peer, own)
            else:
                return None

    async def _fetch(self, until: float) -> None:
        if self._http.they_are_waiting_for_100_continue:
            self._send(h11.InformationalResponse(status_code=100, headers=[]))
        left = until - asyncio.get_running_loop().time()
        self._http.receive_data(await asyncio.wait_for(self._reader.read(READ), left))

    async def _refuse(self, answer: Answer) -> None:
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                await self._write(answer, last=True)

    async def _write(self, answer: Answer, last: bool = False) -> None:
        headers = [("Content-Type", answer.content_type), ("Content-Length", str(len(answer.body)))]
        if answer.allow:
            headers.append(("Allow", answer.allow))
        if last:
            headers.append(("Connection", "close"))
        reason = HTTPStatus(answer.status).phrase.encode()
        self._send(h11.Response(status_code=answer.status, headers=headers, reason=reason))
        if self._method != "HEAD":
            self._send(h11.Data(data=answer.body))
        self._send(h11.EndOfMessage())
        await asyncio.wait_for(self._writer.drain(), PATIENCE)

    def _send(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if self._writer.is_closing():  # uvloop raises a RuntimeError there, asyncio nothing
            raise ConnectionResetError
        if data:
            self._writer.write(data)


def _query(raw: str) -> dict[str, str]:
    """The first value of each name, as aiohttp's `query.get` gives."""
    found: dict[str, str] = {}
    for name, value in parse_qsl(raw, keep_blank_values=True):
        found.setdefault(name, value)
    return found
