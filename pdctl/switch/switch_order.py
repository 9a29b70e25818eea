"""What a role switch is asked to do and its result; one switch at a time, one line of record for each."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from pdctl.errors import PdctlError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pdctl.deployment_secret import DeploymentSecret
    from pdctl.fleet.observations import Endpoint

PREFILL, DECODE = "prefill", "decode"
ROLES = (PREFILL, DECODE)
SCHEMA = "pdctl.role-switch/1"
FILE = "switches.jsonl"


def other(role: str) -> str:
    return DECODE if role == PREFILL else PREFILL


@dataclass(frozen=True, slots=True)
class SwitchOrder:
    """Make the instance at `url` a `to`, and update all `routers`. `known`: engines whose names a run knows.

    Times in seconds: `drain` until it holds nothing, `turn` for the switch itself, `canary` until every peer has been
    served, None: as long as that may take (perform.canary_seconds).
    `min_ready`: how many ready instances must remain in its old role. `graph_memory`: GB for a decode's CUDA graphs.
    """

    name: str
    url: str
    to: str
    routers: tuple[str, ...] = ()
    known: tuple[Endpoint, ...] = ()
    bootstrap_port: int | None = None
    graph_memory: float | None = None
    min_ready: int = 1
    drain: float = 330.0  # above the 300 s for which a room may wait for its other side (sglang)
    turn: float = 180.0
    canary: float | None = None
    key: str = ""
    secret: DeploymentSecret | None = field(default=None, repr=False)


class SwitchStep(str, Enum):
    """The steps, in the order in which they are taken."""

    READ = "read"
    REMOVE = "remove"
    DRAIN = "drain"
    SWITCH = "switch"
    VERIFY = "verify"
    CANARY = "canary"
    ADD = "add"
    RESTORE = "restore"


@dataclass(frozen=True, slots=True)
class StepNote:
    """A step that was taken, or what it waits for (`seconds` None)."""

    step: SwitchStep
    words: str
    seconds: float | None = None


class Standing(str, Enum):
    """The state in which the instance is left."""

    AS_BEFORE = "as before"
    SWITCHED = "switched"
    OUT = "in no router"  # it serves no requests until someone acts


@dataclass(frozen=True, slots=True)
class Result:
    """`problem`: "" if all went well; `fix`: what to do about it. `durations`: seconds by step."""

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


@contextmanager
def lease(directory: Path, urls: Iterable[str]) -> Iterator[None]:
    """Hold a lock on every router and instance of `urls`. Raise PdctlError naming the process that holds one."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    with ExitStack() as stack:
        for url in sorted(set(urls)):
            stack.enter_context(_lock_of_instance(directory, url))
        yield


@contextmanager
def _lock_of_instance(directory: Path, url: str) -> Iterator[None]:
    file = directory / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}.lock"
    handle = os.open(file, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(handle, 100).decode(errors="replace").strip()
            raise PdctlError(
                f"another role switch at {url} is under way{f' ({holder})' if holder else ''}",
                "wait until it has ended",
            ) from None
        os.ftruncate(handle, 0)
        os.write(handle, f"pid {os.getpid()}".encode())
        yield
    finally:
        os.close(handle)


def document(order: SwitchOrder, result: Result) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "at": round(time.time(), 3),
        "instance": result.name,
        "url": result.url,
        "routers": list(order.routers),
        "from": result.old_role,
        "to": result.new_role,
        "standing": result.standing.value,
        "problem": result.problem,
        "fix": result.fix,
        "bootstrap_port": result.bootstrap_port,
        "seconds": {step: round(seconds, 3) for step, seconds in result.durations},
    }


def append(directory: Path, order: SwitchOrder, result: Result) -> None:
    with (directory / FILE).open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(document(order, result)) + "\n")
