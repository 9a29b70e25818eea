"""The login side of a run: its directory on the shared file system, the job, and what the queue says of it."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl.errors import LaunchError, NotReadyError
from pdctl.launch import verdict
from pdctl.launch.events import Event, Kind
from pdctl.launch.run import Allocation, Outcome, Run, State
from pdctl.launch.slurm import queue
from pdctl.user_path import expanded

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.launch.state import RunDir
    from pdctl.topology.model import Topology

RUNS = "pdctl-runs"  # in the working directory, where no other place was given
POLL = 1.0  # seconds between two questions to the queue
SCRIPT = "job.sh"


def folder(topology: Topology, name: str) -> Path:
    """Where the run's directory is: seen by the login host and by every host of the job."""
    given = topology.targets.slurm.get("shared-dir")
    return (expanded(str(given)) if given else Path(RUNS)).absolute() / name


def link(registered: Path, real: Path) -> None:
    """The registry of this user's runs knows it by a link. Raises LaunchError where a local run is in the way."""
    if registered.is_dir() and not registered.is_symlink():
        message = f"{registered} holds an earlier run of this machine"
        raise LaunchError(message, f"choose another --name, or remove it: rm -r {registered}")
    try:
        real.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        fix = "--set targets.slurm.shared-dir=DIR, a directory that every host of the cluster sees"
        raise LaunchError(f"{real} cannot be written: {error.strerror}", fix) from None
    registered.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = registered.with_name(f".{registered.name}.{os.getpid()}")
    draft.symlink_to(real)
    draft.replace(registered)


def submit(directory: RunDir, run: Run, patience: float) -> Run:
    """Hand in the scripts that lie in the directory. The jobs are released once their numbers are written down."""
    jobs: list[str] = []
    try:
        for script in (SCRIPT, *holders(directory)):
            jobs.append(_hand_in(directory.path.resolve() / script, jobs[:1]))
    except LaunchError as error:
        for job in jobs:
            queue.cancel(job)
        outcome = Outcome(error.message, code=1, fix=error.fix)
        directory.save(dataclasses.replace(run, state=State.FAILED, outcome=outcome))
        raise
    given = Allocation("slurm", jobs[0], others=tuple(jobs[1:]), patience=patience)
    run = dataclasses.replace(run, state=State.PENDING, allocation=given)
    directory.save(run)
    for job in jobs:
        released = queue.ask("scontrol", "release", job)
        if not released.ok:
            cancel(given)
            raise LaunchError(f"job {job} was submitted, but cannot be released: {released.error}")
    return run


def holders(directory: RunDir) -> tuple[str, ...]:
    """The scripts of the jobs beside the supervisor's, in the order of their hosts."""
    return tuple(path.name for path in sorted(directory.path.glob("hold-*.sh")))


def _hand_in(script: Path, arguments: list[str]) -> str:
    answer = queue.ask("sbatch", "--hold", "--parsable", str(script), *arguments)
    if answer.ok:
        return answer.output.strip().partition(";")[0]
    said = answer.error.removeprefix("sbatch: ").removeprefix("error: ")
    fix = f"the script is {script}; what it asks for stands in targets.slurm of the topology"
    raise LaunchError(f"sbatch refused the job: {said}", fix)


def cancel(given: Allocation) -> None:
    for job in given.jobs:
        queue.cancel(job)


def await_start(given: Allocation, patience: float, emit: Callable[[Event], None]) -> None:
    """Until every part runs. Raises NotReadyError with the queue's reason; everything is cancelled then."""
    deadline = time.monotonic() + patience
    said = ""
    while time.monotonic() < deadline:
        parts = [part for job in given.jobs for part in queue.components(job) or (queue.Job(job),)]
        gone = [part for part in parts if not part.state]
        if gone:
            job = gone[0].id
            cancel(given)
            raise LaunchError(f"job {job} is gone from the queue before it started", f"scontrol show job {job}")
        pending = [part for part in parts if part.pending]
        if not pending:
            return
        reason = f"job {pending[0].id} waits: {why(pending[0])}"
        if reason != said:
            said = reason
            emit(Event(time.time(), Kind.QUEUED, detail=reason))
        time.sleep(POLL)
    cancel(given)
    job, _, reason = said.partition(" waits: ")
    message = f"{job} did not start within {verdict.span(patience)}: {reason or 'the queue said nothing'}"
    raise NotReadyError(message, "--queue-timeout waits longer; squeue --start tells when Slurm expects to start it")


def why(part: queue.Job) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(part.starts_at)) if part.starts_at else ""
    reason = "Slurm has not looked at it yet" if part.reason in ("", "None") else part.reason
    return f"{reason}{f', expected to start at {when}' if when else ''}"


def gone(run: Run) -> Outcome:
    """What became of a job that ended without its supervisor's word."""
    assert run.allocation is not None
    job = queue.leader(run.allocation.job)
    state = f"{job.state}{f' ({job.reason})' if job.reason not in ('', 'None') else ''}" if job.state else "gone"
    down = {node.name: node for node in queue.nodes(",".join(seat.node for seat in run.allocation.seats)) if node.down}
    there = [spec for spec in run.deployment.specs if spec.place in down]
    hit = [f"{spec.name} on {spec.place} ({down[spec.place].state})" for spec in there]
    lost = f"; lost with their hosts: {', '.join(hit)}" if hit else ""
    return Outcome(f"job {run.allocation.job} is {state}{lost}", code=1, fix=f"scontrol show job {run.allocation.job}")
