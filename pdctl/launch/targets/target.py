"""The interface between `pdctl launch` and its targets: the order, what a target does, and what is displayed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdctl.launch.clusters import Cluster
    from pdctl.launch.deployment import Deployment, OnDeath
    from pdctl.launch.kubectl import ClusterPod
    from pdctl.launch.run_directory import RunDir
    from pdctl.launch.run_record import Run, RunEvent, RunOutcome
    from pdctl.launch.runtime import Obstacle
    from pdctl.layout.instance_plan import Plan
    from pdctl.layout.shape import Caution
    from pdctl.topology.model import Topology


class LaunchOrder(NamedTuple):
    """What to launch, and how. Times in seconds; None: as the topology says.

    `text`: the resolved topology as a file's text; `files`, `sets` and `argv`: the user's own words; `patience`: how
    long a job may wait in a queue.
    """

    topology: Topology
    text: str
    files: Sequence[str]
    sets: Sequence[str]
    argv: Sequence[str]
    name: str | None = None
    detached: bool = False
    timeout: float | None = None
    on_death: OnDeath | None = None
    verify: bool = True
    patience: float = 3600.0


class DryRun(NamedTuple):
    """What a launch would do: its commands, with batch scripts and steps if there are any, or its manifests.

    lacking: what is not installed here, where a launch would start the commands here.
    """

    deployment: Deployment | None = None
    scripts: Mapping[str, str] = {}  # by file name
    steps: Sequence[tuple[str, Sequence[str]]] = ()  # (instance, the command that starts it)
    manifests: str = ""
    lacking: Sequence[Obstacle] = ()


class Display(Protocol):
    """Shows the progress of a launch (render/foreground.py)."""

    def opened(self, directory: RunDir, run: Run, where: str = "") -> None:
        """The run is recorded. `where`: the requested hosts, if the address is not known yet."""

    def event(self, event: RunEvent) -> None: ...
    def serving(self, run: Run) -> None:
        """The run serves and continues in the background."""

    def say(self, sentence: str) -> None: ...
    def waiting(self, missing: Sequence[str]) -> None:
        """A deployment on a cluster still lacks `missing`; called whenever that changes."""

    def cluster_serving(self, of: Cluster, pods: Sequence[ClusterPod]) -> None: ...


class Target(Protocol):
    """A topology, planned for one place."""

    @property
    def topology(self) -> Topology: ...
    @property
    def plan(self) -> Plan: ...
    @property
    def cautions(self) -> tuple[Caution, ...]: ...
    @property
    def rehearsal(self) -> bool:
        """Whether it injects faults on purpose, so that doctor need not report them."""

    def dry_run(self) -> DryRun: ...
    def launch(self, display: Display) -> RunOutcome | None:
        """Start it and wait until it serves or, if attached, until it is over.

        Return how it ended; None if it continues by itself. Raise LaunchError or NotReadyError. A KeyboardInterrupt is
        raised again once the interrupted launch has been ended.
        """
