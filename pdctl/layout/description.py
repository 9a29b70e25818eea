"""Turn a topology into the values that `solve` plans from: shapes, flags held against the release, model, target."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pdctl.engines.kinds import EMBEDDED
from pdctl.engines.versions import resolve
from pdctl.errors import UsageError
from pdctl.layout import role_settings
from pdctl.layout.assembly import Bases, PlannedDeployment, PlannedRole, RoleSide
from pdctl.layout.gpu_memory import kv_itemsize
from pdctl.layout.hosts import NOWHERE
from pdctl.layout.model_config import load
from pdctl.layout.role_settings import api_key, devices, flag_problems, read, serving, settings
from pdctl.layout.shape import Caution, Problem, ShapeWords
from pdctl.layout.workload import MEM_FRACTION, NO_WORKLOAD, Budget, Measured, Nic, TrafficGoal
from pdctl.loopback import is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pdctl.engines.versions import Release, Version
    from pdctl.layout.hosts import Site
    from pdctl.layout.model_config import ModelShape
    from pdctl.layout.role_settings import RoleReading
    from pdctl.topology.model import Role, Router, Topology

EMBEDDED_PAGE = 16  # pdctl.engine's default page size
SGLANG_PAGE = 1
TARGETS = ("local", "pools", "kubernetes")


def describe(
    topology: Topology, target: str | None, measured: Measured, sites: Mapping[str, Site] = NOWHERE
) -> PlannedDeployment:
    embedded = topology.engine.kind == EMBEDDED
    release = resolve(None if embedded else topology.engine.version)
    readings = {role.name: read(topology, role) for role in topology.roles}
    target = target or _target(topology, readings)
    if target not in TARGETS:
        raise UsageError(f"no target `{target}`", f"targets a plan can be made for: {', '.join(TARGETS)}")
    model, warnings = _model(topology, readings["prefill"])
    cases = tuple(_case(topology, role, readings, model, release.known, target) for role in topology.roles)
    if release.note:
        warnings.append(Caution("release", release.note))
    if embedded:
        warnings += _unused_keys(topology)
    if topology.engine.pace:
        from pdctl.layout.cost_profile import read_profile  # late: few have a pace

        read_profile(topology.engine.pace)
    told = list(role_settings.router(topology.router.args, topology.router.kind))
    if not embedded:
        told += _sglang(topology, readings, release)
    problems = [each for each in told if isinstance(each, Problem)]
    warnings += [each for each in told if isinstance(each, Caution)]
    if target == "local":
        problems += _local_problems(topology, readings)
    return PlannedDeployment(
        name=topology.name,
        engine=topology.engine.kind,
        release=release,
        target=target,
        cases=cases,
        bases=Bases(
            topology.ports.http, topology.ports.bootstrap, topology.ports.dist_init, topology.ports.stride, True
        ),
        model=model,
        workload=_workload(topology),
        measured=measured,
        env={**topology.engine.env, **topology.transfer.env},
        router=in_pod(topology.router) if target == "kubernetes" else _with_key(topology, target),
        problems=tuple(problems),
        warnings=tuple(warnings),
        sites=sites,
    )


def _target(topology: Topology, readings: dict[str, RoleReading]) -> str:
    """Local unless the topology is for a cluster, or larger than one host."""
    if topology.engine.kind == EMBEDDED or "targets.local" in topology.spans:
        return "local"
    if topology.targets.kubernetes and not topology.targets.slurm:
        return "kubernetes"
    clustered = topology.targets.slurm or topology.targets.kubernetes
    return "pools" if clustered or _gpus_wanted(topology, readings) > _gpus_offered(topology) else "local"


def in_pod(router: Router) -> Router:
    """Nobody outside its pod could reach a router that listens on the loopback address."""
    return router._replace(host="0.0.0.0") if is_loopback(router.host) else router


def _gpus_wanted(topology: Topology, readings: dict[str, RoleReading]) -> int:
    return sum(role.instances * readings[role.name].shape.gpus for role in topology.roles)


def _gpus_offered(topology: Topology) -> int:
    """The GPUs of this machine, if the topology says which."""
    gpus = topology.targets.local.gpus
    if isinstance(gpus, tuple):
        return len(gpus)
    return max(topology.pool(role.pool).gpus_per_host for role in topology.roles)


def _local_problems(topology: Topology, readings: dict[str, RoleReading]) -> list[Problem]:
    if all(reading.on_cpu for reading in readings.values()):
        return []
    wanted, offered = _gpus_wanted(topology, readings), _gpus_offered(topology)
    if wanted <= offered:
        return []
    ways = ("--set targets.local.gpus=none", "--target pools")
    return [Problem("gpus-of-this-machine", f"the instances need {wanted} GPUs, this machine has {offered}", ways)]


def _model(topology: Topology, reading: RoleReading) -> tuple[ModelShape | None, list[Caution]]:
    """The model's numbers, from `model.config` or a checkpoint directory; a warning where neither can be read."""
    path = topology.model.config or topology.model.path
    if not topology.model.config and not _is_directory(path):
        fix = "set model.config to its config.json"
        return None, [
            Caution("no-model-config", f"no memory and transfer figures: {path} is not a directory here; {fix}")
        ]
    dtype = topology.model.dtype
    if topology.engine.kind == EMBEDDED:
        given = reading.args.get("dtype", dtype)
        dtype = "float32" if given == "auto" and reading.on_cpu else str(given)
    try:
        return load(path, dtype), []
    except UsageError as error:
        return None, [Caution("model-config", f"no memory and transfer figures: {error.message}; {error.fix}")]


