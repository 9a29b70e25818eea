"""Flows over links, shared max-min fair: what KV cache and weights take to arrive where both want the same links.

A link is one direction of a NIC, a disk, or whatever else has a rate; a flow uses each of its links at the same rate.
Rates are max-min fair if each flow has a bottleneck: a link that is full and on which no flow is faster. Only one set
of rates is. So when a flow begins or ends, rates are mended around it until each flow has its bottleneck again, and
what is far away is never looked at.

    flow, changes = network.begin(now_ns, size_bytes, (out_of_a, into_b))
    for finish_ns, each, version in changes:
        heappush(heap, (finish_ns, ..., each, version))
    ...
    if network.is_current(flow, version):
        changes = network.end(now_ns, flow)

A flow's number is used again after its end; its version never is.
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING

from pdctl.quick_definitions import NamedTuple
from pdctl.simulation.kernel import SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

SLACK = 1e-9  # relative: rates closer than that are the same, and a link that near to its rate is full
LOCAL_ROUNDS = 12  # of mending around a change; then all that is connected is shared out anew
NONE_ON = -1


class FlowChange(NamedTuple):
    """When a flow will finish, unless another change comes first. What an earlier version said is void."""

    finish_ns: int
    flow: int
    version: int


class Network:
    """Rates are bytes per second, times integer nanoseconds of a clock that never goes back."""

    def __init__(self) -> None:
        self._capacity: list[float] = []  # by link
        self._flows_on: list[dict[int, None]] = []  # by link, in the order of their begin
        # By flow; a free number has no links.
        self._links: list[tuple[int, ...]] = []
        self._rate: list[float] = []
        self._bottleneck: list[int] = []
        self._left: list[float] = []  # bytes, at `_since`
        self._since: list[int] = []
        self._version: list[int] = []
        self._free: list[int] = []

    def add_link(self, bytes_per_s: float) -> int:
        if not bytes_per_s > 0:
            raise ValueError(f"a link of {bytes_per_s} bytes/s would never end a flow")
        self._capacity.append(float(bytes_per_s))
        self._flows_on.append({})
        return len(self._capacity) - 1

    def begin(self, now_ns: int, size_bytes: int, links: Sequence[int]) -> tuple[int, list[FlowChange]]:
        """Begin a flow over `links`, each named once; return its number, and the flows whose end moved, itself too."""
        flow = self._number(now_ns, size_bytes, tuple(links))
        capacity, flows_on = self._capacity, self._flows_on
        alone, rate, bottleneck = True, 0.0, NONE_ON
        for link in links:
            here = flows_on[link]
            if here:
                alone = False
            here[flow] = None
            if bottleneck == NONE_ON or capacity[link] < rate:
                rate, bottleneck = capacity[link], link
        if alone:
            self._rate[flow], self._bottleneck[flow] = rate, bottleneck
            finish = now_ns + _duration_ns(size_bytes, rate)
            return flow, [FlowChange(finish, flow, self._version[flow])]
        mine = set(links)
        affected = {flow: None}
        for link in links:
            affected.update((each, None) for each in flows_on[link] if self._bottleneck[each] in mine)
        return flow, self._share_out(now_ns, affected)

    def end(self, now_ns: int, flow: int) -> list[FlowChange]:
        """Take a flow out, finished or not. Return the flows whose end has moved."""
        links = self._links[flow]
        self._links[flow] = ()
        self._version[flow] += 1
        self._free.append(flow)
        affected: dict[int, None] = {}
        for link in links:
            here = self._flows_on[link]
            del here[flow]
            affected.update((each, None) for each in here if self._bottleneck[each] == link)
        return self._share_out(now_ns, affected) if affected else []

    def refill(self, now_ns: int, flow: int, size_bytes: int) -> FlowChange:
        """Let a flow whose bytes have all arrived go on with others, over the same links: no rate changes."""
        self._left[flow], self._since[flow] = float(size_bytes), now_ns
        self._version[flow] += 1
        return FlowChange(now_ns + _duration_ns(size_bytes, self._rate[flow]), flow, self._version[flow])

    def is_current(self, flow: int, version: int) -> bool:
        """Whether nothing has changed for the flow since it got `version`."""
        return self._version[flow] == version

    def rate(self, flow: int) -> float:
        return self._rate[flow]

    def bytes_left(self, now_ns: int, flow: int) -> float:
        return max(0.0, self._left[flow] - self._rate[flow] * (now_ns - self._since[flow]) / SECOND)

    def flows_on(self, link: int) -> int:
        return len(self._flows_on[link])

    def _number(self, now_ns: int, size_bytes: int, links: tuple[int, ...]) -> int:
        if not links or len(set(links)) < len(links):
            raise ValueError(f"a flow takes at least one link, each once, not {links}")
        if self._free:
            flow = self._free.pop()
            self._links[flow], self._left[flow], self._since[flow] = links, float(size_bytes), now_ns
            self._rate[flow], self._bottleneck[flow] = 0.0, NONE_ON
            self._version[flow] += 1
            return flow
        self._links.append(links)
        self._rate.append(0.0)
        self._bottleneck.append(NONE_ON)
        self._left.append(float(size_bytes))
        self._since.append(now_ns)
        self._version.append(0)
        return len(self._links) - 1

    def _share_out(self, now_ns: int, affected: dict[int, None]) -> list[FlowChange]:
        """Give the affected flows new rates, and whichever others lose their bottleneck by that."""
        for attempt in range(LOCAL_ROUNDS + 1):
            if attempt == LOCAL_ROUNDS:
                self._add_connected(affected)
            rates, loads = self._fill(affected)
            more = self._without_bottleneck(affected, rates, loads)
            if not more:
                break
            affected.update(more)
        return self._adopt(now_ns, rates)

    def _fill(self, affected: dict[int, None]) -> tuple[dict[int, tuple[float, int]], dict[int, tuple[float, float]]]:
        """Fill the links of the affected flows progressively with these; all others keep their rates.

        Return the rate and bottleneck of each, and the new load and fastest unaffected flow of each link they use.
        """
        links_of, rate_of = self._links, self._rate
        counts: dict[int, int] = {}
        for flow in affected:
            for link in links_of[flow]:
                counts[link] = counts.get(link, 0) + 1
        room: dict[int, float] = {}
        fastest: dict[int, float] = {}
        for link, count in counts.items():
            taken = top = 0.0
            here = self._flows_on[link]
            if count < len(here):
                for flow in here:
                    if flow not in affected:
                        rate = rate_of[flow]
                        taken += rate
                        top = rate if rate > top else top
            room[link] = max(0.0, self._capacity[link] - taken)
            fastest[link] = top
        found: dict[int, tuple[float, int]] = {}
        heap = [(room[link] / count, link) for link, count in counts.items()]
        heapify(heap)
        while heap:
            share, link = heap[0]
            count = counts[link]
            if not count:
                heappop(heap)
                continue
            now = room[link] / count
            if now > share:  # flows that were held back elsewhere have left it more
                heapreplace(heap, (now, link))
                continue
            heappop(heap)
            held = (share, link)
            for flow in self._flows_on[link]:
                if flow in affected and flow not in found:
                    found[flow] = held
                    for other in links_of[flow]:
                        counts[other] -= 1
                        rest = room[other] - share
                        room[other] = rest if rest > 0.0 else 0.0
            counts[link] = 0
        loads = {link: (self._capacity[link] - room[link], fastest[link]) for link in room}
        return found, loads

    def _without_bottleneck(
        self,
        affected: dict[int, None],
        rates: dict[int, tuple[float, int]],
        loads: dict[int, tuple[float, float]],
    ) -> dict[int, None]:
        """The unaffected flows that would have no bottleneck, or that take from an affected one's bottleneck."""
        slowest: dict[int, float] = {}  # by link, of the flows it holds back
        quickest: dict[int, float] = {}  # by link, of the affected flows
        for flow, (rate, bottleneck) in rates.items():
            if rate < slowest.get(bottleneck, rate + 1):
                slowest[bottleneck] = rate
            for link in self._links[flow]:
                if rate > quickest.get(link, 0.0):
                    quickest[link] = rate
        more: dict[int, None] = {}
        for link, (load, fastest) in loads.items():
            held_back = slowest.get(link)
            if not fastest:
                continue
            too_fast = held_back is not None and fastest > held_back * (1 + SLACK)
            open_now = load < self._capacity[link] * (1 - SLACK)
            top = max(fastest, quickest.get(link, 0.0)) * (1 - SLACK)
            for flow in self._flows_on[link]:
                if flow in affected:
                    continue
                rate = self._rate[flow]
                holds = self._bottleneck[flow] != link or not (open_now or rate < top)
                if not holds or (too_fast and held_back is not None and rate > held_back * (1 + SLACK)):
                    more[flow] = None
        return more

    def _add_connected(self, affected: dict[int, None]) -> None:
        """Add every flow that shares a link with an affected one, or with one that is added."""
        seen: set[int] = set()
        waiting = list(affected)
        for flow in waiting:
            for link in self._links[flow]:
                if link not in seen:
                    seen.add(link)
                    waiting.extend(each for each in self._flows_on[link] if each not in affected)
                    affected.update(self._flows_on[link])

    def _adopt(self, now_ns: int, rates: dict[int, tuple[float, int]]) -> list[FlowChange]:
        # As `bytes_left` and `_duration_ns`, written out: of many flows on one link each begin and end moves all ends.
        changes = []
        rate_of, left_of, since_of, version_of = self._rate, self._left, self._since, self._version
        for flow, (rate, bottleneck) in rates.items():
            before = rate_of[flow]
            self._bottleneck[flow] = bottleneck
            if -SLACK * before <= rate - before <= SLACK * before:
                continue
            left = left_of[flow]
            if before:  # the version of a flow that begins is new already
                left -= before * (now_ns - since_of[flow]) / SECOND
                left = left if left > 0.0 else 0.0
                left_of[flow] = left
                version_of[flow] += 1
            since_of[flow], rate_of[flow] = now_ns, rate
            exact = left * SECOND / rate
            whole = int(exact)
            changes.append(FlowChange(now_ns + (whole if whole == exact else whole + 1), flow, version_of[flow]))
        return changes


def _duration_ns(size: float, rate: float) -> int:
    """Rounded up: at the time said nothing is left."""
    exact = size * SECOND / rate
    whole = int(exact)
    return whole if whole == exact else whole + 1
