"""The interface that runs a run's processes, and the supervisor's mailbox: every watcher only posts messages to it."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Protocol, Union

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import FrameType, TracebackType

    from pdctl.launch.deployment import Deployment, Spec
    from pdctl.launch.run_record import Exit, StartStage


CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Exited:
    """A process ended; its whole group has been killed and it has been reaped."""

    name: str
    generation: int
    exit: Exit


@dataclass(frozen=True, slots=True)
class Reached:
    """A process reached a stage, or (`stage` None) what it is waiting for has changed to `detail`.

    `hopeless`: waiting longer will not help.
    """

    name: str
    generation: int
    stage: StartStage | None
    detail: str
    at: float
    hopeless: bool = False


@dataclass(frozen=True, slots=True)
class Located:
    """A process on another host reported its pid there."""

    name: str
    generation: int
    pid: int


@dataclass(frozen=True, slots=True)
class Told:
    """The router was told an instance's new address; `problem` is empty if the router now lists it as healthy."""

    name: str
    generation: int
    problem: str


@dataclass(frozen=True, slots=True)
class Paired:
    """One verification request came back after `seconds`; `problem` is empty if the pair works."""

    prefill: str
    decode: str
    problem: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ThreadEnded:
    """A thread of the supervisor ended with an unexpected error, or at a limit of this machine."""

    thread: str
    error: BaseException


@dataclass(frozen=True, slots=True)
class Interrupt:
    number: int


# A union written with `|` would be evaluated at run time, which fails in Python 3.10.
Message = Union[Exited, Reached, Paired, Interrupt, Located, Told, ThreadEnded]  # noqa: UP007


class SupervisorMailbox:
    """The supervisor's message queue and clock. Only the supervisor receives; everybody else only puts."""

    def __init__(self) -> None:
        # SimpleQueue.put may be called from a signal handler that interrupted a get (documented as reentrant).
        self._messages: SimpleQueue[Message] = SimpleQueue()

    def put(self, message: Message) -> None:
        self._messages.put(message)

    def now(self) -> float:
        """Seconds on a monotonic clock with an arbitrary start."""
        return time.monotonic()

    def receive(self, until: float) -> Message | None:
        """The next message; None if none arrives before `until` (on the clock of `now`)."""
        try:
            return self._messages.get(timeout=max(0.0, until - self.now()))
        except Empty:
            return None


class Signals:
    def __init__(self, mailbox: SupervisorMailbox) -> None:
        self._mailbox = mailbox
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Signals:
        for number in CAUGHT:
            # `nohup` ignores SIGHUP on purpose, so that stays ignored. A shell without job control makes everything it
            # starts with `&` ignore SIGINT; a `kill -INT` sent to us must work nevertheless.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._caught)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _caught(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._mailbox.put(Interrupt(number))


class Runtime(Protocol):
    ends_at: float  # when the allocation ends, in seconds since the epoch; 0: never
    moves_ports: bool  # whether a new generation gets other ports and files, because a lost one may still be running

    def moved(self, specs: tuple[Spec, ...], generation: int) -> tuple[Spec, ...]:
        """The commands of one instance for this generation, with other ports if the runtime moves them."""

    def start(
        self, specs: tuple[Spec, ...], generation: int, logs: Sequence[Path], post: Callable[[Exited | Located], None]
    ) -> tuple[Handle, ...]:
        """Start all nodes of one instance; post the end of each exactly once. Raise LaunchError if it cannot start."""

    def beyond_help(self, specs: tuple[Spec, ...]) -> str:
        """Why this instance cannot be started again; empty if it can."""

    def sweep(self) -> tuple[str, ...]:
        """End whatever the started processes left behind; return what could not be ended, in words."""

    def busy_ports(self, deployment: Deployment) -> tuple[int, ...]:
        """The ports of the deployment that are still taken."""


class Handle(Protocol):
    """One started process. `pid` is 0 until it is known; `words` says where the process runs."""

    @property
    def spec(self) -> Spec: ...
    @property
    def generation(self) -> int: ...
    @property
    def pid(self) -> int: ...
    @property
    def words(self) -> str: ...
    @property
    def started(self) -> str: ...
    @property
    def since(self) -> float: ...
    @property
    def log_start(self) -> int: ...
    @property
    def exit(self) -> Exit | None: ...
    def terminate(self) -> None:
        """Ask it to finish its requests and exit."""

    def kill(self) -> None:
        """Kill it and everything it started, now."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a deployment cannot start here. `fix`: one command or edit; `missing_extra`: a package is not installed."""

    code: str
    message: str
    fix: str = ""
    missing_extra: bool = False
