"""When each operation on a modelled link is through: events in time, no thread and no clock of its own.

Operations that are on the wire together share it evenly, as flows on a network do. With k lanes and n equal operations
of b bytes that gives ceil(n / k) * op + n * b / rate: only the cost per operation divides by k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pdctl.engine.drill.modelled_link import Link, Window


class Stage(Enum):
    """What an operation is at."""

    QUEUED = "waits for a lane"
    PREPARED = "is prepared"
    MOVING = "is on the wire"
    FLYING = "has left, and nobody knows yet that it arrived"
    ARRIVED = "has arrived"
    LOST = "the link went down under it"


OVER = frozenset({Stage.ARRIVED, Stage.LOST})
HOLDS_LANE = frozenset({Stage.PREPARED, Stage.MOVING, Stage.FLYING})
TIMED = frozenset({Stage.PREPARED, Stage.FLYING})


@dataclass(slots=True, eq=False)
class Passage:
    """One operation. `until`: the end of a timed stage; `left`: bytes still to move; `late`: what losses cost it."""

    left: float
    preparation: float
    late: float
    stage: Stage = Stage.QUEUED
    until: float = 0.0

    @property
    def over(self) -> bool:
        return self.stage in OVER


class Shutter:
    """Shut for a window's length at the end of each of its periods, counted from `start`."""

    def __init__(self, window: Window | None, start: float) -> None:
        self._window = window
        self._start = start
        self._turns = 1
        self.shut = False
        self.edge = start + window.every if window else math.inf  # when it opens or shuts next

    def turn(self) -> None:
        if self._window is None:
            return
        self.shut = not self.shut
        if not self.shut:
            self._turns += 1
        # From whole periods, never from the last edge: errors of rounding must not add up.
        self.edge = self._start + self._turns * self._window.every + (self._window.length if self.shut else 0.0)

    def skip(self, now: float) -> None:
        """Go to the last period that began before `now`: after an idle night there is no need to turn through it."""
        if self._window is not None and self.edge + self._window.every < now:
            self._turns = max(1, int((now - self._start) // self._window.every))
            self.shut, self.edge = False, self._start + self._turns * self._window.every


class Wire:
    """Times are seconds of any one clock that does not go back; `now` is where the model stands."""

    def __init__(self, link: Link, now: float) -> None:
        self._link = link
        self.now = now
        self._random = np.random.default_rng(link.seed)
        self._passages: list[Passage] = []  # in the order they began; none of them over
        self._stall = Shutter(link.stall, now)
        self._flap = Shutter(link.flap, now)

    def begin(self, nbytes: int, descriptors: int, now: float) -> Passage:
        link = self._link
        packets = -(-nbytes // link.mtu)
        lost = int(self._random.binomial(packets, link.loss)) if link.loss else 0
        made = Passage(
            left=float(nbytes + lost * link.mtu),
            preparation=link.op + descriptors * link.descriptor,
            late=link.latency + lost * link.retransmit,
        )
        self.advance(now)
        self._passages.append(made)
        self._settle()
        return made

    def cancel(self, passage: Passage) -> None:
        """Its bytes leave the wire to the others."""
        if not passage.over:
            passage.stage = Stage.LOST
        self._settle()

    def advance(self, now: float) -> None:
        """Let everything happen that happens until `now`."""
        if not self._passages:
            self._stall.skip(now)
            self._flap.skip(now)
        while (event := self._next()) <= now:
            self._move(event)
            self._fire()
        self._move(max(now, self.now))

    @property
    def due(self) -> float:
        """When something changes next, if nothing else begins; infinite when nothing is under way."""
        return self._next() if self._passages else math.inf

    def _next(self) -> float:
        times = [self._stall.edge, self._flap.edge, self._first_through()]
        times += [passage.until for passage in self._passages if passage.stage in TIMED]
        return max(min(times), self.now)

    def _first_through(self) -> float:
        moving = self._moving()
        if not moving or self._stall.shut:
            return math.inf
        return self.now + min(passage.left for passage in moving) * len(moving) / self._link.rate

    def _moving(self) -> list[Passage]:
        return [passage for passage in self._passages if passage.stage == Stage.MOVING]

    def _move(self, to: float) -> None:
        """Bytes leave until `to`, which is not after the next event."""
        moving = self._moving()
        if moving and not self._stall.shut:
            least = min(passage.left for passage in moving)
            # At the time when the first is through, it is through: what rounding leaves would never get there.
            share = least if to >= self._first_through() else (to - self.now) * self._link.rate / len(moving)
            for passage in moving:
                passage.left -= min(share, passage.left)
        self.now = to

    def _fire(self) -> None:
        """Everything that is due at `now`."""
        if self._stall.edge <= self.now:
            self._stall.turn()
        if self._flap.edge <= self.now:
            self._flap.turn()
        for passage in self._passages:
            if passage.stage == Stage.PREPARED and passage.until <= self.now:
                passage.stage = Stage.MOVING
            if passage.stage == Stage.MOVING and not passage.left and not self._stall.shut:
                passage.stage, passage.until = Stage.FLYING, self.now + passage.late
            if passage.stage == Stage.FLYING and passage.until <= self.now:
                passage.stage = Stage.ARRIVED
        self._settle()

    def _settle(self) -> None:
        """Forget what is over; free lanes go to those that have waited longest."""
        if self._flap.shut:
            for passage in self._passages:
                passage.stage = passage.stage if passage.over else Stage.LOST
        self._passages = [passage for passage in self._passages if not passage.over]
        free = self._link.lanes - sum(passage.stage in HOLDS_LANE for passage in self._passages)
        for passage in [passage for passage in self._passages if passage.stage == Stage.QUEUED][: max(0, free)]:
            passage.stage, passage.until = Stage.PREPARED, self.now + passage.preparation
