"""What happened in a run, in order: written to the run directory, shown by whichever view watches."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Stage(str, Enum):
    """The causal list of an instance's readiness. Engines differ in the order of the middle ones."""

    STARTED = "started"
    BOUND = "bound"
    WEIGHTS = "weights"
    REGISTERED = "registered"
    WORKERS = "workers"
    READY = "ready"


class Kind(str, Enum):
    SECRET = "secret"  # which processes know the deployment secret
    STAGE = "stage"  # `stage` of `subject` reached
    PAIR = "pair"  # a prefill and decode pair answered a real request
    SERVING = "serving"
    DIED = "died"
    RESTARTING = "restarting"
    QUEUED = "queued"  # a cluster tells what it waits for
    ROUTED = "routed"  # the router was told of an instance that moved
    STORAGE = "storage"  # logs begin to be lost, or no longer are
    LIMIT = "limit"  # the allocation ends soon
    STOPPING = "stopping"
    STOPPED = "stopped"  # one process left as asked
    KILLED = "killed"  # one process had to be killed
    ENDED = "ended"  # the run is over


@dataclass(frozen=True, slots=True)
class Event:
    """`at` in seconds since the epoch; `seconds` is how long what is reported took, where that means something."""

    at: float
    kind: Kind
    subject: str = ""
    stage: Stage | None = None
    detail: str = ""
    seconds: float = 0.0
    generation: int = 1
