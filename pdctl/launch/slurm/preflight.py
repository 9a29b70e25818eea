"""Everything that would keep a topology from starting on this cluster, asked of Slurm before anything is submitted."""

from __future__ import annotations

import difflib
import os
import shutil
from typing import TYPE_CHECKING

from pdctl.launch.slurm import placement, queue
from pdctl.launch.targets import Obstacle

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pdctl.launch.slurm.placement import Component
    from pdctl.launch.slurm.queue import Partition
    from pdctl.topology.model import Topology

COMMANDS = ("sbatch", "srun", "squeue", "scontrol", "scancel")


def check(topology: Topology, folder: Path) -> tuple[Obstacle, ...]:
    """In the order a reader would mend them: commands, the controller, then each pool, then the directory."""
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
    for component in placement.pools(topology, placement.planned(topology)):
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
        near = difflib.get_close_matches(str(name), names, n=1) or names
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
    """As a topology writes times."""
    hours, rest = divmod(int(seconds), 3600)
    minutes, last = divmod(rest, 60)
    words = [f"{count}{unit}" for count, unit in ((hours, "h"), (minutes, "m"), (last, "s")) if count]
    return "".join(words) or "0s"
