"""The record of a run: the content of run.json (schema pdctl.run/1), its events, and how it becomes JSON and back."""

from __future__ import annotations

import dataclasses
import time
import types
import typing
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import TypeVar, cast

from pdctl.launch import procfs
from pdctl.launch.deployment import (
    Deployment,  # noqa: TC001 - record.decode evaluates the annotations
    LaunchOptions,  # noqa: TC001 - record.decode evaluates the annotations
)

T = TypeVar("T")
UNWRITTEN = types.MappingProxyType({"written": False})  # metadata of a field that stays out of the JSON
SCHEMA = "pdctl.run/1"
LARGEST = 64 << 20  # bytes of a record; that of a run of 1,000 processes with 10,000 events has 3 MiB
# Fields of one word that the verbs print, and that name files.
PRINTED = frozenset(("name", "host", "place", "subject", "job", "node", "planned", "address", "target", "served_name"))
BIRTH = 10.0  # seconds
GONE = "its supervisor was gone"  # in the outcome's message of a run whose end another process recorded
# How an outcome's message continues where it names the log of the process that died.
MAY_TELL, NO_LINE = "What may tell why, in", "No line of"


def encode(value: object) -> object:
    """Dataclasses to dicts, tuples to lists, enums to their values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        written = [field for field in dataclasses.fields(value) if field.metadata.get("written", True)]
        return {field.name: encode(getattr(value, field.name)) for field in written}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    return value


def decode(kind: type[T], value: object) -> T:
    """`value` (from json.loads) as a `kind`. Raise ValueError naming the field that does not fit."""
    return cast("T", _decode(kind, value, kind.__name__))


def _decode(kind: object, value: object, where: str) -> object:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _dataclass(kind, value, where)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        inner = next(argument for argument in arguments if argument is not type(None))
        return _decode(inner, value, where)
    if origin is tuple:
        return _tuple(arguments, value, where)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if kind is float and isinstance(value, int):
        return float(value)
    if not isinstance(kind, type) or not isinstance(value, kind):
        raise ValueError(f"{where}: expected {getattr(kind, '__name__', kind)}, found {value!r:.60}")
    return value


def _dataclass(kind: type, value: object, where: str) -> object:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected an object, found {value!r:.60}")
    known = {name: hint for name, hint in _fields(kind).items() if name in value}
    for name in PRINTED & known.keys():
        _check_printable(value[name], f"{where}.{name}")
    try:
        return kind(**{name: _decode(hint, value[name], f"{where}.{name}") for name, hint in known.items()})
    except TypeError as error:  # a field without a default is missing
        raise ValueError(f"{where}: {error}") from None


def _check_printable(value: object, where: str) -> None:
    """Refuse a record that would control the terminal or forge lines there, or name a file of another directory."""
    if isinstance(value, str) and not value.isprintable():
        raise ValueError(f"{where}: expected printable text, found {value!r:.60}")
    if isinstance(value, str) and "/" in value and where.endswith(".name"):
        raise ValueError(f"{where}: expected a name, found {value!r:.60}")


@lru_cache
def _fields(kind: type) -> dict[str, object]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _tuple(arguments: tuple[object, ...], value: object, where: str) -> tuple[object, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{where}: expected a list, found {value!r:.60}")
    if arguments[-1] is Ellipsis:
        return tuple(_decode(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    pairs = zip(arguments, value, strict=True)
    return tuple(_decode(kind, item, f"{where}[{index}]") for index, (kind, item) in enumerate(pairs))


class StartStage(str, Enum):
    """The stages of an instance's start. Engines differ in the order of the middle ones."""

    STARTED = "started"
    BOUND = "bound"
    WEIGHTS = "weights"
    REGISTERED = "registered"
    WORKERS = "workers"
    READY = "ready"


class EventKind(str, Enum):
    SECRET = "secret"  # which processes know the deployment secret
    STAGE = "stage"  # `stage` of `subject` reached
    PAIR = "pair"  # a prefill and decode pair answered a real request
    SERVING = "serving"
    DIED = "died"
    RESTARTING = "restarting"
    QUEUED = "queued"  # the cluster's queue says what the job waits for
    ROUTED = "routed"  # the router was told of an instance that moved
    STORAGE = "storage"  # logs began to be lost, or no longer are
    LIMIT = "limit"  # the allocation ends soon
    STOPPING = "stopping"
    STOPPED = "stopped"  # one process exited as asked
    KILLED = "killed"  # one process had to be killed
    ENDED = "ended"  # the run is over


@dataclass(frozen=True, slots=True)
class RunEvent:
    """`at`: in seconds since the epoch. `seconds`: the duration of what is reported, or the delay before a restart."""

    at: float
    kind: EventKind
    subject: str = ""
    stage: StartStage | None = None
    detail: str = ""
    seconds: float = 0.0
    generation: int = 1


