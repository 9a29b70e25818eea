"""A network as a value: what an operation on it costs, and the words that describe it (docs/rehearsals.md).

`400Gbps,op=50us,latency=5us,loss=0.01%,stall=200ms/5s` is read by `Link.parse`; wire.py turns a link into times.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
BITS = {"Kbps": 10**3, "Mbps": 10**6, "Gbps": 10**9, "Kb": 10**3, "Mb": 10**6, "Gb": 10**9}
UNITS = {**{name: float(size) for name, size in BYTES.items()}, **{name: size / 8 for name, size in BITS.items()}}
SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
RATE = re.compile(rf"{NUMBER} *({'|'.join(UNITS)})(?:/s)?")
DURATION = re.compile(rf"{NUMBER} *({'|'.join(SECONDS)})")


class Window(NamedTuple):
    """For `length` seconds out of every `every`, the first time after `every`."""

    length: float
    every: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Seconds, bytes and shares of 1. The default costs nothing.

    An operation waits for one of `lanes`, is prepared (`op` + `descriptor` for each of its descriptors), shares the
    wire evenly with the others that are on it (`rate` bytes a second for all together), and is known to have arrived
    `latency` later. Of its packets (`mtu` bytes) the share `loss` is sent twice, each `retransmit` later. Nothing moves
    in a `stall`; a `flap` fails every operation that is under way or begins in it.
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
    def parse(cls, text: str) -> Link:
        """Raises ValueError naming the word and what may stand there."""
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

    def slowed(self, factor: float) -> Link:
        """The same link in slow motion: everything takes `factor` times as long."""

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
    """Bytes per second: `64KiB`, `1.5MB/s`, `400Gbps`. Raises ValueError for anything else."""
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


def _duration(text: str) -> float:
    return _unit(DURATION, SECONDS, text)


def _share(text: str) -> float:
    value = _unit(re.compile(NUMBER + "(%)"), {"%": 0.01}, text)
    if value >= 1:
        raise ValueError(text)
    return value


def _window(text: str) -> Window:
    length, _, every = text.partition("/")
    window = Window(_positive(_duration(length)), _duration(every))
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
    "op": Word(_duration, "50us", "what an operation costs before its first byte leaves"),
    "descriptor": Word(_duration, "1us", "the same for each of its descriptors (a run of pages in one layer)"),
    "latency": Word(_duration, "5us", "from the last byte to knowing that it arrived"),
    "loss": Word(_share, "0.01%", "share of packets that are lost and sent again"),
    "retransmit": Word(_duration, "1ms", "how much later a lost packet arrives (1ms)"),
    "mtu": Word(_count, "4096", "bytes of a packet (4096)"),
    "stall": Word(_window, "200ms/5s", "nothing moves for 200 ms out of every 5 s"),
    "flap": Word(_window, "2s/30s", "the link is down for 2 s out of every 30 s, and what is under way fails"),
    "k": Word(_count, "3", "operations at a time (1); others wait"),
    "slower": Word(_factor, "100", "slow motion: everything takes that many times as long"),
    "seed": Word(_count, "7", "of the losses, which are the same in every run"),
}
