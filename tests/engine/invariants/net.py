"""What stands between processes: a clock, links that carry frames in order, HTTP to bootstrap servers; their faults."""

from __future__ import annotations

import asyncio
import functools
import heapq
import itertools
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from pdctl.engine.kv_link import bootstrap_client, kv_manager
from pdctl.engine.kv_link.bootstrap_client import BootstrapClient, BootstrapError
from pdctl.engine.kv_link.kv_frames import LinkEvent
from pdctl.engine.kv_link.kv_loop import Handler, Tasks
from pdctl.engine.prefill import prefill_manager

T = TypeVar("T")

EPOCH = 1_700_000_000.0
LOOK = 0.5  # virtual seconds between looks at what is under way; real loops look every millisecond


class Clock:
    """Stands in for the module `time`: one virtual monotonic clock, and a wall clock that may jump."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.jump = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return EPOCH + self.now + self.jump

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


class SimLink:
    """Frames from one loop to the inbox at `endpoint`, in order. `held`: nothing passes for now."""

    def __init__(self, owner: SimLoop, endpoint: str) -> None:
        self.owner, self.endpoint = owner, endpoint
        self.wire: deque[bytes] = deque()
        self.closed = False
        self.held = False
        self.held_since = 0.0

    def send(self, frame: bytes) -> bool:
        if self.closed:
            return False
        self.wire.append(frame)
        return True

    def close(self, linger: float = 0.0) -> None:
        self.closed = True
        if not linger:
            self.wire.clear()


class VirtualLoop(asyncio.AbstractEventLoop):
    """An asyncio loop without a machine: what is ready runs when the world says so, and time is the world's."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.ready: deque[asyncio.Handle] = deque()
        self.timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._order = itertools.count()

    def time(self) -> float:
        return self._clock.now

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What a callback raises goes up by itself. A loop that was killed leaves tasks and answers where they are."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:
        del context
        return asyncio.Task(coro, loop=self, name=name)

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self.ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self.timers, (when, next(self._order), handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        return

    @property
    def due(self) -> float | None:
        """When the next timer is."""
        while self.timers and self.timers[0][2].cancelled():
            heapq.heappop(self.timers)
        return self.timers[0][0] if self.timers else None

    def run_ready(self) -> None:
        """Run what is ready or due now, and what becomes ready by it."""
        while (due := self.due) is not None and due <= self.time():
            self.ready.append(heapq.heappop(self.timers)[2])
        asyncio._set_running_loop(self)
        try:
            while self.ready:
                handle = self.ready.popleft()
                if not handle.cancelled():
                    _call(handle)
        finally:
            asyncio._set_running_loop(None)


def _call(handle: asyncio.Handle) -> None:
    """A handle's own `_run` would hand what its callback raises to a handler; here it goes up."""
    callback, args = handle._callback, handle._args  # type: ignore[attr-defined]
    handle._context.run(callback, *args)  # type: ignore[attr-defined]


class SimBootstrapClient(BootstrapClient):
    """Questions to simulated bootstrap servers; each is answered when the world says so."""

    def __init__(self, net: Network, jobs: deque[Job]) -> None:
        super().__init__()
        self._net, self._jobs = net, jobs

    async def call(
        self, address: str, method: str, target: str, body: bytes | None = None, timeout: float = 5.0
    ) -> bytes:
        del timeout
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._jobs.append(Job(answer, functools.partial(self._net.http, address, method, target, body)))
        return await answer


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    answer: asyncio.Future[bytes]
    ask: Callable[[bool], bytes]  # whether the connection is refused


class SimLoop:
    """The KV manager's thread as a queue of things to do; `turn` does them in the real loop's order."""

    def __init__(self, net: Network, handler: Handler, name: str) -> None:
        self._net, self._handler = net, handler
        self.name = name
        self.endpoint = net.bind(self)
        self.port = int(self.endpoint.rpartition(":")[2])
        self.links: list[SimLink] = []
        self.calls: deque[Callable[[], None]] = deque()
        self.events: deque[tuple[SimLink, LinkEvent]] = deque()
        self._jobs: deque[Job] = deque()
        self.asyncio = VirtualLoop(net.clock)
        self._tasks = Tasks(self.asyncio, _up)
        self.bootstrap = SimBootstrapClient(net, self._jobs)
        self.look: float | None = None
        self.ended = False
        self.dead = False

    @property
    def jobs(self) -> int:
        """Questions to bootstrap servers that somebody still waits for."""
        while self._jobs and self._jobs[0].answer.done():
            self._jobs.popleft()
        return len(self._jobs)

    # --- what a manager asks of its loop

    def start(self) -> None:
        return

    def call(self, action: Callable[[], None]) -> bool:
        if self.ended:
            return False
        self.calls.append(action)
        return True

    def later(self, seconds: float, action: Callable[[], None]) -> asyncio.TimerHandle:
        return self.asyncio.call_later(seconds, action)

    def spawn(
        self, work: Coroutine[object, object, None], spoilt: Callable[[str], None] | None = None
    ) -> asyncio.Task[None]:
        """What the coroutine does not foresee goes up: no answer of the simulated servers is a stranger's."""
        del spoilt
        return self._tasks.spawn(work)

    async def compute(self, work: Callable[[], T]) -> T:
        return work()

    def connect(self, endpoint: str) -> SimLink:
        link = SimLink(self, endpoint)
        self.links.append(link)
        self._net.links.append(link)
        there = self._net.loops.get(endpoint)
        alive = there is not None and not there.dead
        self.events.append((link, LinkEvent.UP if alive else LinkEvent.REFUSED))
        return link

    def send_once(self, endpoint: str, frame: bytes) -> bool:
        link = self.connect(endpoint)
        sent = link.send(frame)
        self.drop(link, linger=1.0)
        return sent

    def drop(self, link: SimLink, linger: float = 0.0) -> None:
        if link in self.links:
            self.links.remove(link)
        link.close(linger)

    def stop(self, timeout: float = 10.0) -> bool:
        del timeout
        return True

    # --- what the world does with it

    def turn(self, frames: int = 0, link: SimLink | None = None) -> None:
        """Calls, `frames` frames of `link`, link events, tasks and timers, then a look at what is under way."""
        if self.dead:
            return
        while self.calls:
            self.calls.popleft()()
        for _ in range(frames):
            if link is None or not link.wire or link.held:
                break
            self._handler.on_frame(link.wire.popleft())
        while self.events:
            link_of, event = self.events.popleft()
            if not link_of.closed:
                self._handler.on_link(link_of, event)
        self.asyncio.run_ready()
        look = self._handler.advance()
        self.look = None if look is None else max(look, self._net.clock.now + LOOK)

    @property
    def due(self) -> float | None:
        """When something happens by itself."""
        return min((at for at in (self.asyncio.due, self.look) if at is not None), default=None)

    def answer(self, refused: bool = False) -> None:
        """One HTTP answer comes back; `refused`: the connection was."""
        if not self.jobs:
            return
        job = self._jobs.popleft()
        try:
            job.answer.set_result(job.ask(refused))
        except BootstrapError as error:
            job.answer.set_exception(error)

    def die(self) -> None:
        """SIGKILL: peers see their connections close; what was on the wire may still arrive."""
        self.dead = self.ended = True
        for link in self._net.links:
            if link.endpoint == self.endpoint and not link.closed and not link.owner.dead:
                link.owner.events.append((link, LinkEvent.LOST))
                link.wire.clear()


def _up(error: BaseException) -> None:
    raise error


class Network:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.loops: dict[str, SimLoop] = {}
        self.links: list[SimLink] = []
        self.servers: dict[str, Callable[[str, str, bytes | None], tuple[int, str]]] = {}  # host:port → answers
        self._ports = itertools.count(40001)
        self._names = itertools.count(1)

    def bind(self, loop: SimLoop) -> str:
        endpoint = f"tcp://10.0.0.9:{next(self._ports)}"
        self.loops[endpoint] = loop
        return endpoint

    def loop(self, name: str, ip: str, handler: Handler, keys: object = None) -> SimLoop:
        del ip, keys
        return SimLoop(self, handler, name)

    def name(self) -> str:
        return f"name-{next(self._names)}"

    @property
    def busy(self) -> list[SimLink]:
        """Links with something to deliver."""
        self.links = [link for link in self.links if link.wire or not (link.closed or link.owner.dead)]
        return [link for link in self.links if link.wire and not link.held]

    def deliver(self, link: SimLink, frames: int = 1) -> None:
        there = self.loops.get(link.endpoint)
        if there is None or there.dead:
            link.wire.clear()
            return
        there.turn(frames, link)

    def http(self, address: str, method: str, target: str, body: bytes | None, refused: bool) -> bytes:
        """The body of a 200, as BootstrapClient.call has it."""
        server = self.servers.get(address)
        url = f"http://{address}{target.partition('?')[0]}"
        if server is None or refused:
            raise BootstrapError(f"{url}: connection refused")
        status, text = server(method, target, body)
        if status != 200:
            raise bootstrap_client.refused(url, status, text)
        return text.encode()


class Names:
    """Stands in for the module `uuid`: names that are the same in every run."""

    def __init__(self, net: Network) -> None:
        self._net = net

    def uuid4(self) -> Any:
        class Name:
            hex = self._net.name()

        return Name


def _same_thread(transport: object, *_: object) -> object:
    """Stands in for the transfer workers: the simulated transport is asynchronous by itself."""
    return transport


@contextmanager
def simulated(net: Network) -> Iterator[None]:
    """Every module of the engine sees the network's clock, sockets and HTTP instead of the machine's."""
    saved: list[tuple[object, str, object]] = []

    def put(owner: Any, name: str, value: object) -> None:
        if hasattr(owner, name):
            saved.append((owner, name, getattr(owner, name)))
            setattr(owner, name, value)

    for name, module in list(sys.modules.items()):
        if name.startswith("pdctl.engine.") and getattr(module, "time", None) is time:
            put(module, "time", net.clock)
    put(kv_manager, "KvLoop", net.loop)
    put(prefill_manager, "Workers", _same_thread)
    put(sys.modules["pdctl.engine.decode.rank_connection"], "uuid", Names(net))
    put(prefill_manager, "uuid", Names(net))
    try:
        yield
    finally:
        for owner, name, value in reversed(saved):
            setattr(owner, name, value)
