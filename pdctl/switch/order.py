"""What is asked for, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdctl.deployment_secret import DeploymentSecret
    from pdctl.fleet.facts import Endpoint

PREFILL, DECODE = "prefill", "decode"
ROLES = (PREFILL, DECODE)


def other(role: str) -> str:
    return DECODE if role == PREFILL else PREFILL


@dataclass(frozen=True, slots=True)
class Order:
    """`url` shall become a `to`. Every one of `routers` is told. `known`: engines whose names a run knows.

    Times in seconds: `drain` until it holds nothing, `turn` for its own switch, `canary` until every peer was served,
    None: as long as that may take (steps.canary_seconds).
    `min_ready`: how many ready instances its old role must keep. `graph_memory`: GB for a decode's CUDA graphs.
    """

    name: str
    url: str
    to: str
    routers: tuple[str, ...] = ()
    known: tuple[Endpoint, ...] = ()
    bootstrap_port: int | None = None
    graph_memory: float | None = None
    min_ready: int = 1
    drain: float = 330.0  # above the 300 s that a room without its other side may wait (sglang)
    turn: float = 180.0
    canary: float | None = None
    key: str = ""
    secret: DeploymentSecret | None = field(default=None, repr=False)


class Step(str, Enum):
    """In the order in which they are taken."""

    READ = "read"
    REMOVE = "remove"
    DRAIN = "drain"
    SWITCH = "switch"
    VERIFY = "verify"
    CANARY = "canary"
    ADD = "add"
    RESTORE = "restore"


@dataclass(frozen=True, slots=True)
class Note:
    """A step that was taken, or what it waits for (`seconds` None)."""

    step: Step
    words: str
    seconds: float | None = None


class Standing(str, Enum):
    """Where the instance is left."""

    AS_BEFORE = "as before"
    SWITCHED = "switched"
    OUT = "in no router"  # it serves nobody until somebody acts


@dataclass(frozen=True, slots=True)
class Result:
    """`problem` is empty when all went well; `fix` is what to do about it. `durations`: seconds by step."""

    name: str
    url: str
    old_role: str
    new_role: str
    standing: Standing
    problem: str = ""
    fix: str = ""
    bootstrap_port: int | None = None
    ranks: int = 0
    durations: tuple[tuple[str, float], ...] = ()
