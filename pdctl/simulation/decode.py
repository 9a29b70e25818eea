"""The running batch of a simulated decode, in closed form: an event per change of the batch, and none per step.

Between two changes the rooms stay the same and each step has one token more of KV cache per room than the one before.
So steps grow evenly, and the end of the m-th is the sum of an arithmetic series. Costs are whole attoseconds, which
makes every sum exact; a time is rounded to nanoseconds where a step's end is asked for, and nowhere else.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from math import sqrt
from typing import TYPE_CHECKING

from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pdctl.simulation.cost_profile import CostProfile

ATTO = 10**18  # attoseconds of a second
ATTO_PER_NS = 10**9
MOST_STRETCHES = 4096  # kept before those that no room can ask for are dropped
FEWEST_FOR_99TH = 100  # of fewer gaps the longest is the 99th percentile


def attoseconds(seconds: float) -> int:
    return round(seconds * ATTO)


class DecodeCosts(NamedTuple):
    """Of one step, in attoseconds: however small, for each room, for each token of KV cache."""

    step: int
    room: int
    token: int

    @staticmethod
    def of(profile: CostProfile) -> DecodeCosts:
        return DecodeCosts(*map(attoseconds, (profile.decode_step_s, profile.decode_room_s, profile.decode_token_s)))


class RunningRooms:
    """`stretches`: steps that ran without a change of the batch, as (first step's cost, growth per step, steps).

    `steps` counts all that have ended; a room leaves at a step that is known when it joins.
    """

    __slots__ = (
        "_dropped",
        "_first",
        "_growth",
        "_leaving",
        "_tokens",
        "began_ns",
        "costs",
        "steps",
        "stretches",
    )

    def __init__(self, costs: DecodeCosts) -> None:
        self.costs = costs
        self.steps = 0
        self.began_ns = 0
        self.stretches: list[tuple[int, int, int]] = []
        self._dropped = 0  # stretches
        self._leaving: list[
            tuple[int, int, int, int]
        ] = []  # a heap of (last step, room, stretches when it joined, gap)
        self._tokens = 0
        self._first = 0  # cost of the first step since `began_ns`
        self._growth = 0

    def __len__(self) -> int:
        return len(self._leaving)

    @property
    def tokens(self) -> int:
        """Tokens of KV cache that the next step reads."""
        return self._tokens

    @property
    def rooms(self) -> Iterator[int]:
        return (room for _, room, _, _ in self._leaving)

    def join(self, room: int, tokens: int, steps: int, gap: int = 0) -> None:
        """Between two steps; `tokens` of KV cache for the first of its `steps`. `begin` follows.

        `gap`: attoseconds from a token that it had before until now; they count with the first step.
        """
        heappush(self._leaving, (self.steps + steps, room, self._dropped + len(self.stretches), gap))
        self._tokens += tokens

    def begin(self, now_ns: int) -> int:
        """Begin the steps of the batch as it is now. Return how many there are until the first room leaves."""
        rooms = len(self._leaving)
        costs = self.costs
        self.began_ns = now_ns
        self._first = costs.step + costs.room * rooms + costs.token * self._tokens
        self._growth = costs.token * rooms
        return self._leaving[0][0] - self.steps

    def end_of(self, steps: int) -> int:
        """When so many steps since `begin` have ended."""
        return self.began_ns + (steps * self._first + self._growth * (steps * (steps - 1) // 2)) // ATTO_PER_NS

    def steps_by(self, time_ns: int) -> int:
        """The fewest steps since `begin`, at least one, that end at that time or after."""
        wanted = (time_ns - self.began_ns) * ATTO_PER_NS
        if wanted <= self._first:
            steps = 1
        else:  # the root of growth/2·m² + (first - growth/2)·m = wanted, in the form that loses no digits
            linear = self._first - self._growth / 2
            steps = max(1, int(2 * wanted / (linear + sqrt(linear * linear + 2 * self._growth * wanted))))
        while self.end_of(steps) < time_ns:
            steps += 1
        while steps > 1 and self.end_of(steps - 1) >= time_ns:
            steps -= 1
        return steps

    def advance(self, steps: int) -> None:
        """Let so many steps since `begin` have ended; no room may have left in between."""
        self.steps += steps
        self._tokens += steps * len(self._leaving)
        self.stretches.append((self._first, self._growth, steps))
        if len(self.stretches) > MOST_STRETCHES:
            self._drop_stretches()

    def leave(self, prompts: Sequence[int], outputs: Sequence[int]) -> list[tuple[int, int]]:
        """Take out each room whose last step has ended; return it with the 99th percentile of its gaps in ns."""
        leaving, steps, left = self._leaving, self.steps, []
        while leaving and leaving[0][0] == steps:
            _, room, joined, gap = heappop(leaving)
            self._tokens -= prompts[room] + outputs[room]
            left.append((room, self._percentile(joined - self._dropped, gap)))
        return left

    def _percentile(self, since: int, gap: int) -> int:
        """The 99th percentile of the steps in the stretches from the one at `since`, exact: that of the r-th longest.

        The longest of a stretch is its last. So the r longest of all are found by taking, r times, the longest of the
        stretches' ends, and putting the step before it in its place.
        """
        found = self.stretches[since:]
        if gap:
            first, growth, count = found[0]
            found[:1] = [(first + gap, 0, 1), *([(first + growth, growth, count - 1)] if count > 1 else [])]
        if len(found) == 1:
            first, growth, count = found[0]
            return (first + growth * (count - 1 - count // FEWEST_FOR_99TH)) // ATTO_PER_NS
        ends = [first + growth * (count - 1) for first, growth, count in found]
        total = sum([count for _, _, count in found])
        rank = total // FEWEST_FOR_99TH  # so many are longer: the nearest rank, ceil(0.99 × total), from the other end
        if not rank:
            return max(ends) // ATTO_PER_NS
        heap = [(-end, -growth, 1 - count) for end, (_, growth, count) in zip(ends, found, strict=True)]
        heapify(heap)
        for _ in range(rank):
            end, growth, rest = heap[0]
            if rest:
                heapreplace(heap, (end - growth, growth, rest + 1))
            else:
                heappop(heap)
        return -heap[0][0] // ATTO_PER_NS

    def _drop_stretches(self) -> None:
        oldest = min((joined for _, _, joined, _ in self._leaving), default=self._dropped + len(self.stretches))
        del self.stretches[: oldest - self._dropped]
        self._dropped = oldest
