"""What runs the processes of a deployment. `Runtime` is what that must offer; the supervisor knows nothing else of it.

Not here, because it is the same everywhere: the order of starting, readiness, that the nodes of an instance live and
die together, restarts with their back-off, the router's list, all arithmetic of ranks and ports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pdctl.launch.deployment import Deployment, Spec
    from pdctl.launch.run import Exit
    from pdctl.launch.supervisor_mailbox import Exited, Located


class Runtime(Protocol):
    ends_at: float  # seconds since the epoch when everything is taken away; 0: never
    moves_ports: bool  # a new generation has other ports and files: a lost one may still live somewhere

    def moved(self, specs: tuple[Spec, ...], generation: int) -> tuple[Spec, ...]:
        """One instance as this generation is started: with other ports where the runtime moves them."""

    def start(
        self, specs: tuple[Spec, ...], generation: int, logs: Sequence[Path], post: Callable[[Exited | Located], None]
    ) -> tuple[Handle, ...]:
        """Start all nodes of one instance; the end of each is posted once. Raises LaunchError."""

    def beyond_help(self, specs: tuple[Spec, ...]) -> str:
        """Why this instance cannot be started again; empty when it can."""

    def sweep(self) -> tuple[str, ...]:
        """End whatever the started processes left behind; in words, what could not be ended."""

    def busy_ports(self, deployment: Deployment) -> tuple[int, ...]:
        """Ports of the deployment that are still taken."""


class Handle(Protocol):
    """One started process. `pid` is 0 until it is known; `words` say where it is."""

    @property
    def spec(self) -> Spec: ...
    @property
    def generation(self) -> int: ...
    @property
    def pid(self) -> int: ...
    @property
    def words(self) -> str: ...
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


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a deployment cannot start here. `fix` is one command or edit; `missing_extra`: a part is not installed."""

    code: str
    message: str
    fix: str = ""
    missing_extra: bool = False
