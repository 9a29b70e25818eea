"""The life of an instance's HTTP process: answer 503 while the ranks load, warm up, serve, drain, end.

No torch here (a test enforces it): this process answers within microseconds, however long a forward pass takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
import uvloop
import zmq

from pdctl import open_files
from pdctl.engine.cluster.node_links import Leaving, Lost, Nodes, Up
from pdctl.engine.config.instance_args import ReplicaRank
from pdctl.engine.config.process_log import configure_access
from pdctl.engine.drill import fault_points
from pdctl.engine.frontend.application import build
from pdctl.engine.frontend.intake import Intake, LengthLimits
from pdctl.engine.frontend.observability import Metrics, RequestSpans
from pdctl.engine.frontend.request_bodies import HttpRefusal
from pdctl.engine.frontend.responses import EngineInstance
from pdctl.engine.frontend.tokenizer import CheckpointTexts
from pdctl.engine.frontend.tokenizer_manager import EngineStatus, TokenizerManager
from pdctl.engine.ipc.channels import Channels, Meeting, SocketKeys
from pdctl.engine.ipc.http_protocol import MAX_CONNECTIONS, BoundedProtocol
from pdctl.errors import PdctlError
from pdctl.open_files import OpenFilesWatch
from pdctl.thread_death import guard_task, guard_threads

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Iterator

    from starlette.types import ASGIApp

    from pdctl.engine.cluster.rank_processes import Ranks
    from pdctl.engine.config.instance_args import ServerArgs
    from pdctl.engine.frontend.request_state import RequestGroup
    from pdctl.engine.prefill.bootstrap_server import BootstrapServer
    from pdctl.http_auth import Keys

log = logging.getLogger("pdctl.engine")
access = logging.getLogger("uvicorn")

KEEP_ALIVE = 75  # seconds an idle connection stays: longer than a router's pool keeps it, so the router closes first
WARM_UP_WITHIN = 600.0
GOODBYE_WITHIN = 2  # seconds for finished answers to leave through their sockets
MAX_ROOMS = 1 << 63
# Seconds for which a thread that reads a large body may keep the GIL from the event loop. The loop needs it several
# times for one answer, so that Python's default of 5 ms adds up to 30 ms.
SWITCH_INTERVAL = 0.001
FEWEST_CONNECTIONS = 16
TICKS_PER_LOOK = 10  # uvicorn ticks ten times a second
FILES_ELSEWHERE = 256  # file descriptors that this process needs besides those of its clients


class Listener(uvicorn.Server):
    """uvicorn on a socket bound earlier; the instance handles signals itself."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._reach = fault_points.raiser("thread.http-server")
        self._open_files = OpenFilesWatch(log)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        if self._reach is not None:
            self._reach()
        if counter % TICKS_PER_LOOK == 0:
            self._open_files.look()
        return await super().on_tick(counter)

    def stop_accepting(self) -> None:
        for server in getattr(self, "servers", ()):
            server.close()


def listener(app: ASGIApp, args: ServerArgs) -> Listener:
    config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        lifespan="off",
        ws="none",
        log_config=None,
        log_level=None,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=GOODBYE_WITHIN,
        server_header=False,
        proxy_headers=False,  # otherwise the log would show an address that a client made up
    )
    configure_access(args)
    # uvicorn's own lines about a socket say less than the one `HttpProcess` writes.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    return Listener(config)


def serve(args: ServerArgs, listening: socket.socket, ranks: Ranks, ipc_dir: Path, keys: Keys) -> int:
    """Return 0 after a requested shutdown, 1 if a rank or the start failed, 128 + n for signal n twice."""
    try:
        checkpoint = CheckpointTexts.load(Path(args.model_path))
        spans = RequestSpans(args) if args.enable_trace else None
    except PdctlError as error:
        log.error("%s. %s", error.message, error.fix)
        return 1
    sys.setswitchinterval(SWITCH_INTERVAL)
    BoundedProtocol.limit(_connections())
    return uvloop.run(HttpProcess(args, checkpoint, ranks, ipc_dir, spans, keys).run(listening))


def _connections() -> int:
    """Return MAX_CONNECTIONS, or fewer, with a warning, if this process may not open enough files for that many."""
    files = open_files.limit()
    most = max(FEWEST_CONNECTIONS, min(MAX_CONNECTIONS, files - FILES_ELSEWHERE))
    if most < MAX_CONNECTIONS:
        log.warning(
            "%d file descriptors (ulimit -n) are enough for %d clients at once, not for %d: raise the limit to %d",
            files, most, MAX_CONNECTIONS, MAX_CONNECTIONS + FILES_ELSEWHERE,
        )  # fmt: skip
    return most


