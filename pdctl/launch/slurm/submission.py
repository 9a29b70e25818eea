"""A run as seen from the login host: its batch scripts, what would keep it from starting, its job and the queue."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl import program, user_files
from pdctl.errors import LaunchError, NotReadyError, UsageError
from pdctl.launch import ending_reasons
from pdctl.launch.run_record import Allocation, EventKind, Run, RunEvent, RunOutcome, State
from pdctl.launch.runtime import Obstacle
from pdctl.launch.slurm import host_placement, queue
from pdctl.launch.slurm.queue import minutes
from pdctl.suggestions import similar
from pdctl.user_files import expanded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pdctl.launch.deployment import Spec
    from pdctl.launch.run_directory import RunDir
    from pdctl.launch.slurm.host_placement import Component
    from pdctl.launch.slurm.queue import Partition
    from pdctl.layout.instance_plan import InstancePlan, Plan
    from pdctl.topology.model import Topology


JOB = "job.sh"  # the supervisor's script


def scripts(topology: Topology, plan: Plan, name: str, folder: Path) -> dict[str, str]:
    """File name → batch script: the supervisor's job, and those that only hold hosts."""
    parts = host_placement.components(topology, plan)
    if not host_placement.needs_several_jobs(topology):
        return {JOB: batch(topology, parts, name, folder)}
    held = {f"hold-{at:03}.sh": holder(topology, part, name, folder) for at, part in enumerate(parts[1:], 1)}
    return {JOB: batch(topology, parts[:1], name, folder), **held}


def batch(topology: Topology, components: Sequence[Component], name: str, folder: Path) -> str:
    """The batch script of the supervisor's job. `folder`: the run's directory on the shared file system."""
    parts = [_component(topology, component) for component in components]
    common = _common(topology, name, folder)
    lines = ["#!/bin/sh", *(f"#SBATCH {word}" for word in [*common, *parts[0]])]
    for part in parts[1:]:
        lines += ["#SBATCH hetjob", *(f"#SBATCH {word}" for word in [common[0], *common[3:], *part])]
    command = shlex.join([*program.command("pdctl.launch.slurm"), str(folder)])
    return "\n".join([*lines, "", f"exec {command}", ""])


def holder(topology: Topology, component: Component, name: str, folder: Path) -> str:
    """The batch script of a job that only holds hosts; its argument is the id of the supervisor's job."""
    words = [*_common(topology, name, folder), *_component(topology, component)]
    command = shlex.join(program.command("pdctl.launch.slurm.queue"))
    return "\n".join(["#!/bin/sh", *(f"#SBATCH {word}" for word in words), "", f'exec {command} "$1"', ""])


def _common(topology: Topology, name: str, folder: Path) -> list[str]:
    return [
        f"--job-name={name}",
        _directive("targets.slurm.shared-dir", "--output", f"{folder}/logs/supervisor.log".replace("%", "%%")),
        "--open-mode=append",
        f"--time={minutes(_seconds(topology))}",
        "--no-requeue",  # a requeued run would find the files of its first start
        "--no-kill",  # the supervisor deals with a lost host
    ]


def _component(topology: Topology, component: Component) -> list[str]:
    slurm = topology.targets.slurm
    own = _map(_map(slurm.get("pools")).get(component.pool))
    words = [f"--nodes={len(component.hosts)}", "--ntasks-per-node=1"]
    for key in ("partition", "account"):
        value = own.get(key) or slurm.get(key)
        if value:
            words.append(_directive(f"targets.slurm.{key}", f"--{key}", value))
    if own.get("constraint"):
        words.append(_directive("targets.slurm.pools", "--constraint", own["constraint"]))
    if slurm.get("exclusive", True):
        words += ["--exclusive", "--mem=0"]
    if component.gpus:
        words.append(_directive("targets.slurm.gres", "--gres", f"{slurm.get('gres') or 'gpu'}:{component.gpus}"))
    return [*words, *_texts(slurm.get("extra-sbatch"))]


