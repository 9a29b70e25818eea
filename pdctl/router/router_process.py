"""The router as a whole: puts its parts together, routes its requests, starts and stops it."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from typing import TYPE_CHECKING, Any

from pdctl import open_files
from pdctl.errors import LaunchError
from pdctl.http_auth import SIGNATURE, AccessLevel, Gate, Keys
from pdctl.loopback import fix_of_listening
from pdctl.router.clients import ClientLimits, files_for
from pdctl.router.dispatch import Chooser, Dispatcher, make_policy
from pdctl.router.log import logger
from pdctl.router.manage import Management, refuse_method
from pdctl.router.monitor import Monitor
from pdctl.router.registry import PortSource, Registry, WorkerRole
from pdctl.router.room_ledger import RoomLedger, RouterStats
from pdctl.router.router_args import RouterArgs, misled, start_lines
from pdctl.router.server import ClientServer, Screened
from pdctl.thread_death import guard_threads

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from pdctl.router.clients import Exchange
    from pdctl.router.upstream import Headers

ROUTES = {path.encode(): path for path in ("/generate", "/v1/chat/completions", "/v1/completions")}
MAX_ORDER = 64 * 1024  # bytes of a request that is not a generation
OPEN_PATHS = frozenset((b"/health", b"/liveness", b"/readiness", b"/metrics"))  # no key needed


class RouterProcess:
    """Needs a running event loop."""

    def __init__(self, args: RouterArgs) -> None:
        self._args = args
        self._stats = RouterStats()
        self._ledger = RoomLedger(args.ledger_size)
        self._registry = Registry(args)
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._monitor = Monitor(args, self._registry, self.lose)
        files = open_files.raise_limit(max(open_files.ENOUGH, files_for(args.max_connections)))
        limits = ClientLimits.of(args, files)
        self._shortage = limits.shortage(args, files)
        self._server = ClientServer(limits, self._handle, self._screen, self.lose)
        chooser = Chooser(make_policy(args, WorkerRole.PREFILL), make_policy(args, WorkerRole.DECODE))
        self._dispatcher = Dispatcher(args, self._registry, chooser, self._ledger, self._stats, self.lose)
        self._gate = Gate(Keys(args.api_key, args.admin_api_key, args.secret))
        self._management = Management(
            args, self._registry, self._monitor, self._ledger, self._stats, self._server, self._gate
        )
        self._tasks: dict[asyncio.Task[None], Exchange] = {}

    async def start(self) -> int:
        """Listen, start to monitor the workers, and return the port."""
        args = self._args
        try:
            port = await self._server.listen(args.host, args.port)
        except OSError as error:
            text = f"cannot listen on {args.host}:{args.port}: {error.strerror or error}"
            fix = fix_of_listening(error, args.host, "free the port or choose another with --port")
            raise LaunchError(text, fix) from None
        if self._shortage:
            logger.warning("%s", self._shortage)
        prefills = misled(args)
        if args.rehearse:
            loud, real = start_lines(args)
            logger.warning("%s", loud)
            logger.info("%s", real)
        for role, workers in ((WorkerRole.PREFILL, prefills), (WorkerRole.DECODE, args.decode)):
            for one in workers:
                worker = self._registry.add(role, one.origin, one.bootstrap_port, PortSource.FLAG)
                assert worker is not None  # no URL is twice on the command line
                self._monitor.watch(worker)
        logger.info(
            "Router listening on http://%s:%d policy=%s prefill=%s decode=%s", args.host, port, args.policy.value,
            [(one.origin.url, one.bootstrap_port) for one in prefills], [one.origin.url for one in args.decode],
        )  # fmt: skip
        return port

    def lose(self, reason: str) -> None:
        """Something that serves every request has ended: the router drains and ends with this reason."""
        if not self._lost.done():
            self._lost.set_result(reason)

    async def serve(self) -> int:
        """Serve until SIGTERM or SIGINT and return the exit status: 0 after a drain.

        It is 128 + signal if a second signal cut the drain short, and 1 if one of the router's own tasks or threads
        ended on an error.
        """
        loop = asyncio.get_running_loop()
        signals: asyncio.Queue[int] = asyncio.Queue()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, signals.put_nowait, number)
        guard_threads(lambda reason: loop.call_soon_threadsafe(self.lose, reason))
        await self.start()
        # What is alive now stays alive, and a request leaves no cycle behind: the collector need not run often.
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        told = loop.create_task(signals.get())
        ends: set[asyncio.Future[Any]] = {told, self._lost}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        status = 0
        if not told.done():
            told.cancel()
            logger.error("Router ends: %s", self._lost.result())
            status = 1
        logger.info("Draining: no new connections, %d rooms in flight", self._ledger.running)
        drain = loop.create_task(self._server.drain(self._args.shutdown_grace))
        second = loop.create_task(signals.get())
        await asyncio.wait((drain, second), return_when=asyncio.FIRST_COMPLETED)
        if drain.done():
            second.cancel()
            if drain.result():
                logger.warning("%d clients left after --shutdown-grace %g s", drain.result(), self._args.shutdown_grace)
        else:
            status = 128 + second.result()
            drain.cancel()
        await self.stop()
        return status

    async def stop(self) -> None:
        """Cut off what is left and remove the workers."""
        self._server.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for worker in list(self._registry.workers.values()):
            self._registry.remove(worker)
        await self._monitor.close()
        logger.info("Router stopped")

    def _handle(self, exchange: Exchange) -> None:
        path = exchange.path
        refusal = "" if path in ROUTES else self._unauthorized(exchange)
        if refusal:
            exchange.refuse(401, refusal, "unauthorized")
            self._count(exchange)
        elif path not in ROUTES:
            self._run(self._management.handle(exchange), exchange)
        elif exchange.method in (b"POST", b"PUT"):
            self._run(self._dispatcher.serve(exchange), exchange)
        else:
            refuse_method(exchange, ["POST", "PUT"])
            self._count(exchange)

    def _screen(self, method: bytes, path: bytes, headers: Headers) -> Screened:
        """Refuse a generation without its key before its body is read; limit the size of every other request."""
        if path not in ROUTES:
            return Screened("", MAX_ORDER)
        if not self._gate.guards_clients:
            return Screened("", self._args.max_payload_size)
        bearer = next((value for name, value in headers if name == b"authorization"), b"")
        judged = self._gate.judge(AccessLevel.CLIENT, bearer, "", method.decode("ascii", "replace"), path.decode(), b"")
        return Screened(judged.refusal, self._args.max_payload_size)

    def _unauthorized(self, exchange: Exchange) -> str:
        """Return why a request is refused; empty if it may pass. Most requests need nothing, and cost nothing here."""
        needed = level(exchange)
        if self._gate.asks_nothing(needed):
            return ""
        target = exchange.path + (b"?" + exchange.query if exchange.query else b"")
        judged = self._gate.judge(
            needed,
            exchange.header(b"authorization") or b"",
            (exchange.header(SIGNATURE.encode()) or b"").decode("ascii", "replace"),
            exchange.method.decode("ascii", "replace"),
            target.decode("utf-8", "surrogateescape"),
            bytes(exchange.body),
        )
        exchange.admin = judged.admin
        return judged.refusal

    def _run(self, work: Coroutine[Any, Any, None], exchange: Exchange) -> None:
        task = self._server.loop.create_task(work)
        self._tasks[task] = exchange
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        exchange = self._tasks.pop(task)
        if not task.cancelled() and task.exception() is not None:
            path = exchange.path.decode("utf-8", "replace")
            logger.error("A bug in the router, path %s", path, exc_info=task.exception())
            exchange.refuse(500, "a bug in the router; its log has the details", "bug")
        self._count(exchange)

    def _count(self, exchange: Exchange) -> None:
        route = ROUTES.get(exchange.path)
        if route is None:
            route = self._management.route(exchange.path.decode("utf-8", "replace")) or "other"
        self._stats.requests[route, 0 if exchange.gone else exchange.status] += 1


def level(exchange: Exchange) -> AccessLevel:
    """Return the access level a request needs."""
    if exchange.path in OPEN_PATHS:
        return AccessLevel.OPEN
    if exchange.path in (b"/abort_request", b"/rooms") or exchange.path.startswith(b"/rooms/"):
        return AccessLevel.GRADED
    changes = exchange.path.startswith(b"/workers") and exchange.method not in (b"GET", b"HEAD")
    return AccessLevel.ADMIN if changes or exchange.path == b"/flush_cache" else AccessLevel.CLIENT


def run(args: RouterArgs) -> int:
    """Run the router until a signal ends it."""
    try:
        import uvloop
    except ImportError:  # no wheel on this platform: the standard loop does the same, more slowly
        return asyncio.run(_main(args))
    # A large body is read in another thread (body.py): with this the loop gets the GIL back within a millisecond.
    sys.setswitchinterval(0.001)
    status: int = uvloop.run(_main(args))
    return status


async def _main(args: RouterArgs) -> int:
    return await RouterProcess(args).serve()
