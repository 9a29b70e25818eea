"""Which hosts of a pool an instance stands on, and which of their GPUs it takes."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdctl.layout.shape import Shape

LOCAL = "localhost"


class Site(NamedTuple):
    """A host that a target gave for one of the plan's: what it is called there, and where the others reach it."""

    name: str
    address: str


# Sites go by the plan's own host names; until a target has given its hosts there are none.
NOWHERE: Mapping[str, Site] = MappingProxyType({})


class HostSeat(NamedTuple):
    """`before`: instances already at the busiest of these hosts' addresses, `kin`: those of the same role there."""

    hosts: tuple[str, ...]
    base_gpu_id: int
    before: int
    kin: int


class HostWish(NamedTuple):
    """One instance to seat. `spread`: on a host without another instance of its role, where there is one."""

    role: str
    pool: str
    shape: Shape
    spread: bool = False


class _Host:
    """`neighbours` are the roles at the same address, which count ports together: hosts may share one in a test."""

    __slots__ = ("name", "neighbours", "next_gpu", "roles")

    def __init__(self, name: str, neighbours: list[str]) -> None:
        self.name = name
        self.next_gpu = 0
        self.roles: list[str] = []
        self.neighbours = neighbours


def assign(wishes: Sequence[HostWish], sites: Mapping[str, Site] = NOWHERE) -> tuple[HostSeat, ...]:
    """First fit over hosts named `<pool>-0`, `<pool>-1`, …; an instance of several nodes takes hosts of its own."""
    pools: dict[str, list[_Host]] = {}
    shared: dict[str, list[str]] = {}
    seats: list[HostSeat] = []
    for wish in wishes:
        hosts = pools.setdefault(wish.pool, [])
        chosen = _choose_hosts(wish, hosts)
        while len(chosen) < wish.shape.nodes:
            name = f"{wish.pool}-{len(hosts)}"
            address = sites[name].address if name in sites else name
            host = _Host(name, shared.setdefault(address, []))
            hosts.append(host)
            chosen.append(host)
        seats.append(_take_seat(wish, chosen))
    return tuple(seats)


def local(wishes: Sequence[HostWish]) -> tuple[HostSeat, ...]:
    """Everything on this machine, GPU after GPU."""
    host = _Host(LOCAL, [])
    return tuple(_take_seat(wish, [host] * wish.shape.nodes) for wish in wishes)


def pods(wishes: Sequence[HostWish]) -> tuple[HostSeat, ...]:
    """One pod per node with GPUs and ports of its own, named as a LeaderWorkerSet names it after `pool`."""
    count: dict[str, int] = {}
    seats: list[HostSeat] = []
    for wish in wishes:
        number = count[wish.role] = count.get(wish.role, -1) + 1
        leader = f"{wish.pool}-{wish.role}-{number}"
        seats.append(HostSeat((leader, *(f"{leader}-{node}" for node in range(1, wish.shape.nodes))), 0, 0, 0))
    return tuple(seats)


def _choose_hosts(wish: HostWish, hosts: list[_Host]) -> list[_Host]:
    if wish.shape.nodes > 1:
        return []
    room = [host for host in hosts if host.next_gpu + _span(wish.shape) <= wish.shape.gpus_per_host]
    if wish.spread:
        room = [host for host in room if wish.role not in host.roles]
    return room[:1]


def _take_seat(wish: HostWish, hosts: list[_Host]) -> HostSeat:
    base = max(host.next_gpu for host in hosts)
    before = max(len(host.neighbours) for host in hosts)
    kin = max(host.neighbours.count(wish.role) for host in hosts)
    for host in hosts:
        host.next_gpu = base + _span(wish.shape)
        host.roles.append(wish.role)
        host.neighbours.append(wish.role)
    return HostSeat(tuple(host.name for host in hosts), base, before, kin)


def _span(shape: Shape) -> int:
    """GPUs of one node, counted from the first to the last."""
    per_node = shape.stages_per_node * shape.tp_per_node * shape.replicas
    return (per_node - 1) * shape.gpu_id_step + 1
