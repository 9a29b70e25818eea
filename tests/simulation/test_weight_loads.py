"""When weights are there: every plan by hand, and any mix of loads, losses and KV cache to its end."""

from __future__ import annotations

import dataclasses
import heapq
import random
from collections.abc import Sequence

from pdctl.layout.cost_profile import CostProfile, read_profile
from pdctl.simulation.kernel import SECOND
from pdctl.simulation.network import FlowChange, Network
from pdctl.simulation.weight_loads import FleetLinks, LoadPlan, WeightLoads
from tests.cases import for_each

# 10 layers of 100 bytes; a NIC brings one in 1 s, NVLink in 0.1 s, a disk in 2 s, host memory in 0.5 s.
SMALL = dataclasses.replace(
    read_profile("gpu-8b"), layers=10, weight_bytes=1000, nic_bytes_per_s=100.0, nvlink_bytes_per_s=1000.0,
    disk_bytes_per_s=50.0, host_bytes_per_s=200.0,
)  # fmt: skip


class Fleet:
    """A network with loads, driven by a heap of the ends of flows."""

    def __init__(self, plan: str, machines: Sequence[int], profile: CostProfile = SMALL) -> None:
        self.network = Network()
        self.links = FleetLinks(self.network, profile, machines)
        self.loads = WeightLoads(self.links, LoadPlan(plan))
        self.heap: list[FlowChange] = []
        self.now = 0
        self.ready: dict[int, list[int]] = {}  # replica → when each layer was there
        self.kv: set[int] = set()

    def push(self, changes: Sequence[FlowChange]) -> None:
        for change in changes:
            heapq.heappush(self.heap, change)

    def begin(self, targets: Sequence[int], sources: Sequence[int]) -> None:
        progress = self.loads.begin(self.now, targets, sources)
        self.push(progress.changes)
        self.note(progress.layers)

    def note(self, layers: Sequence[tuple[int, int]]) -> None:
        for replica, count in layers:
            times = self.ready.setdefault(replica, [])
            assert count > len(times), "layers only become more"
            times.extend([self.now] * (count - len(times)))

    def send_kv(self, size: int, source: int, target: int) -> None:
        flow, changes = self.network.begin(self.now, size, self.links.between(source, target))
        self.kv.add(flow)
        self.push(changes)

    def step(self) -> bool:
        if not self.heap:
            return False
        finish, flow, version = heapq.heappop(self.heap)
        if not self.network.is_current(flow, version):
            return True
        self.now = finish
        if self.loads.owns(flow):
            progress = self.loads.end_flow(finish, flow)
            self.push(progress.changes)
            self.note(progress.layers)
        else:
            self.kv.remove(flow)
            self.push(self.network.end(finish, flow))
        return True

    def run(self) -> dict[int, list[float]]:
        """To the end; when each replica had each layer, in seconds to the millisecond."""
        while self.step():
            pass
        assert not self.kv
        assert not any(self.loads.is_sending(replica) for replica in range(len(self.links.machines)))
        return {replica: [round(at / SECOND, 3) for at in times] for replica, times in self.ready.items()}


def every(step: float, first: float = 0.0) -> list[float]:
    return [round(first + step * (at + 1), 3) for at in range(10)]


def test_from_a_peer_each_layer_is_there_after_its_time() -> None:
    fleet = Fleet("peer", [0, 1])
    fleet.begin([1], [0])
    assert fleet.loads.is_sending(0)
    assert fleet.run() == {1: every(1.0)}


def test_two_that_load_from_one_peer_share_its_nic_and_two_peers_do_not() -> None:
    fleet = Fleet("peer", [0, 1, 2])
    fleet.begin([1, 2], [0])
    assert fleet.run() == {1: every(2.0), 2: every(2.0)}
    fleet = Fleet("peer", [0, 1, 2, 3])
    fleet.begin([2, 3], [0, 1])
    assert fleet.run() == {2: every(1.0), 3: every(1.0)}


