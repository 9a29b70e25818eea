"""The one thread of a KV manager: it owns sockets, timers and the transport, and sleeps when there is nothing to do.

Other threads talk to it through `call`. Blocking HTTP runs on a few pool threads whose answers come back as calls.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import OrderedDict, deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol, TypeVar

import zmq

from pdctl.engine import faults
from pdctl.engine.kv_link.first_questions import FirstQuestions
from pdctl.engine.kv_link.kv_sockets import Bell, Inbox, Link, LinkEvent
from pdctl.engine.kv_link.timers import Timer, Timers
from pdctl.engine.socket_keys import NOT_ALIKE
from pdctl.thread_death import ThreadEndedError, in_words

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.engine.kv_link.frame_faults import FrameFaults
    from pdctl.engine.socket_keys import SocketKeys

log = logging.getLogger("pdctl.engine")

T = TypeVar("T")

HTTP_THREADS = 8
FIRST_THREADS, OF_ONE_HOST = 512, 64  # for peers nobody has heard of: each may cost one of them its whole timeout
FRAMES_PER_TURN = 64  # then commands and timers get their turn
FOREVER = 60_000  # ms; whoever waits that long may as well look once
BUSY_POLL = 1e-3  # seconds between looks at transfers that do not say when they will be done
CLOSE_LINGER = 1.0
MAX_SOCKETS = 16384  # of ZMQ, three for each link; its own default, 1023, ends at the 340th
MOST_LINGERING = 256  # links that are closed and may still send; beyond that the next one is cut off
MOST_ANSWERS = 256  # links for single answers; the oldest leaves for the next
ANSWER_STAYS = 1.0  # seconds a link for single answers stays open, for what it was given to leave
TURNED_AWAY_EVERY = 10.0  # seconds between log lines about peers that hold another secret
DRAIN = 2.0  # seconds for peers to acknowledge that rooms have ended


class Handler(Protocol):
    """What the loop serves; every method runs on its thread."""

    def on_frame(self, frame: bytes) -> None: ...
    def on_link(self, link: Link, event: LinkEvent) -> None: ...

    def advance(self) -> float | None:
        """Look at whatever needs polling; when to look again (monotonic seconds), None: when something happens."""
        ...

    def on_stop(self) -> None:
        """The loop ends as soon as `settled`, or after DRAIN seconds: end every room."""
        ...

    @property
    def settled(self) -> bool:
        """Nobody is owed an answer."""
        ...

    def on_death(self) -> None:
        """The loop has ended, perhaps on an error it did not expect: nothing will be answered any more."""
        ...

    def on_crash(self, reason: str) -> None:
        """The loop ends on an error it did not expect, before `on_death`."""
        ...


class Loop:
    def __init__(self, name: str, ip: str, handler: Handler, keys: SocketKeys | None = None) -> None:
        """`keys`: what peers must hold for their frames to be read; None: nothing."""
        self._handler = handler
        self._keys = keys
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
        self._bell = Bell()
        self._inbox = Inbox(self._context, ip, keys)
        self._turned_away = 0  # connections since the last log line about them
        self._telling = False
        self._answers: OrderedDict[str, Link] = OrderedDict()  # by endpoint
        self._lingering: deque[float] = deque()  # until when, of links that were closed with something to send
        self._links: dict[zmq.Socket[bytes], Link] = {}
        self._poller = zmq.Poller()
        self._poller.register(self._bell.fd, zmq.POLLIN)
        self._poller.register(self._inbox.socket, zmq.POLLIN)
        self._poller.register(self._inbox.monitor, zmq.POLLIN)
        self._calls: deque[Callable[[], None]] = deque()
        self._timers = Timers()
        self._http = ThreadPoolExecutor(HTTP_THREADS, thread_name_prefix=f"{name}-http")
        self._first = FirstQuestions(f"{name}-first", FIRST_THREADS, OF_ONE_HOST)
        self._stopping = False
        self._closed = False
        self._lock = threading.Lock()  # between `call` and the end
        self.ended = False
        self.faults: FrameFaults | None = None  # unless PDCTL_FAULTS asks for some
        self._reach = faults.raiser("thread.kv-manager")
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
        """End the thread; frames already sent still leave. False when it did not end in `timeout` seconds."""
        if self._closed:
            return True
        self._stopping = True
        self._bell.ring()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        self._closed = True
        if not self.ended:  # it never began
            self._finish()
        self._http.shutdown(wait=False, cancel_futures=True)
        self._first.close()
        self._close()
        return True

    def call(self, action: Callable[[], None]) -> bool:
        """Run `action` on the loop's thread, after the calls made before it. From any thread. False: it has ended."""
        with self._lock:
            if self.ended:
                return False
            self._calls.append(action)
        self._bell.ring()
        return True

    def later(self, seconds: float, action: Callable[[], None]) -> Timer:
        return self._timers.later(seconds, action)

    def submit(
        self,
        job: Callable[[], T],
        done: Callable[[T], None],
        spoilt: Callable[[str], None] | None = None,
        unproven: str = "",
    ) -> None:
        """Run blocking `job` on a pool thread, then `done` with its result on the loop's thread.

        What `job` brings may be a stranger's to say. Whatever it or `done` raises is passed to `spoilt`, in words, and
        ends what asked for it: one of the few places that catch everything, because this thread serves all peers.
        `unproven`: the host of a peer that never served a room, which may let us wait; others are asked elsewhere.
        """

        def finished(future: Future[T]) -> None:
            if not future.cancelled():
                self.call(lambda: take(future))

        def take(future: Future[T]) -> None:
            try:
                done(future.result())
            except Exception as error:
                if spoilt is None:
                    raise
                log.exception("An answer hit an exception; what asked for it ends")
                spoilt(f"{type(error).__name__}: {error}")

        if not self._stopping:
            asked = self._first.submit(unproven, job) if unproven else self._http.submit(job)
            asked.add_done_callback(finished)

    def connect(self, endpoint: str) -> Link:
        """Raise LinkError if `endpoint` cannot be dialled."""
        link = (self.faults.link if self.faults else Link)(self._context, endpoint, self._keys)
        self._links[link.monitor] = link
        self._poller.register(link.monitor, zmq.POLLIN)
        return link

    def send_once(self, endpoint: str, frame: bytes) -> bool:
        """Send one frame to whoever there is no lasting link to. Raise LinkError if `endpoint` cannot be dialled.

        False when the peer has stopped reading. Nobody hears whether the frame arrives.
        """
        link = self._answers.get(endpoint)
        if link is None:
            link = self._answers[endpoint] = (self.faults.link if self.faults else Link)(
                self._context, endpoint, self._keys
            )
            self.later(ANSWER_STAYS, lambda: self._end_answers(endpoint, link))
            if len(self._answers) > MOST_ANSWERS:
                self._answers.popitem(last=False)[1].close()
        return link.send(frame)

    def _end_answers(self, endpoint: str, link: Link) -> None:
        if self._answers.get(endpoint) is link:
            del self._answers[endpoint]
            link.close()

    def drop(self, link: Link, linger: float = 0.0) -> None:
        if self._links.pop(link.monitor, None) is not None:
            self._poller.unregister(link.monitor)
        link.close(linger if linger and self._may_linger(linger) else 0.0)

    def _may_linger(self, seconds: float) -> bool:
        """A peer that is not there keeps a closed socket for all of its linger: only so many may wait for that."""
        now = time.monotonic()
        while self._lingering and self._lingering[0] < now:
            self._lingering.popleft()
        if len(self._lingering) >= MOST_LINGERING:
            return False
        self._lingering.append(now + seconds)
        return True

    def _run(self) -> None:
        try:
            look: float | None = None
            while not self._stopping:
                look = self._turn(look)
            self._drain(look)
        except BaseException as error:
            # Whoever could start the rank again must hear of it first: what follows may fail as well.
            known = isinstance(error, ThreadEndedError)
            self._handler.on_crash(f"its {error}" if known else f"its KV manager thread ended on {in_words(error)}")
            log.critical("KV manager thread died; every room of this rank fails", exc_info=True)
        finally:
            self._finish()

    def _finish(self) -> None:
        """Take what was called in the last moment, then nothing more."""
        with self._lock:
            self.ended = True
        try:
            while self._calls:
                self._calls.popleft()()
        finally:
            self._handler.on_death()

    def _drain(self, look: float | None) -> None:
        self._handler.on_stop()
        deadline = time.monotonic() + DRAIN
        self.later(DRAIN, lambda: None)  # wakes the poller when it is over
        while not self._handler.settled and time.monotonic() < deadline:
            look = self._turn(look)

    def _turn(self, look: float | None) -> float | None:
        if self._reach is not None:
            self._reach()
        ready = dict(self._poller.poll(self._patience(look)))
        if self._bell.fd in ready:
            self._bell.hush()
        while self._calls:
            self._calls.popleft()()
        if self._inbox.socket in ready:
            self._receive()
        if self._inbox.monitor in ready:
            self._note_turned_away()
        for monitor in [item for item in ready if item in self._links]:
            self._watch(self._links.get(monitor))
        self._timers.tick()
        return self._handler.advance()

    def _receive(self) -> None:
        for _ in range(FRAMES_PER_TURN):
            frame = self._inbox.receive()
            if frame is None:
                return
            self._handler.on_frame(frame)

    def _note_turned_away(self) -> None:
        """One line at once, then one for all that come within TURNED_AWAY_EVERY seconds."""
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

    def _watch(self, link: Link | None) -> None:
        if link is None:
            return  # dropped by what came before it in this turn
        for event in link.events():
            self._handler.on_link(link, event)

    def _patience(self, look: float | None) -> int | None:
        """Milliseconds to sleep, at least until `look`; None: until somebody rings."""
        if self._calls:
            return 0
        due = [at for at in (look, self._timers.due()) if at is not None]
        if not due:
            return None
        return max(0, min(FOREVER, math.ceil((min(due) - time.monotonic()) * 1000)))

    def _close(self) -> None:
        for link in (*self._links.values(), *self._answers.values()):
            link.close(CLOSE_LINGER)
        self._links.clear()
        self._answers.clear()
        self._inbox.close()
        self._bell.close()
        self._context.term()
