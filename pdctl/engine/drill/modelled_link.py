"""A network as a value (docs/rehearsals.md): what an operation on it costs, and when each one completes.

`400Gbps,op=50us,latency=5us,loss=0.01%,stall=200ms/5s` is parsed by `ModelledLink.parse`; `Wire` turns a link into
events in time, with no thread and no clock of its own. Operations on the wire at the same time share it evenly, as
flows on a network do. With k lanes and n equal operations of b bytes the total is ceil(n / k) * op + n * b / rate: only
the cost per operation is divided by k.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
BITS = {"Kbps": 10**3, "Mbps": 10**6, "Gbps": 10**9, "Kb": 10**3, "Mb": 10**6, "Gb": 10**9}
UNITS = {**{name: float(size) for name, size in BYTES.items()}, **{name: size / 8 for name, size in BITS.items()}}
SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}
NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
RATE = re.compile(rf"{NUMBER} *({'|'.join(UNITS)})(?:/s)?")
DURATION = re.compile(rf"{NUMBER} *({'|'.join(SECONDS)})")


class Window(NamedTuple):
    """`length` seconds out of every `every`; the first begins after `every` seconds."""

    length: float
    every: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelledLink:
    """Seconds, bytes, and fractions of 1. The default costs nothing.

    An operation waits for one of `lanes`, is prepared (`op` + `descriptor` for each of its descriptors), shares the
    wire evenly with the others on it (`rate` bytes a second for all together), and is known to have arrived `latency`
    later. The fraction `loss` of its packets (`mtu` bytes) is sent twice, each `retransmit` later. Nothing moves in a
    `stall`; a `flap` fails every operation that is under way or begins in it.
    """

    rate: float = math.inf
    op: float = 0.0
    descriptor: float = 0.0
    latency: float = 0.0
    loss: float = 0.0
    retransmit: float = 1e-3
    mtu: int = 4096
    stall: Window | None = None
    flap: Window | None = None
    lanes: int = 1
    seed: int = 0

    @classmethod
    def parse(cls, text: str) -> ModelledLink:
        """Parse a link. Raise ValueError, naming the wrong word and what is valid there."""
        values: dict[str, float | int | Window] = {}
        for word in text.split(","):
            name, equals, value = word.strip().partition("=")
            if not equals:
                name, value = "rate", name
            if name not in WORDS:
                raise ValueError(f"{word}: no such property of a link; there are {', '.join(WORDS)}")
            if name in values:
                raise ValueError(f"{word}: {name} is given twice")
            known = WORDS[name]
            try:
                values[name] = known.read(value)
            except ValueError:
                raise ValueError(f"{word}: write {name}={known.example}") from None
        slower = values.pop("slower", 1.0)
        lanes = values.pop("k", 1)
        return cls(lanes=lanes, **values).slowed(float(slower))  # type: ignore[arg-type]  # each reader gives its field's type

    def slowed(self, factor: float) -> ModelledLink:
        """Return the same link in slow motion: everything takes `factor` times as long."""

        def window(one: Window | None) -> Window | None:
            return one and Window(one.length * factor, one.every * factor)

        return replace(
            self,
            rate=self.rate / factor,
            op=self.op * factor,
            descriptor=self.descriptor * factor,
            latency=self.latency * factor,
            retransmit=self.retransmit * factor,
            stall=window(self.stall),
            flap=window(self.flap),
        )


def rate(text: str) -> float:
    """Parse bytes per second: `64KiB`, `1.5MB/s`, `400Gbps`. Raise ValueError for anything else."""
    return _positive(_unit(RATE, UNITS, text))


def _unit(pattern: re.Pattern[str], units: dict[str, float], text: str) -> float:
    match = pattern.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return float(match[1]) * units[match[2]]


def _positive(value: float) -> float:
    if not 0 < value < math.inf:
        raise ValueError(value)
    return value


def duration(text: str) -> float:
    """Parse seconds: `200ms`, `1.5s`. Raise ValueError for anything else."""
    return _unit(DURATION, SECONDS, text)


def _share(text: str) -> float:
    value = _unit(re.compile(NUMBER + "(%)"), {"%": 0.01}, text)
    if value >= 1:
        raise ValueError(text)
    return value


def _window(text: str) -> Window:
    length, _, every = text.partition("/")
    window = Window(_positive(duration(length)), duration(every))
    if window.length >= window.every:
        raise ValueError(text)
    return window


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(text)
    return int(_positive(int(text)))


def _factor(text: str) -> float:
    if re.fullmatch(NUMBER, text) is None:
        raise ValueError(text)
    return _positive(float(text))


class Word(NamedTuple):
    """`read` raises ValueError; `doc` is the row of the table in docs/rehearsals.md."""

    read: Callable[[str], float | int | Window]
    example: str
    doc: str


WORDS = {
    "rate": Word(rate, "400Gbps", "bytes or bits a second for all operations together; `rate=` may be left out"),
    "op": Word(duration, "50us", "what an operation costs before its first byte leaves"),
    "descriptor": Word(duration, "1us", "the same for each of its descriptors (a run of pages in one layer)"),
    "latency": Word(duration, "5us", "from the last byte to knowing that it arrived"),
    "loss": Word(_share, "0.01%", "share of packets that are lost and sent again"),
    "retransmit": Word(duration, "1ms", "how much later a lost packet arrives (1ms)"),
    "mtu": Word(_count, "4096", "bytes of a packet (4096)"),
    "stall": Word(_window, "200ms/5s", "nothing moves for 200 ms out of every 5 s"),
    "flap": Word(_window, "2s/30s", "the link is down for 2 s out of every 30 s, and what is under way fails"),
    "k": Word(_count, "3", "operations at a time (1); others wait"),
    "slower": Word(_factor, "100", "slow motion: everything takes that many times as long"),
    "seed": Word(_count, "7", "of the losses, which are the same in every run"),
}


class OperationStage(Enum):
    """Where an operation is."""

    QUEUED = "waits for a lane"
    PREPARED = "is prepared"
    MOVING = "is on the wire"
    FLYING = "has left, and nobody knows yet that it arrived"
    ARRIVED = "has arrived"
    LOST = "the link went down under it"


OVER = frozenset({OperationStage.ARRIVED, OperationStage.LOST})
HOLDS_LANE = frozenset({OperationStage.PREPARED, OperationStage.MOVING, OperationStage.FLYING})
TIMED = frozenset({OperationStage.PREPARED, OperationStage.FLYING})


@dataclass(slots=True, eq=False)
class LinkOp:
    """One operation. `until`: end of a timed stage; `left`: bytes still to move; `late`: latency and retransmits."""

    left: float
    preparation: float
    late: float
    stage: OperationStage = OperationStage.QUEUED
    until: float = 0.0

    @property
    def over(self) -> bool:
        return self.stage in OVER


class Outage:
    """Active for a window's length from the end of each period, counted from `start`."""

    def __init__(self, window: Window | None, start: float) -> None:
        self._window = window
        self._start = start
        self._turns = 1
        self.active = False
        self.edge = start + window.every if window else math.inf  # when it next begins or ends

    def turn(self) -> None:
        if self._window is None:
            return
        self.active = not self.active
        if not self.active:
            self._turns += 1
        # Computed from whole periods, not from the last edge, so that rounding errors do not add up.
        self.edge = self._start + self._turns * self._window.every + (self._window.length if self.active else 0.0)

    def skip(self, now: float) -> None:
        """Skip to the last period that began before `now`, instead of stepping through a long idle time."""
        if self._window is not None and self.edge + self._window.every < now:
            self._turns = max(1, int((now - self._start) // self._window.every))
            self.active, self.edge = False, self._start + self._turns * self._window.every


class Wire:
    """The state of a link. Times are seconds of any one monotonic clock; `now` is the time the model has reached."""

    def __init__(self, link: ModelledLink, now: float) -> None:
        import numpy as np  # not at the top: every process parses a command line, few model a link

        self._link = link
        self.now = now
        self._random = np.random.default_rng(link.seed)
        self._ops: list[LinkOp] = []  # in the order they began; none of them finished
        self._stall = Outage(link.stall, now)
        self._flap = Outage(link.flap, now)

    def begin(self, nbytes: int, descriptors: int, now: float) -> LinkOp:
        link = self._link
        packets = -(-nbytes // link.mtu)
        lost = int(self._random.binomial(packets, link.loss)) if link.loss else 0
        made = LinkOp(
            left=float(nbytes + lost * link.mtu),
            preparation=link.op + descriptors * link.descriptor,
            late=link.latency + lost * link.retransmit,
        )
        self.advance(now)
        self._ops.append(made)
        self._assign_lanes()
        return made

    def cancel(self, op: LinkOp) -> None:
        """Take an operation off the wire; the others share what it used."""
        if not op.over:
            op.stage = OperationStage.LOST
        self._assign_lanes()

    def advance(self, now: float) -> None:
        """Process every event until `now`."""
        if not self._ops:
            self._stall.skip(now)
            self._flap.skip(now)
        while (event := self._next()) <= now:
            self._move(event)
            self._fire()
        self._move(max(now, self.now))

    @property
    def due(self) -> float:
        """When something changes next if nothing else begins; infinite if nothing is under way."""
        return self._next() if self._ops else math.inf

    def _next(self) -> float:
        times = [self._stall.edge, self._flap.edge, self._first_through()]
        times += [op.until for op in self._ops if op.stage in TIMED]
        return max(min(times), self.now)

    def _first_through(self) -> float:
        moving = self._moving()
        if not moving or self._stall.active:
            return math.inf
        return self.now + min(op.left for op in moving) * len(moving) / self._link.rate

    def _moving(self) -> list[LinkOp]:
        return [op for op in self._ops if op.stage == OperationStage.MOVING]

    def _move(self, to: float) -> None:
        """Move bytes until `to`, which is not after the next event."""
        moving = self._moving()
        if moving and not self._stall.active:
            least = min(op.left for op in moving)
            # When the first operation is due to finish, finish it: bytes left over by rounding would never move.
            share = least if to >= self._first_through() else (to - self.now) * self._link.rate / len(moving)
            for op in moving:
                op.left -= min(share, op.left)
        self.now = to

    def _fire(self) -> None:
        """Process everything that is due at `now`."""
        if self._stall.edge <= self.now:
            self._stall.turn()
        if self._flap.edge <= self.now:
            self._flap.turn()
        for op in self._ops:
            if op.stage == OperationStage.PREPARED and op.until <= self.now:
                op.stage = OperationStage.MOVING
            if op.stage == OperationStage.MOVING and not op.left and not self._stall.active:
                op.stage, op.until = OperationStage.FLYING, self.now + op.late
            if op.stage == OperationStage.FLYING and op.until <= self.now:
                op.stage = OperationStage.ARRIVED
        self._assign_lanes()

    def _assign_lanes(self) -> None:
        """Drop finished operations and give free lanes to those that have waited longest."""
        if self._flap.active:
            for op in self._ops:
                op.stage = op.stage if op.over else OperationStage.LOST
        self._ops = [op for op in self._ops if not op.over]
        free = self._link.lanes - sum(op.stage in HOLDS_LANE for op in self._ops)
        for op in [op for op in self._ops if op.stage == OperationStage.QUEUED][: max(0, free)]:
            op.stage, op.until = OperationStage.PREPARED, self.now + op.preparation
