"""A run as doctor asks about it: addresses, logs, processes on this machine, and how those that are over ended."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pdctl.fleet.observations import Ended, Endpoint
from pdctl.launch import ending_reasons, procfs
from pdctl.launch.log_tail import parts
from pdctl.launch.storage import storage_trouble
from pdctl.layout.planner import plan_topology
from pdctl.topology import resolve

if TYPE_CHECKING:
    from pdctl.launch.run import Run
    from pdctl.launch.state import RunDir
    from pdctl.layout.instance_plan import Plan
    from pdctl.topology.model import Topology


def is_over(run: Run) -> bool:
    """Whether it failed and nobody of it is left to ask."""
    return run.state.value == "failed" and not run.survivors


def planned(run: Run, directory: RunDir) -> tuple[Topology, Plan] | None:
    """The topology it came from, and the plan on the hosts it was given; None where it came from no topology."""
    kept = directory.path / "topology.yaml"
    if not kept.exists():
        return None
    topology = resolve.load([kept])
    if run.allocation is None or not run.allocation.seats:
        return topology, plan_topology(topology)
    from pdctl.launch.slurm import host_placement  # late: a run of this machine asks no cluster

    return topology, host_placement.plan_on_allocation(topology, run.allocation.seats)


def as_running(topology: Topology, run: Run) -> Topology:
    """With the instances of each role as they are now: some may have taken the other role since."""
    prefills, decodes = len(run.deployment.prefills), len(run.deployment.decodes)
    return topology._replace(
        prefill=topology.prefill._replace(instances=prefills), decode=topology.decode._replace(instances=decodes)
    )


def endpoints(run: Run) -> tuple[Endpoint, ...]:
    return tuple(
        Endpoint(spec.name, spec.role.value, spec.url, spec.bootstrap_port, spec.ranks or None)
        for spec in run.deployment.servers
    )


def logs(run: Run, directory: RunDir) -> dict[str, str]:
    """Path → instance of every log there is, rotated parts included."""
    files = {str(path): each.name for each in run.processes for path in parts(directory.log(each.name))}
    return {path: name for path, name in files.items() if os.path.exists(path)}  # noqa: PTH110


def folders(directory: RunDir) -> dict[str, str]:
    """Where it writes: the run's folder, and that of its logs with the words of storage_trouble."""
    return {str(directory.path): "", str(directory.logs.resolve()): storage_trouble(directory.path, directory.logs)}


def own(run: Run) -> dict[int, str]:
    """Pid → instance for every process of the run on this machine, with all that it started."""
    if run.allocation is not None:
        return {}
    alive = {one.pid: one.name for one in run.survivors if one.pid is not None}
    return {**{below: name for pid, name in alive.items() for below in procfs.descendants(pid)}, **alive}


def ended(run: Run, directory: RunDir) -> tuple[Ended, ...]:
    return tuple(
        Ended(
            instance=one.name,
            words=ending_reasons.in_words(one.exit),
            at=one.exit.at,
            ours=one.exit.ours or one.exit.asked,
            log=str(directory.current_log(one.name)),
            lines=(lines := ending_reasons.reasons(directory, one, ending_reasons.TAIL)),
            untold="" if lines else ending_reasons.no_last_lines(directory, one, one.exit),
        )
        for one in run.processes
        if one.exit is not None
    )