def test_within_a_machine_weights_go_over_nvlink() -> None:
    fleet = Fleet("peer", [0, 1, 1])
    fleet.begin([2], [0, 1])
    assert fleet.run() == {2: every(0.1)}
    assert not fleet.network.flows_on(fleet.links.into[2])


def test_in_a_chain_each_is_one_layer_behind_the_one_before() -> None:
    fleet = Fleet("chain", [0, 1, 2, 3])
    fleet.begin([1, 2, 3], [0])
    assert fleet.run() == {1: every(1.0), 2: every(1.0, 1.0), 3: every(1.0, 2.0)}


def test_each_idle_source_has_a_chain_of_its_own() -> None:
    fleet = Fleet("chain", [0, 1, 2, 3])
    fleet.begin([2, 3], [0, 1])
    assert fleet.run() == {2: every(1.0), 3: every(1.0)}
    fleet = Fleet("chain", [0, 1, 2, 3])
    fleet.begin([2], [0, 1])
    fleet.begin([3], [0, 1])  # 0 is sending
    assert fleet.run() == {2: every(1.0), 3: every(1.0)}


def test_a_chain_goes_on_over_nvlink_within_a_machine() -> None:
    fleet = Fleet("chain", [0, 1, 1])
    fleet.begin([1, 2], [0])
    assert fleet.run() == {1: every(1.0), 2: every(1.0, 0.1)}


def test_strips_bring_each_layer_in_its_share_of_the_time_and_the_exchange() -> None:
    """Two lanes: half a layer over each NIC in 0.5 s, the other half over NVLink in 0.05 s."""
    fleet = Fleet("strips", [0, 1, 2, 2])
    fleet.begin([2, 3], [0, 1])
    assert fleet.run() == {2: every(0.5, 0.05), 3: every(0.5, 0.05)}
    assert fleet.loads.bytes_moved == 2 * 1000


def test_strips_reach_the_next_machine_one_layer_later_and_a_third_replica_wholly_over_nvlink() -> None:
    fleet = Fleet("strips", [0, 1, 2, 2, 3, 3, 3])
    fleet.begin([2, 3, 4, 5, 6], [0, 1])
    ready = fleet.run()
    assert ready[2] == ready[3] == every(0.5, 0.05)
    assert ready[4] == ready[5] == every(0.5, 0.55)
    assert ready[6] == every(0.5, 0.6), "a whole layer: 0.1 s"


@for_each("machines, sources, profile", [
    ([0, 2, 2], [0], SMALL),  # one source
    ([0, 1, 2, 3], [0, 1], SMALL),  # no two on one machine
    ([0, 1, 2, 2], [0, 1], dataclasses.replace(SMALL, nvlink_bytes_per_s=0.0)),
])  # fmt: skip
def test_without_two_lanes_strips_are_a_chain(machines: list[int], sources: list[int], profile: CostProfile) -> None:
    targets = [one for one in range(len(machines)) if one not in sources]
    ready = []
    for plan in ("strips", "chain"):
        fleet = Fleet(plan, machines, profile)
        fleet.begin(targets, sources)
        ready.append(fleet.run())
    assert ready[0] == ready[1]


def test_replicas_that_load_from_one_disk_share_it() -> None:
    fleet = Fleet("disk", [0, 0, 1])
    fleet.begin([0, 1, 2], [])
    assert fleet.run() == {0: every(4.0), 1: every(4.0), 2: every(2.0)}


def test_host_memory_keeps_the_weights_for_thirty_seconds_after_their_last_use() -> None:
    fleet = Fleet("host", [0, 0, 1])
    fleet.begin([1, 2], [0])  # machine 0 uses them
    assert fleet.run() == {1: every(0.5), 2: every(2.0)}
    assert (fleet.loads.host_hits, fleet.loads.host_misses) == (1, 1)
    for later, hits in ((30 * SECOND, 1), (30 * SECOND + 1, 0)):
        fleet = Fleet("host", [0, 0, 1])
        fleet.loads.keep_warm(0, 2)
        fleet.now = later
        fleet.begin([2], [])
        assert fleet.loads.host_hits == hits


