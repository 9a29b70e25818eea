"""A prefill instance's bootstrap server: which rank listens where. Answers as sglang 0.5.23's CommonKVBootstrapServer.

Runs in the event loop of the HTTP process, on a port of its own; uvicorn's protocol reads and writes HTTP. Where
SGLang crashes on a body (HTTP 500) this one says which field is wrong (400); a re-registered rank is not counted twice.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import Counter
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import parse_qsl

import uvicorn
from uvicorn.server import ServerState

from pdctl.engine.config.process_log import LogRate
from pdctl.engine.drill.fault_points import AnswerFaults, arm, raiser
from pdctl.engine.ipc.http_protocol import BoundedProtocol, SpareConnections
from pdctl.engine.prefill.rank_table import (
    BootstrapRequest,
    BootstrapResponse,
    RankTable,
    RegistrationCheck,
    foreign,
    text,
)
from pdctl.errors import LaunchError
from pdctl.http_auth import SIGNATURE, declared_size
from pdctl.loopback import fix_of_listening
from pdctl.thread_death import guard_task

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Message, Receive, Scope, Send


log = logging.getLogger("pdctl.engine")

CLEANUP_INTERVAL = 120.0  # seconds; an announced DP rank is kept for one to two of these
CHANGES = frozenset((("PUT", "/route"), ("POST", "/register_dp_rank")))
MAX_BODY = 64 << 10  # bytes; a rank's row takes about 600
IDLE = 75  # seconds that a kept-alive connection may be silent
LISTENING_CHECK = 0.5  # seconds between checks whether the server still listens
ACCEPTING = 3  # turns of the loop from an accepted connection to its protocol
SIGNED = SIGNATURE.encode()
HANG_UP = "pdctl.hang_up"  # in the ASGI scope: end the connection without an answer


class BootstrapProtocol(BoundedProtocol):
    """Each decode rank asks over one short connection; a host has at most a few dozen ranks."""

    held: ClassVar[Counter[str]] = Counter()
    spare: ClassVar[SpareConnections] = SpareConnections()
    patience: ClassVar[float] = 10.0  # seconds for a head, and as many for a body
    most: ClassVar[int] = 1024
    of_one_peer: ClassVar[int] = 256
    largest_body: ClassVar[int] = MAX_BODY

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.access_log = False  # `access_log=False` in the config would remove the handlers of the whole process

    @property
    def may_make_room(self) -> bool:
        """An honest request is small and comes in one piece, so that one without an end makes room, too."""
        return self.idle or self.partial

    def on_headers_complete(self) -> None:
        self.scope[HANG_UP] = self.transport.abort  # type: ignore[literal-required]
        super().on_headers_complete()


class BootstrapServer:
    def __init__(
        self,
        host: str,
        port: int,
        admission: RegistrationCheck | None = None,
        died: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`died` is called with the reason if the server ends without a call of `stop`."""
        self._died = died
        self.host = host
        self.port = port
        self.table = RankTable()
        self._rate = LogRate(log)  # for what strangers can trigger
        self._admission = admission or RegistrationCheck()
        armed = arm()
        self._faults = AnswerFaults(armed) if armed is not None else None
        self._server: asyncio.Server | None = None
        self._cleaner: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._state = ServerState()
        self._config = uvicorn.Config(
            self._serve, interface="asgi3", http=BootstrapProtocol, lifespan="off", ws="none",
            log_config=None, log_level=None, server_header=False, proxy_headers=False,
            timeout_keep_alive=IDLE,
        )  # fmt: skip
        self._config.load()

    @property
    def registered(self) -> tuple[int, int]:
        """Numbers of registered and of expected ranks; (0, 0) until the first one has said how many there are."""
        return self.table.registered

    async def start(self) -> None:
        """Listen. Raise LaunchError naming the port if that fails: an instance without this server serves no one."""
        try:
            self._server = await asyncio.get_running_loop().create_server(self.protocol, self.host, self.port)
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            raise LaunchError(
                f"bootstrap server cannot listen on {self.host}:{self.port}: {error.strerror or error}",
                f"another process holds port {self.port}; give this prefill its own --disaggregation-bootstrap-port"
                if taken
                else fix_of_listening(error, self.host, "check --host and --disaggregation-bootstrap-port"),
            ) from None
        if self.port == 0:
            self.port = self._server.sockets[0].getsockname()[1]
        self._cleaner = asyncio.create_task(self._clean())
        self._watch = asyncio.create_task(self._watch_listening())
        for task in (self._cleaner, self._watch):
            guard_task(task, f"bootstrap server on port {self.port}", self._died)
        log.info("CommonKVBootstrapServer started successfully on %s:%d", self.host, self.port)

    async def stop(self) -> None:
        if self._server is None or self._cleaner is None or self._watch is None:
            return
        self._watch.cancel()
        await self._stop_listening()
        self._server.close()
        for connection in list(self._state.connections):
            connection.transport.abort()
        tasks = (self._cleaner, self._watch, *self._state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()
        self._server = self._cleaner = self._watch = None

    async def _stop_listening(self) -> None:
        """Stop accepting, and let a connection accepted in this turn of the loop get its protocol before closing.

        Otherwise asyncio (CPython 3.10 to 3.13) fails on that connection, and leaves its socket open.
        """
        loop = asyncio.get_running_loop()
        for listening in self._server.sockets if self._server else ():
            loop.remove_reader(listening)
        for _ in range(ACCEPTING):
            await asyncio.sleep(0)

    def protocol(self) -> BootstrapProtocol:
        """Return the protocol of one connection; call it on the server's loop."""
        return BootstrapProtocol(self._config, self._state, {})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request (ASGI)."""
        if declared_size(scope["headers"]) > MAX_BODY:
            await _refuse_size(receive, send)
            return
        body = await _read(receive)
        if body is None:
            return  # the client has left
        if len(body) > MAX_BODY:
            await _refuse_size(receive, send)
            return
        given: BootstrapResponse | None = self.answer(_request(scope, body))
        given = await self._faults.answer(given) if self._faults and given else given
        if given is None:
            scope[HANG_UP]()
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        await send({"type": "http.response.start", "status": given.status, "headers": given.headers})
        await send({"type": "http.response.body", "body": given.body})

    async def _watch_listening(self) -> None:
        """Return when the server no longer listens."""
        reach = raiser("thread.bootstrap-server")
        while self._server is not None and self._server.is_serving():
            await asyncio.sleep(LISTENING_CHECK)
            if reach is not None:
                reach()

    async def _clean(self) -> None:
        while True:
            await asyncio.sleep(CLEANUP_INTERVAL)
            dropped = self.table.drop_rooms_older_than(CLEANUP_INTERVAL)
            if dropped:
                log.debug("Cleaned up %d expired entries from room_to_dp_rank", dropped)

    def answer(self, request: BootstrapRequest) -> BootstrapResponse:
        """Return the answer to one request."""
        path, method = request.path, request.method
        if (method, path) in CHANGES:
            refused = self._refused(request)
            if refused is not None:
                self._rate.warning("Refused %s %s from %s: %s", method, path, request.peer, refused.body.decode())
                return refused
        if path == "/route":
            if method == "PUT":
                return self.table.put(request.body, lambda row: self._admission.misfit(row, request))
            if method == "GET":
                return self.table.get(request.query)
            return text(405, "Method not allowed", "application/json")
        if path == "/health":
            return text(200, "OK") if method in ("GET", "HEAD") else _not_allowed("GET,HEAD")
        if path == "/register_dp_rank":
            return self.table.register_dp_rank(request.body) if method == "POST" else _not_allowed("POST")
        if path == "/query_dp_ranks":
            return self.table.query_dp_ranks(request.body) if method == "POST" else _not_allowed("POST")
        return text(404, "404: Not Found")

    def _refused(self, request: BootstrapRequest) -> BootstrapResponse | None:
        """Return the answer that refuses a stranger's change, without parsing its body; None to let it pass."""
        unsigned = self._admission.unsigned(request)
        if unsigned:
            return text(401, unsigned)
        if request.path == "/register_dp_rank" and not self._admission.signed:
            stranger = foreign(request, self.table.addresses)
            return text(403, stranger) if stranger else None
        return None


async def _refuse_size(receive: Receive, send: Send) -> None:
    """Answer at once, but close only when the client has sent the rest or its time is up: a reset loses the answer."""
    given = text(413, f"Maximum request body size {MAX_BODY} exceeded.", close=True)
    await send({"type": "http.response.start", "status": given.status, "headers": given.headers})
    await send({"type": "http.response.body", "body": given.body, "more_body": True})
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.body", "body": b""})


async def _read(receive: Receive) -> bytes | None:
    """Return the body, or only enough of it to show that it is too long; None if the client has left."""
    body = b""
    while len(body) <= MAX_BODY:
        message: Message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    return body


def _request(scope: Scope, body: bytes) -> BootstrapRequest:
    raw, query = scope["raw_path"], scope["query_string"]
    signature = next((value for name, value in scope["headers"] if name == SIGNED), b"")
    client, server = scope["client"], scope["server"]
    return BootstrapRequest(
        method=scope["method"],
        path=scope["path"],
        query=_query(query.decode("ascii", "replace")),
        body=body,
        target=(raw + (b"?" + query if query else b"")).decode("ascii", "replace"),
        signature=signature.decode("ascii", "replace"),
        peer=client[0] if client else "",
        own=server[0] if server else "",
    )


def _query(raw: str) -> dict[str, str]:
    """Return the first value of each name, as aiohttp's `query.get` does."""
    found: dict[str, str] = {}
    for name, value in parse_qsl(raw, keep_blank_values=True):
        found.setdefault(name, value)
    return found


def _not_allowed(allow: str) -> BootstrapResponse:
    return text(405, "405: Method Not Allowed", allow=allow)
