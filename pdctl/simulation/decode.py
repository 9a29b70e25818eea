"""The running batch of a simulated decode, in closed form: an event per change of the batch, and none per step.

Between two changes the rooms stay the same and each step has one token more of KV cache per room than the one before.
So steps grow evenly, and the end of the m-th is the sum of an arithmetic series. Costs are whole attoseconds, which
makes every sum exact; a time is rounded to nanoseconds where a step's end is asked for, and nowhere else.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from math import sqrt
from typing import TYPE_CHECKING

from pdctl.layout.cost_profile import ATTO_PER_NS
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.layout.cost_profile import DecodeCosts

MOST_STRETCHES = 4096  # kept before those that no room can ask for are dropped
FEWEST_FOR_99TH = 100  # of fewer gaps the longest is the 99th percentile


class Gaps(NamedTuple):
    """Between the tokens of a room, by stretch: the cost of the last step, which is the longest; growth and steps."""

    ends: list[int]
    stretches: list[tuple[int, int]]


class RetractedRoom(NamedTuple):
    """A room that lost its pages, with `tokens` and `left` more to come. `gap`: as in `join`, if no step has run since.

    `since_ns`: when it had its last token.
    """

    room: int
    tokens: int
    left: int
    since_ns: int
    gap: int


class RunningRooms:
    """`leaving`: the rooms of the batch, as a heap of (last step, room, stretches when it joined, gap).

    A stretch is the steps that ran without a change of the batch. `steps` counts all that have ended; a room leaves at
    a step that is known when it joins.
    """

    __slots__ = (
        *("_before", "_dropped", "_ends", "_first", "_growth", "_stretches", "_tokens"),
        *("began_ns", "costs", "leaving", "steps"),
    )

    def __init__(self, costs: DecodeCosts) -> None:
        self.costs = costs
        self.steps = 0
        self.began_ns = 0
        self.leaving: list[tuple[int, int, int, int]] = []
        self._ends: list[int] = []  # cost of the last step of each stretch, which is its longest
        self._stretches: list[tuple[int, int]] = []  # its growth per step, and steps
        self._dropped = 0  # stretches before those
        self._tokens = 0  # of KV cache that the next step reads
        self._first = 0  # cost of the first step since `began_ns`
        self._growth = 0
        self._before: dict[int, Gaps] = {}  # of rooms that were retracted

    def join(self, room: int, tokens: int, steps: int, gap: int = 0) -> None:
        """Between two steps; `tokens` of KV cache for the first of its `steps`. `begin` follows.

        `gap`: attoseconds from a token that it had before until now; they count with the first step.
        """
        heappush(self.leaving, (self.steps + steps, room, self._dropped + len(self._ends), gap))
        self._tokens += tokens

    def begin(self, now_ns: int) -> int:
        """Begin the steps of the batch as it is now. Return how many there are until the first room leaves."""
        rooms = len(self.leaving)
        costs = self.costs
        self.began_ns = now_ns
        self._first = costs.of_step(rooms, self._tokens)
        self._growth = costs.token * rooms
        return self.leaving[0][0] - self.steps

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

    def steps_at(self, time_ns: int) -> int:
        """All steps that have ended by then."""
        if not self.leaving or time_ns <= self.began_ns:
            return self.steps
        return self.steps + self.steps_by(time_ns + 1) - 1

    def advance(self, steps: int) -> None:
        """Let so many steps since `begin` have ended; no room may have left in between."""
        self.steps += steps
        self._tokens += steps * len(self.leaving)
        self._ends.append(self._first + self._growth * (steps - 1))
        self._stretches.append((self._growth, steps))
        if len(self._ends) > MOST_STRETCHES:
            self._drop_stretches()

    def leave(self, prompts: Sequence[int], outputs: Sequence[int]) -> list[tuple[int, int]]:
        """Take out each room whose last step has ended; return it with the 99th percentile of its gaps in ns."""
        leaving, steps, left = self.leaving, self.steps, []
        while leaving and leaving[0][0] == steps:
            _, room, joined, gap = heappop(leaving)
            output = outputs[room]
            self._tokens -= prompts[room] + output
            left.append((room, self._percentile(room, joined - self._dropped, output - 1, gap)))
        return left

    def retract(self, room: int, now_ns: int, prompt: int, output: int) -> RetractedRoom:
        """Take a room out between two steps."""
        entry = next(one for one in self.leaving if one[1] == room)
        self.leaving.remove(entry)
        heapify(self.leaving)
        last, _, joined, gap = entry
        left = last - self.steps
        tokens = prompt + output - left
        self._tokens -= tokens
        gaps = self._gaps(room, joined - self._dropped, gap)
        if gaps.ends:
            self._before[room] = gaps
        ran = self._dropped + len(self._ends) > joined
        return RetractedRoom(room, tokens, left, now_ns, 0 if ran else gap)

    def resume(self, one: RetractedRoom, now_ns: int) -> None:
        """Let it join again."""
        self.join(one.room, one.tokens, one.left, one.gap + (now_ns - one.since_ns) * ATTO_PER_NS)

    def _gaps(self, room: int, since: int, gap: int) -> Gaps:
        """Those in the stretches from the one at `since`, and those from before the room was retracted."""
        ends, found = self._ends[since:], self._stretches[since:]
        if gap and ends:  # the first step is one of its own
            growth, count = found[0]
            first = ends[0] - growth * (count - 1)
            ends[:1], found[:1] = [first + gap, ends[0]], [(0, 1), (growth, count - 1)]
            if count == 1:
                del ends[1], found[1]
        before = self._before.pop(room, None)
        return Gaps(before.ends + ends, before.stretches + found) if before else Gaps(ends, found)

    def _percentile(self, room: int, since: int, steps: int, gap: int) -> int:
        """The 99th percentile of `steps` gaps, exact.

        Of g gaps it is the one that g // 100 others are longer than: the nearest rank. The longest of a stretch is its
        last. So the longest of all are found by taking the longest end, and putting the step before it in its place.
        """
        rank = steps // FEWEST_FOR_99TH
        if not gap and not rank and not self._before:
            return max(self._ends[since:]) // ATTO_PER_NS
        ends, found = self._gaps(room, since, gap)
        least = sorted(ends)[-min(rank + 1, len(ends))]  # no step of the others is among those
        heap = [(-end, -growth, 1 - count) for end, (growth, count) in zip(ends, found, strict=True) if end >= least]
        heapify(heap)
        for _ in range(rank):
            end, growth, rest = heap[0]
            if rest:
                heapreplace(heap, (end - growth, growth, rest + 1))
            else:
                heappop(heap)
        return -heap[0][0] // ATTO_PER_NS

    def _drop_stretches(self) -> None:
        """Those from before the first room joined."""
        oldest = min((joined for _, _, joined, _ in self.leaving), default=self._dropped + len(self._ends))
        del self._ends[: oldest - self._dropped]
        del self._stretches[: oldest - self._dropped]
        self._dropped = oldest
