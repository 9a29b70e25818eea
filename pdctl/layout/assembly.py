"""What is planned, role by role, and the instances that follow from it: hosts, GPUs, ports, ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines.kinds import EMBEDDED
from pdctl.engines.sglang.behaviour import INPUTS_BEHIND_THE_DIST_PORT
from pdctl.layout.hosts import LOCAL, NOWHERE, HostSeat, HostWish, assign, local, pods
from pdctl.layout.instance_plan import InstancePlan
from pdctl.layout.ports import Numbers
from pdctl.layout.shape import PLAIN, Placement, ShapeWords, place
from pdctl.layout.workload import NO_WORKLOAD, UNMEASURED, Budget, Measured, Nic, TrafficGoal
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdctl.engines.versions import Release
    from pdctl.layout.gpu_memory import GpuMemory
    from pdctl.layout.hosts import Site
    from pdctl.layout.model_config import ModelShape
    from pdctl.layout.serving import Serving
    from pdctl.layout.shape import Caution, Problem, RankPlace, Shape
    from pdctl.topology.model import Router

# On this machine, by the address that is listened on.
REACHED = {"localhost": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
HANDSHAKE = 13  # how far above the --dist-init-addr port SGLang's last derived port lies, since 0.5.8


class PlannedRole(NamedTuple):
    """One role: what is laid out, and what is asked about it. `words` spells the changes proposed to the user."""

    side: RoleSide
    words: ShapeWords
    budget: Budget
    placement: Placement = PLAIN
    nic: Nic | None = None


class PlannedDeployment(NamedTuple):
    """`model` None: not known, and `mla` is what the user said of it, if anything. Both sides share `env`."""

    name: str
    engine: str  # embedded | sglang
    release: Release
    target: str  # local | pools | kubernetes
    cases: tuple[PlannedRole, ...]  # prefill, or prefill and decode
    bases: Bases
    model: ModelShape | None = None
    mla: bool | None = None
    workload: TrafficGoal = NO_WORKLOAD
    measured: Measured = UNMEASURED
    env: Mapping[str, str] = {}
    router: Router | None = None
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Caution, ...] = ()
    sites: Mapping[str, Site] = {}  # the hosts a target has given, by the plan's own names for them


class RoleSide(NamedTuple):
    """One role, ready to be laid out: `instances` of it, all alike."""

    role: str
    instances: int
    shape: Shape
    serving: Serving
    pool: str = "host"
    spread: bool = False
    on_cpu: bool = False
    memory: GpuMemory | None = None
    devices: tuple[int, ...] = ()  # the only GPUs of this machine to use; empty: all, from the first


class Bases(NamedTuple):
    """First port of each kind on a host; instances count up from them. `fixed_nccl`: each gets an NCCL port too."""

    http: int = 30000
    bootstrap: int = 8998
    dist: int = 20000
    stride: int = 32
    fixed_nccl: bool = False


def lay_out(
    sides: Sequence[RoleSide], bases: Bases, target: str, sites: Mapping[str, Site] = NOWHERE
) -> tuple[InstancePlan, ...]:
    """Target local puts everything on this machine, kubernetes in pods, and pools on hosts named after their
    pool, or on the given sites."""
    wishes = [HostWish(side.role, side.pool, side.shape, side.spread) for side in sides for _ in range(side.instances)]
    seats = iter(_seats(wishes, target, sites))
    laid = tuple(_instance(side, index, next(seats), bases) for side in sides for index in range(side.instances))
    return tuple(_place_instance(one, sites) for one in laid) if sites else laid


def _seats(wishes: Sequence[HostWish], target: str, sites: Mapping[str, Site]) -> tuple[HostSeat, ...]:
    if target == "kubernetes":
        return pods(wishes)
    return local(wishes) if target == "local" else assign(wishes, sites)


def _address(host: str, bind: str) -> str:
    """Where what listens on `bind` is reached at a host: by its name, or on this machine at an address of `bind`."""
    if host != LOCAL:
        return host
    return REACHED.get(bind, bind)


def _instance(side: RoleSide, index: int, seat: HostSeat, bases: Bases) -> InstancePlan:
    shape = side.shape._replace(base_gpu_id=side.shape.base_gpu_id + seat.base_gpu_id)
    numbers = _numbers(side, seat, bases)
    return InstancePlan(
        name=f"{side.role}-{index}",
        role=side.role,
        number=index,
        host_names=seat.hosts,
        address=_address(seat.hosts[0], side.serving.bind),
        shape=shape,
        ranks=tuple(_renumber_gpus(rank, side.devices) for rank in place(shape, on_cpu=side.on_cpu)),
        numbers=numbers,
        serving=side.serving,
        memory=side.memory,
    )


def _place_instance(instance: InstancePlan, sites: Mapping[str, Site]) -> InstancePlan:
    """Move the instance to the hosts a target gave. There it sees its own GPUs only, and counts them from 0."""
    given = [sites[name] for name in instance.host_names]
    serving, shape = instance.serving, instance.shape
    gpus = [rank.gpu for rank in instance.ranks if rank.gpu is not None and rank.node == 0]
    if gpus:
        env = {**dict(serving.env), "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))}
        serving = serving._replace(env=tuple(env.items()))
        shape = shape._replace(base_gpu_id=0, gpu_id_step=1)
    return instance._replace(
        host_names=tuple(site.name for site in given),
        address=given[0].address,
        addresses=tuple(site.address for site in given),
        serving=serving,
        shape=shape,
    )


def _renumber_gpus(rank: RankPlace, devices: tuple[int, ...]) -> RankPlace:
    """The engine numbers the GPUs in CUDA_VISIBLE_DEVICES; a plan uses the machine's own numbers."""
    if rank.gpu is None or rank.gpu >= len(devices):
        return rank
    return rank._replace(gpu=devices[rank.gpu])


def _bootstrap(side: RoleSide, seat: HostSeat, bases: Bases) -> int | None:
    """A decode that may become a prefill gets a port after those of the prefills."""
    if side.role == "prefill":
        return bases.bootstrap + seat.kin
    return bases.bootstrap + seat.before if side.serving.may_switch else None


def _numbers(side: RoleSide, seat: HostSeat, bases: Bases) -> Numbers:
    shape, block = side.shape, bases.dist + bases.stride * seat.before
    numbers = Numbers(bases.http + seat.before, _bootstrap(side, seat, bases))
    if side.serving.kind == EMBEDDED:
        return numbers._replace(dist=block if shape.nodes > 1 else None)
    if shape.nodes > 1 or (shape.dp_attention and bases.fixed_nccl):
        numbers = numbers._replace(dist=block)
    # Each replica needs its own NCCL port: sglang's controller keeps one bound while it looks for the next free one.
    if bases.fixed_nccl and shape.replicas == 1:
        inputs = shape.dp if INPUTS_BEHIND_THE_DIST_PORT.holds(side.serving.version) else 0
        numbers = numbers._replace(nccl=block + max(bases.stride - 1, HANDSHAKE + 1, 6 + inputs))
    return numbers
