"""Where a deployment runs. `Target` is what such a place must offer; the supervisor knows nothing else of it.

Not here, because it is the same everywhere: the order of starting, readiness, restarts with their back-off, the
router's list, all arithmetic of ranks and ports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pdctl.launch.deployment import Deployment, Spec
    from pdctl.launch.mailbox import Exited
    from pdctl.launch.run import Exit


@dataclass(frozen=True, slots=True)
class Capabilities:
    multi_host: bool
    gang: bool  # all hosts of an allocation or none
    restart_in_place: bool
    real_addresses: bool  # an instance can be reached under its host's own address
    lifetime_limit: bool
    needs_shared_dir: bool


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a deployment cannot start here. `fix` is one command or edit; `missing_extra`: a part is not installed."""

    code: str
    message: str
    fix: str = ""
    missing_extra: bool = False


class Handle(Protocol):
    """One started process."""

    @property
    def spec(self) -> Spec: ...
    @property
    def generation(self) -> int: ...
    @property
    def pid(self) -> int: ...
    @property
    def started(self) -> str: ...
    @property
    def since(self) -> float: ...
    @property
    def log_start(self) -> int: ...
    @property
    def exit(self) -> Exit | None: ...
    def terminate(self) -> None:
        """Ask it to finish what it has and leave."""

    def kill(self) -> None:
        """End it and everything it started, now."""


class Target(Protocol):
    name: str
    capabilities: Capabilities

    def check(self, deployment: Deployment) -> tuple[Obstacle, ...]:
        """Everything that would keep it from starting, found without side effects."""

    def start(self, spec: Spec, generation: int, log: Path, post: Callable[[Exited], None]) -> Handle:
        """Start one process; its end is posted once. Raises LaunchError."""

    def sweep(self) -> tuple[int, ...]:
        """End whatever the started processes left behind; the ids of those that could not be ended."""

    def busy_ports(self, deployment: Deployment) -> tuple[int, ...]:
        """Ports of the deployment that are still taken."""
