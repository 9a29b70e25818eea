"""Max-min fair flows: against a solver that tries every step by brute force, by hand, and at scale."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from fractions import Fraction

import pytest

from pdctl.simulation.kernel import SECOND
from pdctl.simulation.network import Network
from tests.cases import for_each


def solve(capacity: Sequence[int], flows: Sequence[tuple[int, ...]]) -> list[Fraction]:
    """The max-min fair rates, in exact arithmetic: raise all rates together, stop those whose link is full."""
    rates: list[Fraction] = [Fraction(0)] * len(flows)
    rising = set(range(len(flows)))
    while rising:
        steps = []
        for link, most in enumerate(capacity):
            users = [flow for flow, links in enumerate(flows) if link in links]
            growing = [flow for flow in users if flow in rising]
            if growing:
                steps.append((most - sum((rates[flow] for flow in users), Fraction(0))) / len(growing))
        for flow in rising:
            rates[flow] += min(steps)
        full = {
            link
            for link, most in enumerate(capacity)
            if sum((rates[flow] for flow, links in enumerate(flows) if link in links), Fraction(0)) == most
        }
        rising = {flow for flow in rising if not full.intersection(flows[flow])}
    return rates


def random_links(dice: random.Random, many: int) -> tuple[int, ...]:
    return tuple(dice.sample(range(many), dice.randint(1, min(4, many))))


@for_each("seed", range(60))
def test_rates_are_those_of_a_brute_force_solver_after_every_begin_and_end(seed: int) -> None:
    dice = random.Random(seed)
    capacity = [dice.choice((1, 5, 100, 100, dice.randint(1, 10**6))) for _ in range(dice.randint(1, 12))]
    network = Network()
    for rate in capacity:
        network.add_link(rate)
    present: dict[int, tuple[int, ...]] = {}
    for step in range(80):
        if present and dice.random() < 0.4:
            flow = dice.choice(sorted(present))
            del present[flow]
            network.end(step, flow)
        else:
            links = random_links(dice, len(capacity))
            flow, _ = network.begin(step, 10**12, links)
            assert flow not in present
            present[flow] = links
        expected = solve(capacity, list(present.values()))
        assert [network.rate(flow) for flow in present] == pytest.approx([float(rate) for rate in expected], rel=1e-7)


@for_each("seed", range(4))
def test_a_long_chain_of_flows_is_mended_to_its_end(seed: int) -> None:
    """What each flow leaves the next one reaches far: more rounds than are tried around a change."""
    dice = random.Random(seed)
    capacity = [1000 + 100 * link + dice.randint(0, 50) for link in range(40)]
    network = Network()
    for rate in capacity:
        network.add_link(rate)
    flows = [(link, link + 1) for link in range(39)]
    numbers = [network.begin(0, 10**12, links)[0] for links in flows]
    extra, _ = network.begin(0, 10**12, (0,))
    expected = solve(capacity, [*flows, (0,)])
    assert [network.rate(each) for each in (*numbers, extra)] == pytest.approx([float(one) for one in expected])
    network.end(0, extra)
    assert [network.rate(each) for each in numbers] == pytest.approx([float(one) for one in solve(capacity, flows)])


def run_to_the_end(network: Network, begins: Sequence[tuple[int, int, tuple[int, ...]]]) -> list[int]:
    """When each flow ends that begins at (time, size, links)."""
    ends = [0] * len(begins)
    heap: list[tuple[int, int, int, int]] = [(at, -1, which, 0) for which, (at, _, _) in enumerate(begins)]
    heapq.heapify(heap)
    number: dict[int, int] = {}
    while heap:
        now, flow, version_or_which, version = heapq.heappop(heap)
        if flow == -1:
            _, size, links = begins[version_or_which]
            begun, changes = network.begin(now, size, links)
            number[begun] = version_or_which
        elif network.is_current(flow, version):
            ends[number[flow]] = now
            changes = network.end(now, flow)
        else:
            continue
        for change in changes:
            assert change.finish_ns >= now
            heapq.heappush(heap, (change.finish_ns, change.flow, 0, change.version))
    return ends


def test_two_flows_share_a_link_and_the_rest_is_faster_once_one_has_ended() -> None:
    network = Network()
    link = network.add_link(1000)
    # 0 to 1 s: the first alone, 1000 bytes. 1 to 3 s: 500 each, the second is done. Then 1000 again for 1 s.
    assert run_to_the_end(network, [(0, 3000, (link,)), (SECOND, 1000, (link,))]) == [4 * SECOND, 3 * SECOND]


def test_both_directions_of_a_nic_are_links_of_their_own() -> None:
    network = Network()
    out, into = network.add_link(1000), network.add_link(1000)
    assert run_to_the_end(network, [(0, 1000, (out,)), (0, 1000, (into,))]) == [SECOND, SECOND]


def test_a_flow_held_back_elsewhere_leaves_the_others_more() -> None:
    network = Network()
    narrow, wide = network.add_link(100), network.add_link(1000)
    slow, _ = network.begin(0, 10**9, (narrow, wide))
    fast, _ = network.begin(0, 10**9, (wide,))
    assert (network.rate(slow), network.rate(fast)) == (100, 900)


@for_each("seed", range(10))
def test_what_has_flowed_is_what_was_asked_for(seed: int) -> None:
    """The time for which a single busy link carries all flows is the sum of their bytes over its rate."""
    dice = random.Random(seed)
    network = Network()
    middle = network.add_link(10**9)
    sides = [network.add_link(dice.randint(10**9, 10**10)) for _ in range(20)]
    begins = [(0, dice.randint(1, 10**9), (side, middle)) for side in sides]
    ends = run_to_the_end(network, begins)
    assert abs(max(ends) - sum(size for _, size, _ in begins)) <= len(begins) ** 2  # ns: each end is rounded up
    assert network.flows_on(middle) == 0


def test_no_end_is_before_its_bytes_have_flowed() -> None:
    dice = random.Random("bytes")
    network = Network()
    links = [network.add_link(dice.randint(1, 10**9)) for _ in range(8)]
    present: list[int] = []
    now = 0
    for _ in range(500):
        now += dice.randint(0, 10**8)
        if present and dice.random() < 0.45:
            network.end(now, present.pop(dice.randrange(len(present))))
            continue
        flow, changes = network.begin(now, dice.randint(0, 10**8), tuple(dice.sample(links, 2)))
        present.append(flow)
        for change in changes:
            assert network.is_current(change.flow, change.version)
            assert network.bytes_left(change.finish_ns, change.flow) <= 1e-6 * network.rate(change.flow)


def test_a_number_that_is_used_again_has_another_version() -> None:
    network = Network()
    link = network.add_link(1000)
    flow, ((_, _, version),) = network.begin(0, 1000, (link,))
    network.end(5, flow)
    assert not network.is_current(flow, version)
    again, ((_, _, later),) = network.begin(6, 1000, (link,))
    assert again == flow
    assert not network.is_current(flow, version)
    assert network.is_current(again, later)


def test_a_flow_elsewhere_is_not_touched() -> None:
    network = Network()
    links = [network.add_link(1000) for _ in range(2000)]
    for link in links:
        network.begin(0, 10**9, (link,))
    _, changes = network.begin(0, 10**9, (links[7],))
    assert len(changes) == 2


@for_each("links", [(), (0, 0)])
def test_a_flow_needs_links_each_named_once(links: tuple[int, ...]) -> None:
    network = Network()
    network.add_link(1)
    with pytest.raises(ValueError, match="at least one link"):
        network.begin(0, 1, links)


@for_each("rate", [0, -1.0, float("nan")])
def test_a_link_needs_a_rate(rate: float) -> None:
    with pytest.raises(ValueError, match="would never end"):
        Network().add_link(rate)
