"""A run as values: what run.json holds (schema pdctl.run/1)."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from enum import Enum

from pdctl.launch import procfs
from pdctl.launch.deployment import Deployment, Options  # noqa: TC001 - record.decode evaluates the annotations
from pdctl.launch.events import Event  # noqa: TC001

SCHEMA = "pdctl.run/1"
BIRTH = 10.0  # seconds


class State(str, Enum):
    STARTING = "starting"
    SERVING = "serving"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    STALE = "stale"  # never written: what run.json says runs, but its supervisor is gone


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: by `signal` (0: none) or with `code`."""

    code: int
    signal: int
    at: float


@dataclass(frozen=True, slots=True)
class Process:
    """One instance's process. `started` is its identity (procfs.identity), `log_start` where this run's log begins."""

    name: str
    pid: int | None = None
    started: str = ""
    since: float = 0.0
    generation: int = 0
    log_start: int = 0
    generation_start: int = 0
    exit: Exit | None = None


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

    @property
    def alive(self) -> bool:
        """Its supervisor lives, or is about to: a detached one writes itself down when it has started."""
        if self.supervisor is None:
            return self.state is State.STARTING and time.time() - self.created < BIRTH
        return procfs.is_alive(self.supervisor, self.supervisor_started)

    @property
    def condition(self) -> State:
        """What the file says, unless nobody is left to keep it true."""
        over = self.state in (State.STOPPED, State.FAILED)
        return self.state if over or self.alive else State.STALE

    @property
    def survivors(self) -> tuple[Process, ...]:
        """Processes of this run that still live."""
        return tuple(process for process in self.processes if procfs.is_alive(process.pid, process.started))

    def process(self, name: str) -> Process:
        return next(process for process in self.processes if process.name == name)


def with_process(run: Run, process: Process) -> Run:
    """`run` with the entry of that name replaced."""
    entries = tuple(process if entry.name == process.name else entry for entry in run.processes)
    return dataclasses.replace(run, processes=entries)
