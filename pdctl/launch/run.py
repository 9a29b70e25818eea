"""A run as values: what run.json holds (schema pdctl.run/1)."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass, field
from enum import Enum

from pdctl.launch import procfs
from pdctl.launch.deployment import Deployment, Options  # noqa: TC001 - record.decode evaluates the annotations
from pdctl.launch.events import Event  # noqa: TC001
from pdctl.launch.record import UNWRITTEN

SCHEMA = "pdctl.run/1"
BIRTH = 10.0  # seconds
# With what an Outcome's sentence goes on where it names the log of the process that died.
MAY_TELL, NO_LINE = "What may tell why, in", "No line of"


class State(str, Enum):
    PENDING = "pending"  # a cluster has it in its queue
    STARTING = "starting"
    SERVING = "serving"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    STALE = "stale"  # never written: what run.json says runs, but its supervisor is gone


OVER = (State.STOPPED, State.FAILED, State.STALE)


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: by `signal` (0: none) or with `code`. `ours`: pdctl had killed it.

    `lost`: nobody can tell, and why. `asked`: it had been told to leave.
    """

    code: int
    signal: int
    at: float
    ours: bool = False
    lost: str = ""
    asked: bool = False


@dataclass(frozen=True, slots=True)
class Process:
    """One instance's process. `started` is its identity (procfs.identity), `log_start` where this run's log begins.

    `place` is the host it runs on; empty: this machine, and only then is `pid` a process here.
    """

    name: str
    pid: int | None = None
    started: str = ""
    since: float = 0.0
    generation: int = 0
    log_start: int = 0
    generation_start: int = 0
    exit: Exit | None = None
    place: str = ""


@dataclass(frozen=True, slots=True)
class Seat:
    """One host of an allocation: the plan's name for it, the cluster's, and the address the others reach it at."""

    planned: str
    node: str
    address: str
    component: int = 0  # of a heterogeneous job


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a cluster gave a run. `seats` are empty until it did; `ends_at` in seconds since the epoch, 0: no limit.

    `others` are the jobs beside the supervisor's own, each with the hosts of its instances; `patience` is how long all
    of them may wait in the queue, in seconds.
    """

    target: str
    job: str
    seats: tuple[Seat, ...] = ()
    ends_at: float = 0.0
    others: tuple[str, ...] = ()
    patience: float = 3600.0

    @property
    def jobs(self) -> tuple[str, ...]:
        return (self.job, *self.others)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Why the run ended: a signal, or an error with the exit code it stands for."""

    message: str
    code: int = 0
    signal: int = 0
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    name: str
    id: str
    created: float
    version: str
    argv: tuple[str, ...]
    cwd: str
    detached: bool
    deployment: Deployment
    options: Options
    files: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    state: State = State.STARTING
    supervisor: int | None = None
    supervisor_started: str = ""
    processes: tuple[Process, ...] = ()
    events: tuple[Event, ...] = ()
    outcome: Outcome | None = None
    allocation: Allocation | None = None
    gone: bool | None = field(default=None, compare=False, metadata=UNWRITTEN)  # its supervisor, when it was looked at

    @property
    def alive(self) -> bool:
        """Its supervisor lives, or is about to: a detached one writes itself down when it has started."""
        if self.allocation is not None:
            from pdctl.launch.slurm import queue  # late: a run of this machine asks no cluster

            return queue.alive(self.allocation.job)
        if self.supervisor is None:
            return self.state in (State.PENDING, State.STARTING) and time.time() - self.created < BIRTH
        return procfs.is_alive(self.supervisor, self.supervisor_started)

    @property
    def condition(self) -> State:
        """What the file says, unless nobody is left to keep it true."""
        if self.state in (State.STOPPED, State.FAILED):
            return self.state
        gone = not self.alive if self.gone is None else self.gone
        return State.STALE if gone else self.state

    @property
    def survivors(self) -> tuple[Process, ...]:
        """Processes of this run that still live."""
        return tuple(process for process in self.processes if procfs.is_alive(process.pid, process.started))

    def lives(self, process: Process) -> bool:
        """As far as can be told from here: on another machine its supervisor's word stands."""
        if self.allocation is None:
            return procfs.is_alive(process.pid, process.started)
        return process.generation > 0 and process.exit is None and self.condition not in OVER

    def process(self, name: str) -> Process:
        return next(process for process in self.processes if process.name == name)


def with_process(run: Run, process: Process) -> Run:
    """`run` with the entry of that name replaced."""
    entries = tuple(process if entry.name == process.name else entry for entry in run.processes)
    return dataclasses.replace(run, processes=entries)
