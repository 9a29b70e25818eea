"""The passes of a simulated prefill: what goes into the next one, and how long it takes.

As in the embedded engine (`engine/scheduler/schedule_batch.py WaitingQueue`) a pass takes whole prompts in the order of
their arrival until its tokens are used up; the last one is cut at the end of a block, and goes on first in the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.layout.cost_profile import ATTO_PER_NS
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Sequence

    from pdctl.layout.cost_profile import PrefillCosts


class PromptBatch(NamedTuple):
    """Whole prompts that are computed together: the tokens that are not in the prefix cache, and what they take."""

    rooms: list[int]
    tokens: int
    spent_ns: int


class PromptPasses:
    """`queue` may be one that all prefills of a fleet share.

    `parts` are those of the pass under way, empty if none is: (room, tokens of its prompt before, tokens in the pass,
    whether the prompt is complete with them). `tokens` and `spent_ns` are what it computes and takes in all: they count
    together when it ends, so that a rate is right however short the time it is measured over.

    `start` is asked for each room that begins: it gives the tokens found in the prefix cache, or -1 if there is no
    memory for the room yet.
    """

    __slots__ = ("_cut", "costs", "parts", "queue", "spent_ns", "tokens")

    def __init__(self, costs: PrefillCosts, queue: deque[int]) -> None:
        self.costs = costs
        self.queue = queue
        self.parts: list[tuple[int, int, int, bool]] = []
        self.tokens = self.spent_ns = 0
        self._cut: tuple[int, int] | None = None  # the room that goes on in the next pass, and its tokens so far

    @property
    def waiting(self) -> bool:
        return bool(self.queue) or self._cut is not None

    def begin(self, prompts: Sequence[int], start: Callable[[int], int], takes_new: bool) -> int:
        """Fill `parts` with the next pass. Return its duration in ns, 0 if there is nothing to compute."""
        costs, queue, parts = self.costs, self.queue, self.parts
        budget, places, pairs = costs.batch_tokens, costs.batch_rooms, 0
        while budget > 0 and places > 0:
            if self._cut is not None:
                room, computed = self._cut
            elif takes_new and queue:
                room = queue[0]
                computed = start(room)
                if computed < 0:
                    break
                queue.popleft()
            else:
                break
            tokens = prompts[room] - computed
            if tokens <= budget:
                self._cut = None
                parts.append((room, computed, tokens, True))
            else:
                tokens = budget - budget % costs.block_tokens
                if not tokens and not parts:
                    tokens = budget  # a pass of less than a block
                self._cut = (room, computed + tokens)
                if tokens:
                    parts.append((room, computed, tokens, False))
            pairs += tokens * (computed + tokens)
            budget -= tokens
            places -= 1
            if self._cut is not None:
                break
        if not parts:
            return 0
        self.tokens = costs.batch_tokens - budget
        self.spent_ns = costs.of_passes(1, self.tokens, pairs) // ATTO_PER_NS
        return self.spent_ns

    def take_whole(self, prompts: Sequence[int], start: Callable[[int], int]) -> PromptBatch:
        """Take whole prompts out of the queue, at least one however long."""
        costs, queue, rooms = self.costs, self.queue, list[int]()
        tokens = pairs = 0
        while queue and len(rooms) < costs.batch_rooms:
            room = queue[0]
            if rooms and tokens + prompts[room] > costs.batch_tokens:
                break
            cached = start(room)
            if cached < 0:
                break
            queue.popleft()
            rooms.append(room)
            tokens += prompts[room] - cached
            pairs += (prompts[room] - cached) * prompts[room]
        steps = -(-tokens // costs.batch_tokens)
        spent = costs.of_passes(steps, tokens, pairs) // ATTO_PER_NS
        return PromptBatch(rooms, tokens, spent)
