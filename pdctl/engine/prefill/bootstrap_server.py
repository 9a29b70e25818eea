"""A prefill instance's bootstrap server: which rank listens where. Answers as sglang 0.5.23's CommonKVBootstrapServer.

Lives in the event loop of the HTTP process, on a port of its own. Where SGLang crashes on a body (HTTP 500) this one
says which field is wrong (400), and a re-registered rank is not counted twice; the rest is the same byte for byte.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import TYPE_CHECKING

from pdctl.engine.clients import Clients
from pdctl.engine.drill.fault_points import arm, raiser
from pdctl.engine.prefill.bootstrap_http import Answer, AnswerFaults, Exchange, Request, text
from pdctl.engine.prefill.rank_admission import Admission, foreign
from pdctl.engine.prefill.rank_table import RankTable
from pdctl.errors import LaunchError
from pdctl.thread_death import guard_task

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("pdctl.engine")

CLEANUP_INTERVAL = 120.0  # seconds; an announced DP rank lives between one and two of these
CHANGES = frozenset((("PUT", "/route"), ("POST", "/register_dp_rank")))
# Decode ranks ask from one short connection each; a host has at most a few dozen ranks.
MAX_CONNECTIONS, MAX_OF_ONE_PEER = 1024, 256
LISTENING_CHECK = 0.5  # seconds between looks whether the server still listens
ACCEPTING = 3  # turns of the loop from an accepted connection to its task


class BootstrapServer:
    def __init__(
        self,
        host: str,
        port: int,
        admission: Admission | None = None,
        died: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`died` hears why when nobody answers on the port any more, though nobody called `stop`."""
        self._died = died
        self.host = host
        self.port = port
        self.table = RankTable()
        self._admission = admission or Admission()
        armed = arm()
        self._faults = AnswerFaults(armed) if armed is not None else None
        self._server: asyncio.Server | None = None
        self._cleaner: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._clients = Clients(MAX_CONNECTIONS, MAX_OF_ONE_PEER)

    @property
    def registered(self) -> tuple[int, int]:
        """Ranks that are there and ranks that must be; (0, 0) before the first one says how many."""
        return self.table.registered

    async def start(self) -> None:
        """Raises LaunchError naming the port when it cannot be had: an instance without this server serves nobody."""
        try:
            self._server = await asyncio.start_server(self._connected, self.host, self.port)
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            raise LaunchError(
                f"bootstrap server cannot listen on {self.host}:{self.port}: {error.strerror or error}",
                f"another process holds port {self.port}; give this prefill its own --disaggregation-bootstrap-port"
                if taken
                else "check --host and --disaggregation-bootstrap-port",
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
        tasks = (self._cleaner, self._watch, *self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()
        self._server = self._cleaner = self._watch = None

    async def _stop_listening(self) -> None:
        """A connection accepted in this very turn of the loop must have its task before the server closes.

        asyncio (CPython 3.10 to 3.13) fails on it otherwise, and leaves its socket open.
        """
        loop = asyncio.get_running_loop()
        for listening in self._server.sockets if self._server else ():
            loop.remove_reader(listening)
        for _ in range(ACCEPTING):
            await asyncio.sleep(0)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if self._server is None:  # accepted while `stop` was at work
            writer.close()
            return
        if task is not None:
            if not self._clients.enter(peer := _peer(writer)):
                writer.close()
                return
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
            task.add_done_callback(lambda _: self._clients.leave(peer))
        await Exchange(reader, writer, self._faults).serve(self.answer)

    async def _watch_listening(self) -> None:
        """Ends when the server does not listen any more."""
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

    def answer(self, request: Request) -> Answer:
        """One request, one answer."""
        path, method = request.path, request.method
        if (method, path) in CHANGES:
            refused = self._refused(request)
            if refused is not None:
                log.warning("Refused %s %s from %s: %s", method, path, request.peer, refused.body.decode())
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

    def _refused(self, request: Request) -> Answer | None:
        """The answer to a stranger's change, before its body is looked at."""
        unsigned = self._admission.unsigned(request)
        if unsigned:
            return text(401, unsigned)
        if request.path == "/register_dp_rank" and not self._admission.signed:
            stranger = foreign(request, self.table.addresses)
            return text(403, stranger) if stranger else None
        return None


def _peer(writer: asyncio.StreamWriter) -> str:
    name = writer.get_extra_info("peername")
    return str(name[0]) if isinstance(name, tuple) else ""


def _not_allowed(allow: str) -> Answer:
    return text(405, "405: Method Not Allowed", allow=allow)
