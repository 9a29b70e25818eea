"""What one launch starts: every command of a plan, with the addresses at which to check that it is ready."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from pdctl.loopback import bracketed

if TYPE_CHECKING:
    from collections.abc import Iterable

REHEARSE = "--rehearse"  # an option of pdctl's own engine and router


class ServerRole(str, Enum):
    PREFILL = "prefill"
    DECODE = "decode"
    ROUTER = "router"


class OnDeath(str, Enum):
    """What to restart when a process dies after it was ready; the values are those of `readiness.restart`."""

    KEEP_SERVING = "keep-serving"  # restart the dead instance while its role has another one; otherwise end the run
    NONE = "none"
    INSTANCE = "instance"  # restart the dead instance alone: its address stays, so the router takes it back by itself
    ALL = "all"

    @classmethod
    def _missing_(cls, value: object) -> OnDeath | None:
        """Accept the former values of `--on-death` and run.json."""
        return {"stop": cls.NONE, "restart": cls.INSTANCE, "restart-all": cls.ALL}.get(str(value))


@dataclass(frozen=True, slots=True)
class ServerPort:
    """A port of one server. `key` is the topology setting that moves it, for example `ports.http`."""

    port: int
    purpose: str
    key: str


@dataclass(frozen=True, slots=True)
class Spec:
    """One command to start. `ranks` is the number of ranks that must register with the bootstrap server (prefill only).

    An instance on several nodes has one command per node; `node` 0 serves HTTP.
    """

    name: str
    role: ServerRole
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    host: str
    port: int
    ports: tuple[ServerPort, ...]
    health_path: str = "/health"
    bootstrap_port: int | None = None
    ranks: int = 0
    node: int = 0
    place: str = ""  # the host, if the target has several; until hosts are allocated, the plan's name for it

    @property
    def instance(self) -> str:
        """The instance's name, shared by all its nodes: they start and end together."""
        return self.name.removesuffix(f"-node{self.node}")

    @property
    def url(self) -> str:
        return f"http://{bracketed(self.host)}:{self.port}"

    @property
    def rehearsed(self) -> tuple[str, ...]:
        """The faults this process was told to inject (docs/rehearsals.md)."""
        if REHEARSE not in self.argv:
            return ()
        words = self.argv[self.argv.index(REHEARSE) + 1 :]
        return tuple(itertools.takewhile(lambda word: not word.startswith("-"), words))


@dataclass(frozen=True, slots=True)
class Deployment:
    """All commands of a launch. `checkpoint`: "" if the engine resolves the model name. `release`: planned sglang."""

    name: str
    engine: str  # embedded or sglang
    served_name: str
    checkpoint: str
    roles: tuple[Spec, ...]
    router: Spec | None
    release: str = ""

    def moved(self, specs: Iterable[Spec]) -> Deployment:
        """A copy in which each of `specs` replaces the spec of the same name."""
        new = {spec.name: spec for spec in specs}
        roles = tuple(new.get(spec.name, spec) for spec in self.roles)
        return dataclasses.replace(self, roles=roles, router=self.router and new.get(self.router.name, self.router))

    @property
    def specs(self) -> tuple[Spec, ...]:
        return (*self.roles, self.router) if self.router else self.roles

    @property
    def rehearsal(self) -> str:
        """The faults to inject, as `router missing-bootstrap-port, decode-0 null-port-fallback`; empty if none."""
        return ", ".join(f"{spec.name} {' '.join(spec.rehearsed)}" for spec in self.specs if spec.rehearsed)

    @property
    def prefills(self) -> tuple[Spec, ...]:
        return tuple(spec for spec in self.servers if spec.role is ServerRole.PREFILL)

    @property
    def decodes(self) -> tuple[Spec, ...]:
        return tuple(spec for spec in self.servers if spec.role is ServerRole.DECODE)

    @property
    def servers(self) -> tuple[Spec, ...]:
        """Node 0 of every instance: the servers that the router and clients know."""
        return tuple(spec for spec in self.roles if not spec.node)

    @property
    def url(self) -> str:
        """The URL that clients use."""
        return (self.router or self.roles[0]).url

    @property
    def shape(self) -> str:
        """The number of instances per role: 2 prefill × 1 decode → `2P1D`."""
        return f"{len(self.prefills)}P{len(self.decodes)}D"


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """How to start and end a run. Times in seconds; `timeout` runs from the start until all pairs are verified."""

    timeout: float = 300.0
    interval: float = 1.0
    verify: bool = True
    on_death: OnDeath = OnDeath.NONE
    max_restarts: int = 3
    backoff: float = 1.0
    backoff_max: float = 60.0
    drain: float = 10.0  # for the router to finish the requests it has accepted
    grace: float = 15.0  # for an instance to exit after SIGTERM: longer than the engine's own shutdown grace