def step(hosts: Sequence[str], part: Sequence[str], gres: str) -> list[str]:
    """srun and its flags for one instance. `part`: the flags from `host_placement.part`. `gres` empty: no GPU."""
    return [
        "srun",
        *part,
        f"--nodelist={','.join(hosts)}",
        f"--nodes={len(hosts)}",
        f"--ntasks={len(hosts)}",
        "--ntasks-per-node=1",
        "--overlap",  # pdctl itself assigns GPUs to instances
        f"--gres={gres}" if gres else "--gpus-per-node=0",  # `--gres=none` is refused inside a GPU allocation
        "--kill-on-bad-exit=1",
        "--no-kill=off",
        "--cpu-bind=none",
        "--unbuffered",
    ]


def gres(topology: Topology, instance: InstancePlan | None) -> str:
    """The GPUs visible to a step: all of its hosts'. The instance's environment says which of them it uses."""
    if instance is None or all(rank.gpu is None for rank in instance.ranks):
        return ""
    role = topology.prefill if instance.role == "prefill" else topology.decode
    return f"{topology.targets.slurm.get('gres') or 'gpu'}:{topology.pool(role.pool).gpus_per_host}"


def planned_step(topology: Topology, components: Sequence[Component], plan: Plan, specs: Sequence[Spec]) -> list[str]:
    """As `step`, on the plan's own host names."""
    hosts = [spec.place for spec in specs]
    number = next(at for at, component in enumerate(components) if hosts[0] in component.hosts)
    instance = next((one for one in plan.instances if one.name == specs[0].instance), None)
    others = (
        tuple(f"JOB{at}" for at in range(1, len(components))) if host_placement.needs_several_jobs(topology) else ()
    )
    part = host_placement.part(Allocation("slurm", "JOB0", others=others), len(components), number)
    return step(hosts, part, gres(topology, instance))


def _seconds(topology: Topology) -> float:
    value = topology.targets.slurm.get("time")
    return float(value) if isinstance(value, int | float) else 4 * 3600.0


