"""How weights reach replicas that load: from disk, host memory or other replicas, layer by layer, as flows.

A lane carries a share of each layer to one replica, one layer after the other; a layer may wait for other lanes, as
that of a chain does for the hop before it. A replica has as many layers as its slowest lane has brought. Embedding and
head count as parts of the layers: all are of one size.

    disk    each from the disk of its machine
    host    each from its machine's host memory, where that has the weights (HOST_CACHE_NS); else from disk
    peer    each from a replica that has them: one of its own machine over NVLink, else the one that sends to the fewest
    chain   each passes a layer on while it receives the next one
    strips  n replicas each send an n-th to n replicas of a machine, which complete each other over NVLink (Tanz)
    live    as a chain; prefills compute with the layers they have meanwhile (zigzag.py)
    instant at once: what no loader can beat
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING

from pdctl.quick_definitions import NamedTuple
from pdctl.simulation.kernel import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pdctl.layout.cost_profile import CostProfile
    from pdctl.simulation.network import FlowChange, Network

HOST_CACHE_NS = 30 * SECOND  # how long BlitzScale counts a machine's host memory as warm after its last use
FROM_STORAGE = -1


class LoadPlan(str, Enum):
    DISK = "disk"
    HOST = "host"
    PEER = "peer"
    CHAIN = "chain"
    STRIPS = "strips"
    LIVE = "live"
    INSTANT = "instant"


class LoadProgress(NamedTuple):
    """What happened to loads. `layers`: (replica, layers it has now), the last one of each replica is all of them.

    `lost`: replicas whose source is gone; they keep their layers, and go on from there at the next `begin`.
    """

    layers: tuple[tuple[int, int], ...] = ()
    changes: tuple[FlowChange, ...] = ()
    lost: tuple[int, ...] = ()


class FleetLinks:
    """The links of a fleet: each replica's NIC in both directions, and, once they are used, NVLink, disks, and PCIe."""

    def __init__(self, network: Network, profile: CostProfile, machines: Sequence[int]) -> None:
        """`machines`: that of each replica."""
        self.network, self.profile, self.machines = network, profile, machines
        self.out_of = [network.add_link(profile.nic_bytes_per_s) for _ in machines]
        self.into = [network.add_link(profile.nic_bytes_per_s) for _ in machines]
        self._others: dict[tuple[str, int], int] = {}

    def between(self, source: int, target: int) -> tuple[int, int]:
        """The links from one replica to another."""
        if self.over_nvlink(source, target):
            rate = self.profile.nvlink_bytes_per_s
            return self._other("nvlink out", source, rate), self._other("nvlink in", target, rate)
        return self.out_of[source], self.into[target]

    def over_nvlink(self, source: int, target: int) -> bool:
        return self.profile.nvlink_bytes_per_s > 0 and self.machines[source] == self.machines[target]

    def gather(self, target: int) -> tuple[int]:
        """What the others of its machine send a replica over NVLink."""
        return (self._other("nvlink in", target, self.profile.nvlink_bytes_per_s),)

    def host_memory(self, target: int) -> tuple[int, ...]:
        return (self._other("host", target, self.profile.host_bytes_per_s),)

    def disk(self, target: int) -> tuple[int, ...]:
        disk = self._other("disk", self.machines[target], self.profile.disk_bytes_per_s)
        return (disk, *self.host_memory(target))

    def _other(self, kind: str, place: int, rate: float) -> int:
        if (kind, place) not in self._others:
            self._others[kind, place] = self.network.add_link(rate)
        return self._others[kind, place]


@dataclass(slots=True, eq=False)
class _Lane:
    """`part` of `parts` of each layer, from `source` to `target`."""

    source: int
    target: int
    links: tuple[int, ...]
    part: int = 1
    parts: int = 1
    after: Sequence[_Lane] = ()  # each must have brought a layer before this lane begins it
    before: list[_Lane] = field(default_factory=list)
    done: int = 0  # layers
    flow: int | None = None