def test_what_was_loaded_from_disk_is_in_host_memory_then() -> None:
    fleet = Fleet("host", [0, 0])
    fleet.begin([0], [])
    fleet.run()
    fleet.begin([1], [])
    assert [round(at - fleet.ready[0][-1] / SECOND, 3) for at in fleet.run()[1]] == every(0.5)


def test_without_any_source_peers_load_from_storage() -> None:
    for plan in ("peer", "chain", "strips", "live"):
        fleet = Fleet(plan, [0, 1])
        fleet.begin([1], [])
        assert fleet.run() == {1: every(2.0)}


def test_instant_is_at_once() -> None:
    fleet = Fleet("instant", [0])
    fleet.begin([0], [])
    assert fleet.ready == {0: [0] * 10}


def test_weights_and_kv_cache_share_a_nic() -> None:
    fleet = Fleet("peer", [0, 1, 2])
    fleet.send_kv(250, 0, 2)  # until 5 s at half the rate
    fleet.begin([1], [0])
    assert fleet.run()[1] == [2.0, 4.0, *(5.5 + at for at in range(8))]


def test_a_load_whose_source_is_lost_goes_on_from_another_at_the_layer_it_has() -> None:
    fleet = Fleet("chain", [0, 1, 2, 3])
    fleet.begin([1, 2], [0])
    while fleet.loads.layers(2) < 3:
        fleet.step()
    progress = fleet.loads.lose(fleet.now, 0)
    assert progress.lost == (1, 2), "what hangs on it hangs in the air too"
    assert (fleet.loads.layers(1), fleet.loads.layers(2)) == (4, 3)
    fleet.push(progress.changes)
    fleet.begin(progress.lost, [3])
    ready = fleet.run()
    assert ready[1] == every(1.0)
    assert ready[2][-1] == 11.0


@for_each("plan", list(LoadPlan))
@for_each("seed", range(6))
def test_any_mix_of_loads_losses_and_kv_cache_comes_to_its_end(plan: LoadPlan, seed: int) -> None:
    dice = random.Random(f"{plan.value}/{seed}")
    machines = [dice.randrange(6) for _ in range(20)]
    profile = dataclasses.replace(SMALL, weight_bytes=997, nvlink_bytes_per_s=dice.choice((0.0, 1000.0)))
    fleet = Fleet(plan.value, machines, profile)
    loaded, loading, empty = {0, 1, 2}, set[int](), set(range(3, 20))
    for _ in range(400):
        kind = dice.random()
        if kind < 0.1 and empty:
            targets = dice.sample(sorted(empty), min(len(empty), dice.randint(1, 6)))
            fleet.begin(targets, sorted(loaded))
            empty.difference_update(targets)
            loading.update(targets)
        elif kind < 0.2 and (loaded | loading):
            gone = dice.choice(sorted(loaded | loading))
            progress = fleet.loads.lose(fleet.now, gone)
            assert set(progress.lost) <= loading - {gone}
            loaded.discard(gone)
            loading.discard(gone)
            empty.add(gone)
            fleet.ready.pop(gone, None)
            fleet.push(progress.changes)
            fleet.begin(progress.lost, sorted(loaded))
        elif kind < 0.3:
            source, target = dice.sample(range(20), 2)
            fleet.send_kv(dice.randint(1, 400), source, target)
        else:
            fleet.step()
        finished = {one for one in loading if len(fleet.ready.get(one, ())) == 10}
        loading -= finished
        loaded |= finished
    fleet.run()
    assert {one for one, times in fleet.ready.items() if len(times) < 10} == set(), "each has all its layers"
    assert loading <= set(fleet.ready)
    assert not any(fleet.network.flows_on(link) for link in (*fleet.links.into, *fleet.links.out_of))


def test_bytes_moved_are_the_weights_of_each_replica() -> None:
    for plan in ("disk", "host", "peer", "chain", "strips", "live", "instant"):
        fleet = Fleet(plan, [0, 1, 2, 2, 3, 3], dataclasses.replace(SMALL, weight_bytes=12340))
        fleet.begin([2, 3, 4, 5], [0, 1])
        fleet.run()
        assert fleet.loads.bytes_moved == 4 * 12340, plan