class HttpProcess:
    """Runs the instance from the first 503 to the last answer."""

    def __init__(
        self,
        args: ServerArgs,
        checkpoint: CheckpointTexts,
        ranks: Ranks,
        ipc_dir: Path,
        spans: RequestSpans | None,
        keys: Keys,
    ) -> None:
        self._keys = keys
        self._args = args
        self._ranks = ranks
        self._ipc_dir = ipc_dir
        self._began = time.monotonic()
        metrics = Metrics(args)
        self._spans = spans
        self._manager = TokenizerManager(args, checkpoint.tokenizer, metrics, ranks, spans)
        self._instance = EngineInstance(
            args=args,
            checkpoint=checkpoint,
            intake=Intake(args, checkpoint.tokenizer),
            manager=self._manager,
            metrics=metrics,
            ranks=ranks,
            forget_ranks=self._forget_ranks,
        )
        self._listener = listener(build(self._instance, keys), args)
        self._bootstrap: BootstrapServer | None = None
        self._nodes = Nodes(args, ranks, self._tell_to_stop, keys.secret) if args.nnodes > 1 else None
        self._meeting: Meeting | None = None
        self._signals: list[int] = []
        self._told_to_stop: asyncio.Event = asyncio.Event()
        self._told_twice: asyncio.Event = asyncio.Event()

    def _tell_to_stop(self) -> None:
        self._told_to_stop.set()

    async def run(self, listening: socket.socket) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signal, number)
        self._ranks.attach(loop)
        guard_threads(lambda reason: loop.call_soon_threadsafe(self._ranks.lose, reason))
        self._manager.open(self._ipc_dir)
        serving = loop.create_task(self._listener.serve(sockets=[listening]))
        try:
            return await self._live(serving)
        finally:
            self._listener.should_exit = True
            await asyncio.gather(serving, return_exceptions=True)  # its outcome is known
            if self._bootstrap is not None:
                await self._bootstrap.stop()
            if self._meeting is not None:
                self._meeting.close()
            if self._nodes is not None:
                await self._nodes.close()
            self._manager.close()
            if self._spans is not None:
                self._spans.close()

    def _signal(self, number: int) -> None:
        (self._told_twice if self._signals else self._told_to_stop).set()
        self._signals.append(number)

    async def _live(self, serving: asyncio.Task[None]) -> int:
        """Start, then wait for the first reason to end. Return the exit code."""
        loop = asyncio.get_running_loop()
        starting = loop.create_task(self._start())
        stop = loop.create_task(self._told_to_stop.wait())
        guard_task(serving, "HTTP server", self._ranks.lose)
        try:
            ends: set[asyncio.Future[Any]] = {stop, self._ranks.dead}
            await asyncio.wait({starting, *ends}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done() and not stop.done():
                starting.result()
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        except PdctlError as error:
            log.error("Start-up failed: %s. %s", error.message, error.fix)
            return await self._give_up(error.message)
        except HttpRefusal as error:
            log.error("Start-up failed: the warm-up request was answered with %d: %s", error.status, error.message)
            return await self._give_up(error.message)
        finally:
            starting.cancel()
            stop.cancel()
            await asyncio.gather(starting, stop, return_exceptions=True)  # their outcome is known
        if self._ranks.dead.done() and not self._told_to_stop.is_set():
            log.error(
                "Instance ends: %s. A rank cannot be replaced alone; start the instance again.",
                self._ranks.dead.result(),
            )
            return await self._give_up(self._ranks.dead.result())
        return await self._shut_down()

    async def _start(self) -> None:
        """Start the instance. Raise PdctlError or HttpRefusal naming what did not come up."""
        args = self._args
        where = f"[{args.host}]" if ":" in args.host else args.host
        access.info("Uvicorn running on http://%s:%d (Press CTRL+C to quit)", where, args.port)
        if self._nodes is not None:
            await self._gather(self._nodes)
        if args.serves_bootstrap:
            await self._start_bootstrap()
        await self._ranks.ready()
        if self._nodes is not None:
            await self._nodes.all_here.wait()  # `_fail_absent` ends the wait
        self._take_facts()
        await self._warm_up()
        # All its sockets are connected by now, and with the directory gone not even a SIGKILL leaves anything behind.
        shutil.rmtree(self._ipc_dir, ignore_errors=True)
        # What exists now stays: a full collection takes 40 to 70 ms less if it is left out.
        gc.collect()
        gc.freeze()
        self._manager.status = EngineStatus.UP
        self._instance.phases["tokenizer_e2e"] = time.monotonic() - self._began
        if self._nodes is not None:
            self._nodes.tell(Up())
        log.info("The server is fired up and ready to roll!")

    async def _gather(self, nodes: Nodes) -> None:
        """Let the other nodes and all ranks find each other; `ranks.dead` names those that did not join in time."""
        loop = asyncio.get_running_loop()
        channels = Channels.of(self._args, self._ipc_dir)
        await nodes.open(channels.nodes)
        loop.call_later(self._args.dist_timeout, self._fail_absent, nodes)
        try:
            self._meeting = Meeting(channels.meeting, self._ranks.expected, SocketKeys.of(self._keys.secret))
        except zmq.ZMQError as error:
            raise PdctlError(
                f"cannot listen on {channels.meeting} for the ranks: {error}", "give another --dist-init-addr"
            ) from None
        self._meeting.open(loop)

    def _fail_absent(self, nodes: Nodes) -> None:
        met = self._meeting.ranks if self._meeting is not None else {}
        if len(met) == self._ranks.expected and not nodes.absent:
            return
        there = (here.key for here in ReplicaRank.all(self._args.shape) if here.rank.world_rank in met)
        missing = self._ranks.missing(there)
        absent = ", ".join(map(str, nodes.absent))
        start = f" (node {absent} never came: start it with --node-rank {absent})" if absent else ""
        self._ranks.lose(f"waited {self._args.dist_timeout:g} s for rank {missing}{start}")

    async def _start_bootstrap(self) -> None:
        from pdctl.engine.prefill.bootstrap_server import BootstrapServer
        from pdctl.engine.prefill.rank_table import RegistrationCheck

        self._bootstrap = BootstrapServer(
            self._args.host,
            self._args.disaggregation_bootstrap_port,
            RegistrationCheck(self._args.shape, self._keys.secret),
            self._ranks.lose,
        )
        await self._bootstrap.start()
        if self._args.may_switch:
            log.warning(  # sglang's line
                "Role switch starts a bootstrap server on this instance at %s:%d. If another PD instance runs on the "
                "same host, give each one a distinct --disaggregation-bootstrap-port or the bind will conflict.",
                self._args.host, self._bootstrap.port,
            )  # fmt: skip

    def _forget_ranks(self) -> None:
        if self._bootstrap is not None:
            self._bootstrap.table.clear()

    def _take_facts(self) -> None:
        """Adopt what rank 0 resolved: limits for the intake, constants for the metrics."""
        facts = self._ranks.facts
        numbers = {name: float(value) for name, value in facts.items() if isinstance(value, int | float)}
        self._instance.intake.limits = LengthLimits(
            context=int(numbers["context_length"]),
            prompt=int(numbers.get("max_req_input_len", numbers["context_length"])),
        )
        self._instance.phases["scheduler_e2e"] = numbers.get("load_seconds", 0.0)
        for stage in self._ranks.stages:
            self._instance.phases[stage.name] = max(stage.seconds, self._instance.phases.get(stage.name, 0.0))
        constants = {"page_size": "page_size", "num_pages": "num_pages", "context_length": "context_len"}
        self._instance.metrics.started(
            {metric: numbers[fact] for fact, metric in constants.items() if fact in numbers}, self._instance.phases
        )

    async def _warm_up(self) -> None:
        """Run one real request on each replica (sglang: rooms are spread so that follow_bootstrap_room reaches all)."""
        paired = self._args.disaggregation_mode != "null"
        if paired:
            log.info("Start of pd disaggregation warmup ...")
        replicas = self._args.dp_ranks
        groups = [
            self._manager.probe(room=rank * (MAX_ROOMS // replicas), tokens=4, dp_rank=rank) for rank in range(replicas)
        ]
        try:
            await asyncio.wait_for(_finished(groups), WARM_UP_WITHIN)
        except asyncio.TimeoutError:
            raise PdctlError(f"waited {WARM_UP_WITHIN:g} s for the warm-up request to be answered") from None
        if paired:
            log.info("End of disaggregation warmup")

    async def _shut_down(self) -> int:
        """Refuse new requests, let running ones end within the grace, stop the ranks; on a second signal, kill them."""
        if self._manager.status is EngineStatus.STARTING:
            log.info("Shutting down before the start was over")
            self._ranks.kill()
            return 0
        log.info("Shutting down: %d request(s) running, grace %g s", self._manager.running, self._args.shutdown_grace)
        self._manager.status = EngineStatus.DRAINING
        if self._nodes is not None:
            self._nodes.tell(Leaving())
        self._listener.stop_accepting()
        self._ranks.expect_exit()
        loop = asyncio.get_running_loop()
        ending = loop.create_task(self._drain())
        twice = loop.create_task(self._told_twice.wait())
        await asyncio.wait({ending, twice}, return_when=asyncio.FIRST_COMPLETED)
        twice.cancel()
        if ending.done():
            return 0
        ending.cancel()
        self._manager.end_all("The engine was told to stop at once.")
        self._ranks.kill()
        return 128 + self._signals[-1]

    async def _drain(self) -> None:
        drained = await self._manager.drained(self._args.shutdown_grace)
        if not drained:
            log.warning("Ending %d request(s) that outlasted the grace", self._manager.running)
            self._manager.end_all("The engine is shutting down.")
        self._manager.stop(now=not drained)
        if not await self._ranks.exited():
            log.warning("Killing ranks that did not stop")
            self._ranks.kill()
        self._manager.fail_questions("The engine is shutting down.")

    async def _give_up(self, reason: str) -> int:
        """Tell every client that nothing can be served any more, and end. Return the exit code."""
        if self._nodes is not None:
            self._nodes.tell(Lost(reason))
        self._manager.die(f"The engine lost a rank: {reason}")
        self._ranks.kill()
        await self._ranks.exited()
        return 1


async def _finished(groups: Iterable[RequestGroup]) -> None:
    """A coroutine for `wait_for`, which abandons a cancelled `gather`: asyncio logs exceptions nobody retrieves."""
    await asyncio.gather(*(group.finished() for group in groups))
