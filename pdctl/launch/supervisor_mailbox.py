"""What the supervisor is told, one message at a time: everything that watches, signals too, only posts here."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Union

if TYPE_CHECKING:
    from types import FrameType, TracebackType

    from pdctl.launch.run import Exit, StartStage

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

    `hopeless`: it will not come however long one waits.
    """

    name: str
    generation: int
    stage: StartStage | None
    detail: str
    at: float
    hopeless: bool = False


@dataclass(frozen=True, slots=True)
class Located:
    """A process on another host told its number there."""

    name: str
    generation: int
    pid: int


@dataclass(frozen=True, slots=True)
class Told:
    """The router knows an instance's new address; `problem` is empty when it does."""

    name: str
    generation: int
    problem: str


@dataclass(frozen=True, slots=True)
class Paired:
    """One verification request came back; `problem` is empty when the pair works."""

    prefill: str
    decode: str
    problem: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ThreadEnded:
    """A thread of the supervisor's process ended on an error that nobody foresaw, or at a limit of this machine."""

    thread: str
    error: BaseException


@dataclass(frozen=True, slots=True)
class Interrupt:
    number: int


# A union of `|` would be evaluated at run time, which Python 3.10 cannot.
Message = Union[Exited, Reached, Paired, Interrupt, Located, Told, ThreadEnded]  # noqa: UP007
# SimpleQueue.put may be called from a signal handler that interrupted a get (documented as reentrant).
Mailbox = SimpleQueue[Message]


class Signals:
    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Signals:
        for number in CAUGHT:
            # `nohup` ignores SIGHUP on purpose; that stays so. A shell without job control ignores SIGINT for all that
            # it starts with `&`: a `kill -INT` of ours is meant all the same.
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