def _map(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _texts(value: object) -> list[str]:
    """The user's own lines, without their optional `#SBATCH`."""
    texts = value if isinstance(value, tuple | list) else ()
    return [_one_line("targets.slurm.extra-sbatch", str(text)).removeprefix("#SBATCH").strip() for text in texts]


def _directive(key: str, flag: str, value: object) -> str:
    """One option of an `#SBATCH` line, quoted for sbatch. `key`: the topology setting of the value, for errors."""
    text = _one_line(key, str(value))
    if re.fullmatch(r"[\w./:,=+@%*|&\[\]()-]+", text):
        return f"{flag}={text}"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'{flag}="{escaped}"'


def _one_line(key: str, text: str) -> str:
    """`text`. Raise UsageError if it has a line break or another control character, which could start another line."""
    if text.isprintable():
        return text
    raise UsageError(
        f"{key}: {text!r:.80} has a line break or another control character", "write one option, on one line"
    )


COMMANDS = ("sbatch", "srun", "squeue", "scontrol", "scancel")
RUNS = "pdctl-runs"  # in the working directory, unless targets.slurm.shared-dir is set
POLL = 1.0  # seconds between two queries of the queue


def check(topology: Topology, folder: Path) -> tuple[Obstacle, ...]:
    """All obstacles, in the order in which to fix them: commands, the controller, the directory, then each pool."""
    missing = [name for name in COMMANDS if shutil.which(name) is None]
    if missing:
        message = f"no command {', '.join(missing)} here"
        return (
            Obstacle("slurm-missing", message, "run pdctl on a login node of the cluster, or load its Slurm module"),
        )
    partitions = queue.partitions()
    if not partitions:
        said = queue.ask("scontrol", "ping").output.strip() or "scontrol lists no partition"
        fix = "check `scontrol ping` and $SLURM_CONF"
        return (Obstacle("slurm-unreachable", f"the Slurm controller does not answer: {said}", fix),)
    found = [*_container(topology), *_directory(folder)]
    for component in host_placement.pools(topology, host_placement.planned(topology)):
        found += _pool(topology, component, partitions)
    return tuple(found)


def _container(topology: Topology) -> Iterator[Obstacle]:
    if topology.targets.slurm.get("container"):
        message = "targets.slurm.container: this version starts ranks without a container"
        yield Obstacle("slurm-container", message, "remove it, or put the container's own start into engine.command")


def _directory(folder: Path) -> Iterator[Obstacle]:
    nearest = next(each for each in (folder, *folder.parents) if each.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        fix = "--set targets.slurm.shared-dir=DIR, a directory that every host of the cluster sees"
        yield Obstacle("shared-dir", f"{folder} cannot be written: {nearest} is not writable", fix)


def _pool(topology: Topology, component: Component, partitions: tuple[Partition, ...]) -> Iterator[Obstacle]:
    slurm = topology.targets.slurm
    pools = slurm.get("pools")
    own = pools.get(component.pool, {}) if isinstance(pools, dict) else {}
    key = f"targets.slurm.pools.{component.pool}.partition" if own.get("partition") else "targets.slurm.partition"
    name = own.get("partition") or slurm.get("partition")
    names = [each.name for each in partitions]
    partition = next((each for each in partitions if (each.name == name if name else each.default)), None)
    if partition is None:
        message = f"there is no partition `{name}`" if name else "this cluster has no default partition"
        near = similar(str(name), names) or names
        yield Obstacle("slurm-partition", f"{message}; there are {', '.join(names)}", f"--set {key}={near[0]}")
        return
    if not partition.up:
        fix = f"--set {key}=… with another, or wait: sinfo -p {partition.name}"
        yield Obstacle("slurm-partition", f"partition {partition.name} takes no jobs now", fix)
    yield from _time(topology, partition)
    yield from _hosts(component, partition, str(slurm.get("gres") or "gpu"), key)


def _time(topology: Topology, partition: Partition) -> Iterator[Obstacle]:
    wanted = topology.targets.slurm.get("time")
    limit = partition.max_time
    if limit is None or not isinstance(wanted, int | float) or wanted <= limit:
        return
    message = f"targets.slurm.time {_short(wanted)} is more than partition {partition.name} allows ({_short(limit)})"
    yield Obstacle("slurm-time", message, f"--set targets.slurm.time={_short(limit)}")


def _hosts(component: Component, partition: Partition, gres: str, key: str) -> Iterator[Obstacle]:
    wanted = len(component.hosts)
    known = queue.nodes(partition.nodes) if partition.nodes else ()
    good = [node for node in known if node.usable]
    fitting = [node for node in good if dict(node.gres).get(gres, 0) >= component.gpus]
    most = min(len(fitting), partition.max_nodes or len(fitting))
    if most >= wanted:
        return
    where = f"partition {partition.name}"
    what = f"pool {component.pool} needs {wanted} host{'s' if wanted > 1 else ''}"
    if component.gpus:
        what += f" with {component.gpus} {gres}"
    bad = [f"{node.name} {node.state}" for node in known if not node.usable]
    rest = f"; not usable: {', '.join(bad[:8])}" if bad else ""
    fix = f"--set {key}=… with another, fewer instances, or another pools.{component.pool}.gpus-per-host"
    if component.gpus and not any(dict(node.gres).get(gres) for node in known):
        kinds = sorted({name for node in known for name, _ in node.gres})
        rest += f"; no host has the resource `{gres}`{f', there is {chr(44).join(kinds)}' if kinds else ''}"
        fix = f"--set targets.slurm.gres={kinds[0]}" if kinds else "choose a partition with GPUs: --set " + key + "=…"
    yield Obstacle("slurm-hosts", f"{what}, {where} has {most} of {len(known)}{rest}", fix)


def _short(seconds: float) -> str:
    """Seconds in the notation of a topology, for example `1h30m`."""
    hours, rest = divmod(int(seconds), 3600)
    minutes, last = divmod(rest, 60)
    words = [f"{count}{unit}" for count, unit in ((hours, "h"), (minutes, "m"), (last, "s")) if count]
    return "".join(words) or "0s"


def folder(topology: Topology, name: str) -> Path:
    """The run's directory, which the login host and every host of the job must see."""
    given = topology.targets.slurm.get("shared-dir")
    return (expanded(str(given)) if given else Path(RUNS)).absolute() / name


def link(registered: Path, real: Path) -> None:
    """Create `real` and link it into this user's runs. Raise LaunchError if a local run is in the way."""
    if registered.is_dir() and not registered.is_symlink():
        message = f"{registered} holds an earlier run of this machine"
        raise LaunchError(message, f"choose another --name, or remove it: rm -r {registered}")
    try:
        user_files.make_directories(real, 0o700)
    except OSError as error:
        fix = "--set targets.slurm.shared-dir=DIR, a directory that every host of the cluster sees"
        raise LaunchError(f"{real} cannot be written: {error.strerror}", fix) from None
    user_files.make_directories(registered.parent, 0o700)
    draft = registered.with_name(f".{registered.name}.{os.getpid()}")
    draft.symlink_to(real)
    draft.replace(registered)


def submit(directory: RunDir, run: Run, patience: float) -> Run:
    """Submit the scripts in the directory. The jobs are held until their ids are recorded.

    Return the run with its allocation. Raise LaunchError if a job is refused or cannot be released.
    """
    jobs: list[str] = []
    try:
        for script in (JOB, *holders(directory)):
            jobs.append(_hand_in(directory.path.resolve() / script, jobs[:1]))
    except LaunchError as error:
        for job in jobs:
            queue.cancel(job)
        outcome = RunOutcome(error.message, code=1, fix=error.fix)
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
    """The file names of the scripts of the jobs beside the supervisor's, in the order of their hosts."""
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


def await_start(given: Allocation, patience: float, emit: Callable[[RunEvent], None]) -> None:
    """Wait until every component runs; after `patience` seconds, cancel all and raise NotReadyError with the reason.

    Raise LaunchError if a job vanishes from the queue; emit each new reason for waiting.
    """
    deadline = time.monotonic() + patience
    said = ""
    while time.monotonic() < deadline:
        parts = [part for job in given.jobs for part in queue.components(job) or (queue.SlurmJob(job),)]
        vanished = [part for part in parts if not part.state]
        if vanished:
            job = vanished[0].id
            cancel(given)
            raise LaunchError(f"job {job} is gone from the queue before it started", f"scontrol show job {job}")
        pending = [part for part in parts if part.pending]
        if not pending:
            return
        reason = f"job {pending[0].id} waits: {pending_reason(pending[0])}"
        if reason != said:
            said = reason
            emit(RunEvent(time.time(), EventKind.QUEUED, detail=reason))
        time.sleep(POLL)
    cancel(given)
    job, _, reason = said.partition(" waits: ")
    message = f"{job} did not start within {ending_reasons.span(patience)}: {reason or 'the queue said nothing'}"
    raise NotReadyError(message, "--queue-timeout waits longer; squeue --start tells when Slurm expects to start it")


def pending_reason(part: queue.SlurmJob) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(part.starts_at)) if part.starts_at else ""
    reason = "Slurm has not looked at it yet" if part.reason in ("", "None") else part.reason
    return f"{reason}{f', expected to start at {when}' if when else ''}"


def outcome_of_ended_job(run: Run) -> RunOutcome:
    """The outcome of a job that ended before its supervisor could record one."""
    assert run.allocation is not None
    job = queue.leader(run.allocation.job)
    state = f"{job.state}{f' ({job.reason})' if job.reason not in ('', 'None') else ''}" if job.state else "gone"
    down = {node.name: node for node in queue.nodes(",".join(seat.node for seat in run.allocation.seats)) if node.down}
    there = [spec for spec in run.deployment.specs if spec.place in down]
    hit = [f"{spec.name} on {spec.place} ({down[spec.place].state})" for spec in there]
    lost = f"; lost with their hosts: {', '.join(hit)}" if hit else ""
    return RunOutcome(
        f"job {run.allocation.job} is {state}{lost}", code=1, fix=f"scontrol show job {run.allocation.job}"
    )