def _is_directory(path: str) -> bool:
    try:
        return Path(path).is_dir()
    except OSError:  # the path is too long
        return False


def _case(
    topology: Topology,
    role: Role,
    readings: dict[str, RoleReading],
    model: ModelShape | None,
    version: Version,
    target: str,
) -> PlannedRole:
    reading = readings[role.name]
    peer = readings["decode" if role.name == "prefill" else "prefill"].shape
    embedded = topology.engine.kind == EMBEDDED
    pool = topology.pool(role.pool)
    side = RoleSide(
        role=role.name,
        instances=role.instances,
        shape=reading.shape,
        serving=serving(topology, role, reading, peer, version, target),
        pool=topology.name if target == "kubernetes" else role.pool,
        spread=role.spread,
        on_cpu=reading.on_cpu,
        devices=devices(topology, reading, target),
    )
    budget = Budget(
        gpu_memory=None if reading.on_cpu else pool.gpu_memory,
        mem_fraction=role.mem_fraction or MEM_FRACTION,
        page_size=role.page_size or (EMBEDDED_PAGE if embedded else SGLANG_PAGE),
        kv_bytes=kv_itemsize("auto" if embedded else topology.model.kv_dtype, model) if model is not None else 2,
    )
    nic = Nic(pool.nic_speed, pool.nic_count) if pool.nic_speed and not reading.on_cpu else None
    return PlannedRole(side, _words(role.name, reading), budget, reading.placement, nic)


def _words(role: str, reading: RoleReading) -> ShapeWords:
    places = {"kv-dtype": "model.kv-dtype"}
    return ShapeWords(
        lambda shape: settings(role, shape, reading.shape),
        lambda name, value: f"--set {places.get(name, f'roles.{role}.{name}')}={value}",
    )


def _sglang(topology: Topology, readings: dict[str, RoleReading], release: Release) -> Iterator[Problem | Caution]:
    """What this release's command line and environment do not take."""
    from pdctl.engines.environment import lint  # late: the embedded engine has no release

    yield from role_settings.backend(topology.transfer.backend, release)
    yield from role_settings.served_name(topology.model.served_name, release)
    remarks: dict[str, list[str]] = {}
    for role in topology.roles:
        reading = readings[role.name]
        yield from flag_problems(role, reading, release)
        for remark in lint(reading.env, release.known):
            remarks.setdefault(f"{remark.message}; {remark.fix}", []).append(role.name)
    for message, roles in remarks.items():
        yield Caution("environment", f"{' and '.join(roles)}: {message}")


def _unused_keys(topology: Topology) -> list[Caution]:
    """Keys the embedded engine has no use for."""
    found = [f"roles.{role.name}.mem-fraction" for role in topology.roles if role.mem_fraction is not None]
    if topology.model.kv_dtype != "auto":
        found.append("model.kv-dtype")
    return [Caution("unused-key", f"{key} has no effect on the embedded engine") for key in found]


def _workload(topology: Topology) -> TrafficGoal:
    load, slo = topology.workload, topology.slo
    if load is None:
        return NO_WORKLOAD
    return TrafficGoal(
        isl=load.isl,
        osl=load.osl,
        rate=load.rate,
        hit=load.hit,
        ttft=slo.ttft if slo is not None else None,
        tpot=slo.tpot if slo is not None else None,
    )


def _with_key(topology: Topology, target: str) -> Router:
    return topology.router._replace(args={**topology.router.args, **dict(api_key(topology, target))})
