"""The life of a node other than node 0: its ranks, a health route, and the connection that tells whether node 0 lives.

sglang 0.5.23 runs a dummy health server there as well, which answers 200 from the start; this one answers 503 until the
whole instance serves.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import uvicorn
import uvloop

from pdctl.deployment_secret import DeploymentSecret
from pdctl.engine.cluster.node_links import Leaving, Lost, NodeHello, NodeWire, Refused, Up, reach
from pdctl.engine.cluster.rank_processes import STOP_WITHIN
from pdctl.engine.drill import fault_points
from pdctl.engine.ipc.channels import Channels
from pdctl.errors import PdctlError
from pdctl.thread_death import guard_task, guard_threads, in_words

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from pdctl.engine.cluster.rank_processes import Ranks
    from pdctl.engine.config.instance_args import ServerArgs

    Scope = dict[str, Any]
    Receive = Callable[[], Awaitable[dict[str, Any]]]
    Send = Callable[[dict[str, Any]], Awaitable[None]]

log = logging.getLogger("pdctl.engine")

GOODBYE_WITHIN = 2  # seconds for finished answers to leave through their sockets


class Health:
    """An ASGI application for health checks only. `up` becomes true when the instance serves."""

    def __init__(self, node: int) -> None:
        self._node = node
        self.up = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        known = scope["path"] in ("/health", "/health_generate", "/ping", "/ready")
        status = 404 if not known else 200 if self.up else 503
        words = {"node_rank": self._node, "status": "up" if self.up else "starting"}
        if not known:
            words = {"error": f"node {self._node} answers /health only; every other route is node 0's"}
        body = json.dumps(words).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body if scope["method"] != "HEAD" else b""})


def follow(args: ServerArgs, door: socket.socket, ranks: Ranks, ipc_dir: Path) -> int:
    """Return 0 after a requested shutdown, 1 if the instance ended otherwise, 128 + n for signal n twice."""
    return uvloop.run(Follower(args, ranks, Channels.of(args, ipc_dir)).run(door))


class Follower:
    def __init__(self, args: ServerArgs, ranks: Ranks, channels: Channels) -> None:
        self._args = args
        self._ranks = ranks
        self._channels = channels
        self._secret = DeploymentSecret.from_environment(os.environ)
        self._health = Health(args.node_rank)
        self._wire: NodeWire | None = None
        self._signals: list[int] = []
        self._told_to_stop: asyncio.Event = asyncio.Event()
        self._told_twice: asyncio.Event = asyncio.Event()
        self._leaving = False

    async def run(self, door: socket.socket) -> int:
        from pdctl.engine.frontend.http_process import Listener  # imported late: what it imports is needed only now

        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signal, number)
        self._ranks.attach(loop)
        guard_threads(lambda reason: loop.call_soon_threadsafe(self._ranks.lose, reason))
        config = uvicorn.Config(
            self._health, lifespan="off", ws="none", log_config=None, access_log=False, server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=GOODBYE_WITHIN,
        )  # fmt: skip
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        listener = Listener(config)
        serving = loop.create_task(listener.serve(sockets=[door]))
        guard_task(serving, "HTTP server", self._ranks.lose)
        try:
            return await self._live()
        finally:
            self._health.up = False
            listener.should_exit = True
            await asyncio.gather(serving, return_exceptions=True)  # its outcome is known
            if self._wire is not None:
                await self._wire.close()

    def _signal(self, number: int) -> None:
        self._signals.append(number)
        (self._told_twice if self._told_to_stop.is_set() else self._told_to_stop).set()

    async def _live(self) -> int:
        loop = asyncio.get_running_loop()
        listening = loop.create_task(self._listen())
        stop = loop.create_task(self._told_to_stop.wait())
        twice = loop.create_task(self._told_twice.wait())
        try:
            ends: set[asyncio.Future[Any]] = {listening, self._ranks.dead, stop}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if stop.done() and not listening.done() and not self._ranks.dead.done():
                if self._wire is None:
                    return self._end("", 0)
                log.info("Shutting down: asking node 0 to stop the instance")
                self._wire.send(Leaving())
                patience = self._args.shutdown_grace + 2 * STOP_WITHIN
                await asyncio.wait({listening, twice}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                if not listening.done():
                    return self._end("", 128 + self._signals[-1] if twice.done() else 0)
            if listening.done():
                return await self._follow_order(listening)
            reason = self._ranks.dead.result()
            if self._wire is not None:
                self._wire.send(Lost(reason))
            return self._end(reason, 1)
        finally:
            for task in (listening, stop, twice):
                task.cancel()

    async def _follow_order(self, listening: asyncio.Task[str]) -> int:
        try:
            reason = listening.result()
        except PdctlError as error:
            log.error("Start-up failed: %s. %s", error.message, error.fix)
            return self._end("", 1)
        except Exception as error:
            log.critical("The connection to node 0 hit an exception; this node ends", exc_info=error)
            reason = f"the connection to node 0 ended on {in_words(error)}"
            if self._wire is not None:
                self._wire.send(Lost(reason))
        if reason:
            return self._end(reason, 1)
        await self._ranks.exited(self._args.shutdown_grace + STOP_WITHIN)
        return self._end("", 0)

    def _end(self, reason: str, code: int) -> int:
        if reason:
            log.error("Instance ends: %s. A rank cannot be replaced alone; start the instance again.", reason)
        self._ranks.kill()
        return code

    async def _listen(self) -> str:
        """Return why the instance ends, empty if it was told to. Raise PdctlError if node 0 is not there or refuses."""
        began = time.monotonic()
        self._wire = wire = await reach(self._channels.nodes, self._args.dist_timeout, self._secret)
        wire.send(NodeHello(self._args.node_rank, self._args.to_json()))
        log.info(
            "Node %d joined node 0 at %s:%d after %.1f s",
            self._args.node_rank,
            *self._channels.nodes,
            time.monotonic() - began,
        )
        raises = fault_points.raiser("thread.node-link", self._args.node_rank)
        while True:
            word = await wire.receive()
            if raises is not None:
                raises()
            if isinstance(word, Up):
                self._health.up = True
            elif isinstance(word, Refused):
                raise PdctlError(f"node 0 refuses this node: {word.reason}")
            elif isinstance(word, Lost):
                return word.reason
            elif isinstance(word, Leaving):
                self._ranks.expect_exit()
                return ""
            elif word is None:
                return "node 0 is gone"
