"""What the supervisor is told, one message at a time: everything that watches runs elsewhere and only posts here."""

from __future__ import annotations

from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Union

if TYPE_CHECKING:
    from pdctl.launch.events import Stage
    from pdctl.launch.run import Exit


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
    stage: Stage | None
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
    """A thread of the supervisor's process ended on an error that nobody foresaw."""

    thread: str
    reason: str


@dataclass(frozen=True, slots=True)
class Interrupt:
    number: int


# A union of `|` would be evaluated at run time, which Python 3.10 cannot.
Message = Union[Exited, Reached, Paired, Interrupt, Located, Told, ThreadEnded]  # noqa: UP007
# SimpleQueue.put may be called from a signal handler that interrupted a get (documented as reentrant).
Mailbox = SimpleQueue[Message]