class WeightLoads:
    """All loads of a fleet. The caller tells the end of each of their flows to `end_flow`."""

    def __init__(self, links: FleetLinks, plan: LoadPlan) -> None:
        self.links, self.plan, self.network, self.profile = links, plan, links.network, links.profile
        self.bytes_moved = 0
        self.host_hits = 0
        self.host_misses = 0
        self._layers: dict[int, int] = {}  # of each replica that loads
        self._lanes: dict[int, list[_Lane]] = {}  # of each replica that loads
        self._sent: dict[int, list[_Lane]] = {}  # by source, those that are not complete
        self._by_flow: dict[int, _Lane] = {}
        self._warm_until: dict[int, int] = {}  # the host memory of each machine

    def owns(self, flow: int) -> bool:
        return flow in self._by_flow

    def is_sending(self, replica: int) -> bool:
        return replica in self._sent

    def layers(self, replica: int) -> int:
        """Layers that a replica which loads has."""
        return self._layers.get(replica, 0)

    def keep_warm(self, now_ns: int, replica: int) -> None:
        """The replica's machine has used the weights until now: its host memory keeps them for a time."""
        self._warm_until[self.links.machines[replica]] = now_ns + HOST_CACHE_NS

    def begin(self, now_ns: int, targets: Sequence[int], sources: Sequence[int]) -> LoadProgress:
        """Load `targets`, from where they stopped. `sources`: replicas with all weights, in the order of preference.

        The last target of a chain passes nothing on: name those last that shall compute meanwhile.
        """
        every = self.profile.layers
        if self.plan is LoadPlan.INSTANT:
            self.bytes_moved += self.profile.weight_bytes * len(targets)
            return LoadProgress(tuple((target, every) for target in targets))
        lanes: list[_Lane] = []
        from_storage = self.plan in (LoadPlan.DISK, LoadPlan.HOST) or not sources
        if from_storage:
            lanes = [self._from_storage(now_ns, target, sources) for target in targets]
        elif self.plan is LoadPlan.PEER:
            lanes = self._from_peers(targets, sources)
        else:
            groups = self._by_machine(targets)
            if self.plan is LoadPlan.STRIPS and self.profile.nvlink_bytes_per_s > 0:
                lanes = self._strips(groups, sources)
            lanes += self._chains(groups, sources)
        changes: list[FlowChange] = []
        for lane in lanes:
            lane.done = self._layers.setdefault(lane.target, 0)
            self._lanes.setdefault(lane.target, []).append(lane)
            if lane.source != FROM_STORAGE:
                self._sent.setdefault(lane.source, []).append(lane)
            for other in lane.after:
                other.before.append(lane)
        for lane in lanes:
            changes += self._start(now_ns, lane)
        return LoadProgress(changes=tuple(changes))

    def end_flow(self, now_ns: int, flow: int) -> LoadProgress:
        """A flow of a load has come to its end: a lane has brought its part of a layer."""
        lane = self._by_flow[flow]
        self.bytes_moved += self._size(lane)
        lane.done += 1
        changes: list[FlowChange] = []
        if self._may_start(lane):
            changes.append(self.network.refill(now_ns, flow, self._size(lane)))
        else:
            changes += self._stop(now_ns, lane)
        for other in lane.before:
            if other.flow is None:
                changes += self._start(now_ns, other)
        target, every = lane.target, self.profile.layers
        if lane.done == every:
            self._forget_source(lane)
        layers = min(each.done for each in self._lanes[target])
        if layers == self._layers[target]:
            return LoadProgress(changes=tuple(changes))
        self._layers[target] = layers
        if layers == every:
            del self._lanes[target], self._layers[target]
            self.keep_warm(now_ns, target)
        return LoadProgress(((target, layers),), tuple(changes))

    def lose(self, now_ns: int, replica: int) -> LoadProgress:
        """The replica is gone, with what it has loaded; what waits for weights through it has no source any more."""
        changes: list[FlowChange] = []
        gone = [replica]
        for one in gone:
            cut = {lane.target: None for lane in self._sent.get(one, ())}
            for lane in self._lanes.pop(one, ()):
                cut.update((other.target, None) for other in lane.before)
                changes += self._give_up(now_ns, lane)
            gone.extend(target for target in cut if target in self._lanes and target not in gone)
        self._layers.pop(replica, None)
        return LoadProgress((), tuple(changes), tuple(gone[1:]))

    def _from_storage(self, now_ns: int, target: int, sources: Iterable[int]) -> _Lane:
        machine = self.links.machines[target]
        warm = self._warm_until.get(machine, -1) >= now_ns or any(
            self.links.machines[source] == machine for source in sources
        )
        if self.plan is LoadPlan.DISK or not warm:
            self.host_misses += self.plan is not LoadPlan.DISK
            return _Lane(FROM_STORAGE, target, self.links.disk(target))
        self.host_hits += 1
        return _Lane(FROM_STORAGE, target, self.links.host_memory(target))

    def _from_peers(self, targets: Sequence[int], sources: Sequence[int]) -> list[_Lane]:
        """Each from a replica of its machine over NVLink, else from the one that sends to the fewest."""
        near = {self.links.machines[source]: source for source in reversed(sources)}
        busy = [(len(self._sent.get(source, ())), place, source) for place, source in enumerate(sources)]
        heapify(busy)
        lanes = []
        for target in targets:
            source = near.get(self.links.machines[target], FROM_STORAGE)
            if source == FROM_STORAGE or not self.links.over_nvlink(source, target):
                count, place, source = busy[0]
                heapreplace(busy, (count + 1, place, source))
            lanes.append(self._hop(source, target))
        return lanes

    def _chains(self, groups: dict[int, list[int]], sources: Sequence[int]) -> list[_Lane]:
        """One chain from each idle source; the replicas of a machine follow each other in it."""
        idle = [source for source in sources if not self.is_sending(source)] or list(sources)
        near = {self.links.machines[source]: source for source in reversed(idle)}
        chains: dict[int, list[int]] = {}
        dealt = 0
        for machine, members in groups.items():
            source = near.get(machine, FROM_STORAGE)
            if source == FROM_STORAGE or not self.links.over_nvlink(source, members[0]):
                source = idle[dealt % len(idle)]
                dealt += 1
            chains.setdefault(source, []).extend(members)
        lanes = []
        for source, members in chains.items():
            before: tuple[_Lane, ...] = ()
            for target in members:
                lanes.append(self._hop(source, target, before))
                source, before = target, (lanes[-1],)
        return lanes

    def _strips(self, groups: dict[int, list[int]], sources: Sequence[int]) -> list[_Lane]:
        """Take the machines that can have lanes out of `groups`: each of their n lanes leads from machine to machine.

        Once the n strips of a layer have come to a machine, each of its replicas gets over NVLink what it lacks.
        """
        idle = [source for source in sources if not self.is_sending(source)]
        rows = [machine for machine, members in groups.items() if len(members) > 1]
        width = min([len(idle), *(len(groups[machine]) for machine in rows)])
        if width < 2 or not rows:
            return []
        lanes = []
        heads, before = idle[:width], [list[_Lane]() for _ in range(width)]
        for machine in rows:
            members = groups.pop(machine)
            strips = [
                _Lane(heads[at], members[at], self.links.between(heads[at], members[at]), 1, width, before[at])
                for at in range(width)
            ]
            lanes += strips
            for at, target in enumerate(members):
                lacks = width - 1 if at < width else width
                near = members[at - 1]
                lanes.append(_Lane(near, target, self.links.gather(target), lacks, width, strips))
            heads, before = members[:width], [[strip] for strip in strips]
        return lanes

    def _hop(self, source: int, target: int, after: Sequence[_Lane] = ()) -> _Lane:
        return _Lane(source, target, self.links.between(source, target), after=after)

    def _by_machine(self, targets: Iterable[int]) -> dict[int, list[int]]:
        groups: dict[int, list[int]] = {}
        for target in targets:
            groups.setdefault(self.links.machines[target], []).append(target)
        return groups

    def _size(self, lane: _Lane) -> int:
        """The bytes of the lane's next layer; over all layers they add up to its part of the weights, rounded down."""
        whole, layers = self.profile.weight_bytes * lane.part, self.profile.layers * lane.parts
        return whole * (lane.done + 1) // layers - whole * lane.done // layers

    def _may_start(self, lane: _Lane) -> bool:
        return lane.done < self.profile.layers and all(other.done > lane.done for other in lane.after)

    def _start(self, now_ns: int, lane: _Lane) -> list[FlowChange]:
        if not self._may_start(lane):
            return []
        lane.flow, changes = self.network.begin(now_ns, self._size(lane), lane.links)
        self._by_flow[lane.flow] = lane
        return changes

    def _stop(self, now_ns: int, lane: _Lane) -> list[FlowChange]:
        if lane.flow is None:
            return []
        del self._by_flow[lane.flow]
        changes = self.network.end(now_ns, lane.flow)
        lane.flow = None
        return changes

    def _give_up(self, now_ns: int, lane: _Lane) -> list[FlowChange]:
        """End a lane; what has come of a layer that is not complete will be sent again."""
        if lane.flow is not None:
            self.bytes_moved += self._size(lane) - round(self.network.bytes_left(now_ns, lane.flow))
        for other in lane.after:
            other.before.remove(lane)
        if lane.done < self.profile.layers:
            self._forget_source(lane)
        return self._stop(now_ns, lane)

    def _forget_source(self, lane: _Lane) -> None:
        if lane.source != FROM_STORAGE:
            others = self._sent[lane.source]
            others.remove(lane)
            if not others:
                del self._sent[lane.source]
