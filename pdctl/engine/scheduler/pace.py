"""The time that passes take on another machine: what `--pace` makes of this one (docs/simulate.md).

A pass is computed as always, and its results are held back until the cost profile's machine would have them. The rank
goes on with its turns meanwhile, but for choosing the next pass and for polling the other side, which SGLang does once
per pass too: it takes requests, aborts and questions, and sleeps between them.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from pdctl.layout.cost_profile import ATTO, DecodeCosts, PrefillCosts, read_profile

if TYPE_CHECKING:
    from pdctl.engine.model.parallel import Groups
    from pdctl.engine.scheduler.schedule_batch import Batch

log = logging.getLogger("pdctl.engine")

LONGEST_SLEEP = 1.0  # seconds; then the rank looks again
POLLED = 1e-3  # seconds: what is left below the resolution of a poll is slept through
LATE = 0.1  # share of its time by which a pass is late enough to be counted
LATE_SAID_EVERY = 10.0  # seconds


class PassPace:
    """One per rank; the ranks of a pass agree when it is over. Times are of `time.perf_counter`.

    A pass that follows at once begins when the one before was due. So however late this machine wakes a rank, or
    chooses a batch, the delays do not add up; but no more than one pass is made good.
    """

    def __init__(self, profile: str, groups: Groups) -> None:
        """Raise UsageError, or TopologyError, for a profile that cannot be read."""
        costs = read_profile(profile)
        self._name = profile
        self._prefill, self._decode = PrefillCosts.of(costs), DecodeCosts.of(costs)
        self._groups = (groups.replica, groups.attn_dp)
        self._leader = groups.replica.rank == 0
        self._due = self._cost = 0.0
        self._under_way = False
        self._passes = self._late = 0
        self._latest = self._said = 0.0
        self._next_turn_at = 0.0  # when the next turn is wanted

    @property
    def wait(self) -> float:
        """Seconds, at most, until the next turn is wanted; the pass may have been computed meanwhile."""
        return min(max(0.0, self._next_turn_at - time.perf_counter()), LONGEST_SLEEP)

    def seconds(self, batch: Batch) -> float:
        """Return what the pass takes on the profile's machine; `batch` has not been computed yet."""
        ends = [(part.extend, part.req.computed + part.extend) for part in batch.parts]
        if not ends:  # another group's pass
            return 0.0
        if batch.prefill:
            spent = self._prefill.of_passes(1, batch.tokens, sum(extend * end for extend, end in ends))
        else:
            spent = self._decode.of_step(len(ends), sum(end for _, end in ends))
        return spent / ATTO

    def begin(self, batch: Batch, follows: bool) -> None:
        """Take note that a pass begins now. `follows`: at once after the last one. Every rank of the pass calls it."""
        now = time.perf_counter()
        self._cost = self.seconds(batch)
        self._due = self._cost + (max(self._due, now - self._cost) if follows else now)
        self._under_way = True
        self._next_turn_at = self._due

    def holds(self, live: bool) -> bool:
        """Return whether the time of the pass is not over. `live`: somebody waits for its results; else it is over now.

        Collective: every rank of the pass calls this in the same turns.
        """
        if not self._under_way:
            return False
        left = self._due - time.perf_counter() if live else 0.0
        for group in self._groups:
            if group.size > 1:
                left = -group.min_ints([-max(0, round(left * 1e9))])[0] / 1e9
        if left > POLLED:
            self._next_turn_at = time.perf_counter() + left
            return True
        if left > 0:
            time.sleep(left)
        self._under_way = False
        if live:
            self._count_late(time.perf_counter() - self._due)
        return False

    def _count_late(self, late: float) -> None:
        """Say now and then that this machine does not keep the pace: what is measured then is not the profile's."""
        self._passes += 1
        if late <= LATE * self._cost:
            return
        self._late += 1
        self._latest = max(self._latest, late)
        now = time.monotonic()
        if self._leader and now >= self._said + LATE_SAID_EVERY:
            log.warning(
                "Pace %s: %d of %d passes ended late since the last such line, by up to %.1f ms: this machine is busy",
                *(self._name, self._late, self._passes, self._latest * 1e3),
            )
            self._said, self._passes, self._late, self._latest = now, 0, 0, 0.0