class State(str, Enum):
    PENDING = "pending"  # in the queue of a cluster
    STARTING = "starting"
    SERVING = "serving"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    STALE = "stale"  # never written: run.json says that it runs, but its supervisor is gone


OVER = (State.STOPPED, State.FAILED, State.STALE)


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: by `signal` (0: none) or with `code`. `ours`: pdctl killed it.

    `lost`: why nobody can tell how it ended, or empty. `asked`: it had been told to exit.
    """

    code: int
    signal: int
    at: float
    ours: bool = False
    lost: str = ""
    asked: bool = False


@dataclass(frozen=True, slots=True)
class Process:
    """One process of an instance. `started`: its procfs.identity; `generation_start`: byte offset of its log.

    `place`: the host it runs on; empty: this machine, and only then is `pid` a process here.
    """

    name: str
    pid: int | None = None
    started: str = ""
    since: float = 0.0
    generation: int = 0
    generation_start: int = 0
    exit: Exit | None = None
    place: str = ""


@dataclass(frozen=True, slots=True)
class RunSeat:
    """One host of an allocation: the plan's name for it, the cluster's name, and its address for the other hosts."""

    planned: str
    node: str
    address: str
    component: int = 0  # index in a heterogeneous job


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a cluster allocated to a run. `seats`: empty until then; `ends_at`: in seconds since the epoch, 0: no limit.

    `others`: the jobs beside the supervisor's own, each with the hosts of its instances; `patience`: how many seconds
    all of them may wait in the queue.
    """

    target: str
    job: str
    seats: tuple[RunSeat, ...] = ()
    ends_at: float = 0.0
    others: tuple[str, ...] = ()
    patience: float = 3600.0

    @property
    def jobs(self) -> tuple[str, ...]:
        return (self.job, *self.others)


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Why the run ended: a signal, or an error with its exit code."""

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
    options: LaunchOptions
    files: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    directory: str = ""  # where its record is, without links; empty: written by a pdctl that did not record it
    state: State = State.STARTING
    supervisor: int | None = None
    supervisor_started: str = ""
    processes: tuple[Process, ...] = ()
    events: tuple[RunEvent, ...] = ()
    outcome: RunOutcome | None = None
    allocation: Allocation | None = None
    gone: bool | None = field(default=None, compare=False, metadata=UNWRITTEN)  # set by `RunDir.look`: no supervisor

    @property
    def alive(self) -> bool:
        """Whether its supervisor lives or is just starting: a detached one records its pid once it has started."""
        if self.allocation is not None:
            from pdctl.launch.slurm import queue  # imported late: only a run on a cluster needs it

            return queue.alive(self.allocation.job)
        if self.supervisor is None:
            return self.state in (State.PENDING, State.STARTING) and time.time() - self.created < BIRTH
        return procfs.is_alive(self.supervisor, self.supervisor_started)

    @property
    def condition(self) -> State:
        """The recorded state, or STALE if the supervisor that kept it up to date is gone."""
        if self.state in (State.STOPPED, State.FAILED):
            return self.state
        gone = not self.alive if self.gone is None else self.gone
        return State.STALE if gone else self.state

    @property
    def unsupervised(self) -> bool:
        """Whether its supervisor died before it recorded an end: it is stale, or somebody has cleared it since."""
        return self.condition is State.STALE or (self.outcome is not None and GONE in self.outcome.message)

    @property
    def survivors(self) -> tuple[Process, ...]:
        """The processes of this run that still live on this machine."""
        return tuple(process for process in self.processes if procfs.is_alive(process.pid, process.started))

    def lives(self, process: Process) -> bool:
        """Whether `process` lives. For a process on another machine, this is what the supervisor recorded."""
        if self.allocation is None:
            return procfs.is_alive(process.pid, process.started)
        return process.generation > 0 and process.exit is None and self.condition not in OVER

    def process(self, name: str) -> Process:
        return next(process for process in self.processes if process.name == name)


def left_alive(run: Run) -> tuple[str, str]:
    """What lives of a run that may be another directory's, and the command that ends it; both empty: nothing does."""
    if run.allocation is not None:
        words = " ".join(("scancel", *run.allocation.jobs))
        return (f"job {run.allocation.job} is in the queue", words) if run.alive else ("", "")
    if run.supervisor is not None and run.alive:
        return f"its supervisor (pid {run.supervisor}) lives", f"kill {run.supervisor}"
    left = ", ".join(f"{process.name} (pid {process.pid})" for process in run.survivors)
    return (left and f"still alive: {left}", left and " ".join(("kill", *(str(each.pid) for each in run.survivors))))


def with_process(run: Run, process: Process) -> Run:
    """`run` with the process of the same name replaced."""
    entries = tuple(process if entry.name == process.name else entry for entry in run.processes)
    return dataclasses.replace(run, processes=entries)
