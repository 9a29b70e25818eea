"""The seam between `pdctl launch` and the places it launches to: what is ordered, what a target does, what is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdctl.launch.clusters import Cluster
    from pdctl.launch.deployment import Deployment, OnDeath
    from pdctl.launch.kubectl import ClusterPod
    from pdctl.launch.run import Run, RunEvent, RunOutcome
    from pdctl.launch.state import RunDir
    from pdctl.layout.instance_plan import Plan
    from pdctl.layout.shape import Caution
    from pdctl.topology.model import Topology


class LaunchOrder(NamedTuple):
    """What is to be launched, and how. Times in seconds; None: as the topology says.

    `text` is the topology resolved, as a file; `files`, `sets` and `argv` are what it was asked for with. `patience` is
    how long a job may wait in a queue.
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
    """What a launch would do: commands with the batch scripts and steps around them, or manifests."""

    deployment: Deployment | None = None
    scripts: Mapping[str, str] = {}  # by file name
    steps: Sequence[tuple[str, Sequence[str]]] = ()  # (instance, the words that start it)
    manifests: str = ""


class Display(Protocol):
    """Whom a launch tells how it goes (render/foreground.py)."""

    def opened(self, directory: RunDir, run: Run, where: str = "") -> None:
        """The run is written down. `where`: what is asked for, while the address is not known yet."""

    def event(self, event: RunEvent) -> None: ...
    def serving(self, run: Run) -> None:
        """It serves, and goes on by itself."""

    def say(self, sentence: str) -> None: ...
    def waiting(self, missing: Sequence[str]) -> None:
        """What a cluster's deployment still lacks, whenever that changes."""

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
        """It fails on purpose, so that doctor need not say so."""

    def dry_run(self) -> DryRun: ...
    def launch(self, display: Display) -> RunOutcome | None:
        """Start it and wait until it serves; attached, until it is over: how it ended. None: it goes on by itself.

        Raises LaunchError and NotReadyError. A KeyboardInterrupt is passed on once what it interrupts is ended.
        """
