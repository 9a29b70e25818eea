"""`python -m pdctl.launch.slurm RUN_DIRECTORY`: the supervisor of a run, as the script of its batch job."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl.errors import PdctlError
from pdctl.launch import deployment_plan
from pdctl.launch.run_directory import RunDir
from pdctl.launch.run_record import RunOutcome, State
from pdctl.launch.slurm import host_placement
from pdctl.launch.supervisor import Supervisor
from pdctl.launch.targets.slurm import SlurmRuntime
from pdctl.topology import resolve

if TYPE_CHECKING:
    from pdctl.launch.run_record import Run
    from pdctl.topology.model import Topology


def main(argv: list[str]) -> int:
    directory = RunDir(Path(argv[0]))
    run = directory.load()
    try:
        topology = resolve.load([directory.path / "topology.yaml"])
        run, target = _seated(run, topology, directory)
    except PdctlError as error:
        outcome = RunOutcome(error.message, code=int(error.exit_code), fix=error.fix)
        directory.save_end(dataclasses.replace(run, state=State.FAILED, outcome=outcome))
        return int(error.exit_code)
    outcome = Supervisor(directory, run, target, lambda event: None).run()
    return outcome.code or 128 + outcome.signal


def _seated(run: Run, topology: Topology, directory: RunDir) -> tuple[Run, SlurmRuntime]:
    """The run with the hosts of this job, and the runtime that starts its steps on them."""
    wanted = host_placement.components(topology, host_placement.planned(topology))
    assert run.allocation is not None
    allocation = host_placement.allocation(wanted, run.allocation, host_placement.interfaces(topology), os.environ)
    plan = host_placement.plan_on_allocation(topology, allocation.seats)
    deployment = deployment_plan.deployment(topology, plan)
    run = dataclasses.replace(run, deployment=deployment, allocation=allocation, state=State.STARTING)
    return run, SlurmRuntime(run.name, directory, topology, plan, allocation)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
