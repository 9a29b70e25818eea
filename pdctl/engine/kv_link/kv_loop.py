"""The one thread of a KV manager: an asyncio loop that owns its sockets, timers, tasks and the transport.

Other threads talk to it through `call`. Whatever waits for an answer is a coroutine, started with `spawn`.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
from collections import OrderedDict, deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol, TypeVar

import uvloop
import zmq

from pdctl.engine.drill import fault_points
from pdctl.engine.ipc.channels import NOT_ALIKE
from pdctl.engine.kv_link.bootstrap_client import BootstrapClient
from pdctl.engine.kv_link.kv_frames import Inbox, Link, LinkEvent
from pdctl.thread_death import ThreadEndedError, in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from pdctl.engine.drill.kv_faults import FrameFaults
    from pdctl.engine.ipc.channels import SocketKeys

log = logging.getLogger("pdctl.engine")

T = TypeVar("T")

CHECKSUM_THREADS = 2
FRAMES_PER_TURN = 64  # then calls, tasks and timers get their turn
BUSY_POLL = 1e-3  # seconds between polls of transfers that do not say when they will be done
CLOSE_LINGER = 1.0
MAX_SOCKETS = 16384  # ZMQ sockets, three per link; ZMQ's own default of 1023 is exhausted by the 340th link
MOST_LINGERING = 256  # closed links that may still be sending; beyond that the next one is cut off
MOST_ANSWERS = 256  # links for single answers; a new one beyond that closes the oldest
ANSWER_STAYS = 1.0  # seconds a link for single answers stays open so that its frames can leave
TURNED_AWAY_EVERY = 10.0  # seconds between log lines about peers that have another secret
DRAIN = 2.0  # seconds for peers to acknowledge that rooms have ended
DRAIN_LOOK = 2e-3  # seconds between checks whether they have
END_TASKS = 1.0  # seconds
CLOSING_TURNS = 2  # of the loop, from aborting a connection to closing its socket


class Handler(Protocol):
    """What the loop serves. Every method runs on the loop's thread."""

    def on_frame(self, frame: bytes) -> None: ...
    def on_link(self, link: Link, event: LinkEvent) -> None: ...

    def advance(self) -> float | None:
        """Check what needs polling. Return when to check again (monotonic seconds); None: when something happens."""
        ...

    def on_stop(self) -> None:
        """End every room: the loop ends as soon as `idle`, or after DRAIN seconds."""
        ...

    @property
    def idle(self) -> bool:
        """Whether no peer is owed an answer."""
        ...

    def on_death(self) -> None:
        """The loop has ended, perhaps on an unexpected error: nothing will be answered any more."""
        ...

    def on_crash(self, reason: str) -> None:
        """The loop ends on an unexpected error; called before `on_death`."""
        ...


class Timer(Protocol):
    def cancel(self) -> None: ...


class NeverTimer:
    """The timer of a loop that has ended."""

    def cancel(self) -> None:
        return


NEVER = NeverTimer()


