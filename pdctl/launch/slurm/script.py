"""The batch script of a run and the srun command of every step: text only, the same for `--dry-run` and a launch."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from pdctl import program
from pdctl.errors import UsageError
from pdctl.launch.run import Allocation
from pdctl.launch.slurm import host_placement
from pdctl.launch.slurm.queue import minutes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pdctl.launch.deployment import Spec
    from pdctl.launch.slurm.host_placement import Component
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
    command = shlex.join(program.command("pdctl.launch.slurm.hold"))
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