class Tasks:
    """The coroutines of one asyncio loop. `crash` is called with an error that none of them handled."""

    def __init__(self, loop: asyncio.AbstractEventLoop, crash: Callable[[BaseException], None]) -> None:
        self._loop = loop
        self._crash = crash
        self._running: set[asyncio.Task[None]] = set()

    def spawn(
        self, work: Coroutine[object, object, None], spoilt: Callable[[str], None] | None = None
    ) -> asyncio.Task[None]:
        """Run `work` on the loop; cancel the task to stop it.

        A coroutine may await something a stranger sends. An exception it does not handle is passed to `spoilt` as text,
        which ends what the coroutine was for. This is one of the few places that catch everything, because the loop
        serves all peers. Without `spoilt` the exception ends the loop, and with it the rank.
        """
        task = self._loop.create_task(work)
        self._running.add(task)
        task.add_done_callback(functools.partial(self._ended, spoilt))
        return task

    def _ended(self, spoilt: Callable[[str], None] | None, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        if spoilt is None:
            self._crash(error)
            return
        log.error("An answer hit an exception; what asked for it ends", exc_info=error)
        spoilt(in_words(error))

    async def end(self) -> None:
        """Cancel what is still running, and let it release what it holds."""
        running = tuple(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=END_TASKS)
        for _ in range(CLOSING_TURNS):
            await asyncio.sleep(0)


class KvLoop:
    def __init__(self, name: str, ip: str, handler: Handler, keys: SocketKeys | None = None) -> None:
        """`keys`: what peers must have for their frames to be read; None: nothing."""
        self._handler = handler
        self._keys = keys
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
        self._inbox = Inbox(self._context, ip, keys)
        self._turned_away = 0  # connections since the last log line about them
        self._telling = False
        self._answers: OrderedDict[str, Link] = OrderedDict()  # by endpoint
        self._lingering: deque[float] = deque()  # times until which closed links may still be sending
        self._links: set[Link] = set()
        # asyncio's own loop makes a hand-off of 4 MiB a tenth slower (tests/bench/kv_handoff.py).
        self._loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._loop.set_exception_handler(self._failed)
        self._tasks = Tasks(self._loop, self._crash)
        self._ending: asyncio.Future[None] = self._loop.create_future()
        self._look: asyncio.TimerHandle | None = None  # when the handler wants to poll again
        self._checksums = ThreadPoolExecutor(CHECKSUM_THREADS, thread_name_prefix=f"{name}-checksum")
        self.bootstrap = BootstrapClient()
        self._closed = False
        self._lock = threading.Lock()  # between `call` and the end of the loop
        self.ended = False
        self.faults: FrameFaults | None = None  # set only if PDCTL_FAULTS asks for faults
        self._reach = fault_points.raiser("thread.kv-manager")
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def endpoint(self) -> str:
        return self._inbox.endpoint

    @property
    def port(self) -> int:
        return self._inbox.port

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 10.0) -> bool:
        """End the thread; frames already sent still leave. Return False if it did not end within `timeout` seconds."""
        if self._closed:
            return True
        self.call(self._end)
        if self._thread.ident is not None:
            self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        self._closed = True
        if not self.ended:  # it never started
            self._finish()
        self._checksums.shutdown(wait=False, cancel_futures=True)
        self._close()
        return True

    def _end(self) -> None:
        if not self._ending.done():
            self._ending.set_result(None)

    def _crash(self, error: BaseException) -> None:
        """End the loop on `error`, which was not expected; the first such error is the one kept."""
        if not self._ending.done():
            self._ending.set_exception(error)

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """Handle what asyncio reports: a callback that raised unexpectedly, or an exception nothing retrieved."""
        del loop
        error = context.get("exception")
        if "future" in context or "task" in context:
            log.error(
                "KV manager: %s", context.get("message"), exc_info=error if isinstance(error, Exception) else None
            )
        else:
            self._crash(error if isinstance(error, BaseException) else ThreadEndedError(str(context.get("message"))))

    # --- what other threads ask of it

    def call(self, action: Callable[[], None]) -> bool:
        """Run `action` on the loop's thread, after earlier calls. Any thread may call it. False: the loop has ended."""
        with self._lock:
            if self.ended:
                return False
            self._loop.call_soon_threadsafe(self._do, action)
        return True

    # --- what its own thread asks of it

    def later(self, seconds: float, action: Callable[[], None]) -> Timer:
        """Run `action` after `seconds`, or never if the loop has ended by then."""
        if self.ended:
            return NEVER
        return self._loop.call_later(seconds, self._do, action)

    def spawn(
        self, work: Coroutine[object, object, None], spoilt: Callable[[str], None] | None = None
    ) -> asyncio.Task[None]:
        """Run `work`. Pass an exception it does not handle to `spoilt` as text; without `spoilt` it ends the rank."""
        return self._tasks.spawn(work, spoilt)

    async def compute(self, work: Callable[[], T]) -> T:
        """Return the result of the slow `work`, run on another thread."""
        return await self._loop.run_in_executor(self._checksums, work)

    def connect(self, endpoint: str) -> Link:
        """Open a lasting link. Raise LinkError if `endpoint` cannot be dialled."""
        link = self._dial(endpoint)
        self._links.add(link)
        self._loop.add_reader(link.monitor_fd, self._watch, link)
        self._loop.call_soon(self._watch, link)  # ZMQ's descriptor does not signal what happened before it was watched
        return link

    def _dial(self, endpoint: str) -> Link:
        return (self.faults.link if self.faults else Link)(self._context, endpoint, self._keys)

    def send_once(self, endpoint: str, frame: bytes) -> bool:
        """Send one frame to a peer without a lasting link. Raise LinkError if `endpoint` cannot be dialled.

        Return False if the peer has stopped reading. Whether the frame arrives is not known.
        """
        link = self._answers.get(endpoint)
        if link is None:
            link = self._answers[endpoint] = self._dial(endpoint)
            self.later(ANSWER_STAYS, functools.partial(self._end_answers, endpoint, link))
            if len(self._answers) > MOST_ANSWERS:
                self._answers.popitem(last=False)[1].close()
        return link.send(frame)

    def _end_answers(self, endpoint: str, link: Link) -> None:
        if self._answers.get(endpoint) is link:
            del self._answers[endpoint]
            link.close()

    def drop(self, link: Link, linger: float = 0.0) -> None:
        if link in self._links:
            self._links.discard(link)
            self._loop.remove_reader(link.monitor_fd)
        link.close(linger if linger and self._may_linger(linger) else 0.0)

    def _may_linger(self, seconds: float) -> bool:
        """Return whether another closed link may linger: one to an absent peer stays open for all of its linger."""
        now = time.monotonic()
        while self._lingering and self._lingering[0] < now:
            self._lingering.popleft()
        if len(self._lingering) >= MOST_LINGERING:
            return False
        self._lingering.append(now + seconds)
        return True

    # --- its thread

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:
            # Report it first to the part that can restart the rank: what follows may fail as well.
            known = isinstance(error, ThreadEndedError)
            self._handler.on_crash(f"its {error}" if known else f"its KV manager thread ended on {in_words(error)}")
            log.critical("KV manager thread died; every room of this rank fails", exc_info=True)
        finally:
            self._finish()

    async def _serve(self) -> None:
        self._loop.add_reader(self._inbox.fd, self._receive)
        self._loop.add_reader(self._inbox.monitor_fd, self._note_turned_away)
        self._receive()
        self._note_turned_away()
        await self._ending
        self._ending = self._loop.create_future()
        self._handler.on_stop()
        deadline = time.monotonic() + DRAIN
        while not self._handler.idle and time.monotonic() < deadline:
            await asyncio.wait([self._ending], timeout=DRAIN_LOOK)
            if self._ending.done():
                await self._ending

    def _finish(self) -> None:
        """Run the calls made at the last moment, then accept no more."""
        with self._lock:
            self.ended = True
        try:
            self._loop.run_until_complete(self._tasks.end())
        finally:
            self._handler.on_death()

    def _do(self, action: Callable[[], None]) -> None:
        if self._reach is not None:
            self._reach()
        action()
        self._advance()

    def _receive(self) -> None:
        """Read frames, in turns, until there are none: ZMQ's descriptor signals a change of state, not a frame."""
        for _ in range(FRAMES_PER_TURN):
            frame = self._inbox.receive()
            if frame is None:
                break
            if self._reach is not None:
                self._reach()
            self._handler.on_frame(frame)
        else:
            self._loop.call_soon(self._receive)
        self._advance()

    def _watch(self, link: Link) -> None:
        for event in link.events():
            self._handler.on_link(link, event)
        self._advance()

    def _advance(self) -> None:
        """Let the handler poll, after anything that may have changed what it polls."""
        if self._look is not None:
            self._look.cancel()
            self._look = None
        at = self._handler.advance()
        if at is not None:
            self._look = self._loop.call_at(at, self._advance)

    def _note_turned_away(self) -> None:
        """Log one line at once, then one for all that come within TURNED_AWAY_EVERY seconds."""
        self._turned_away += self._inbox.turned_away()
        if not self._telling:
            self._tell_turned_away()

    def _tell_turned_away(self) -> None:
        self._telling = self._turned_away > 0
        if self._telling:
            log.warning(
                "Turned away %d connection(s) at %s: the peer said nothing (as a check of the port does), "
                "speaks no ZMTP, or %s",
                *(self._turned_away, self.endpoint, NOT_ALIKE),
            )
            self._turned_away = 0
            self.later(TURNED_AWAY_EVERY, self._tell_turned_away)

    def _close(self) -> None:
        self._loop.close()
        for link in (*self._links, *self._answers.values()):
            link.close(CLOSE_LINGER)
        self._links.clear()
        self._answers.clear()
        self._inbox.close()
        self._context.term()
