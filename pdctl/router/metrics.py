"""Counters of the router and their Prometheus text; series of traffic are keyed by (prefill, decode)."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
CONTENT_TYPE = b"content-type: text/plain; version=0.0.4; charset=utf-8\r\n"


class Histogram:
    __slots__ = ("_counts", "_sum")

    def __init__(self) -> None:
        self._counts = [0] * (len(SECONDS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(SECONDS, seconds)] += 1
        self._sum += seconds

    def lines(self, name: str, labels: str) -> Iterable[str]:
        total = 0
        for bound, count in zip((*map(str, SECONDS), "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {total}'
        yield f"{name}_sum{{{labels}}} {self._sum:.6f}"
        yield f"{name}_count{{{labels}}} {total}"


class PairStats:
    """`attempts` by outcome; `leg_failures` by (leg, cause)."""

    __slots__ = ("attempts", "duration", "first_byte", "leg_failures")

    def __init__(self) -> None:
        self.attempts: Counter[str] = Counter()
        self.leg_failures: Counter[tuple[str, str]] = Counter()
        self.first_byte = Histogram()
        self.duration = Histogram()


class RouterStats:
    """`requests` by (path, status): paths are the router's own routes, so the number of series is bounded."""

    __slots__ = ("client_gone", "requests", "retries")

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.retries = 0
        self.client_gone = 0


def labels(values: Mapping[str, object]) -> str:
    """`a="b",c="d"` with the escapes of the exposition format."""
    return ",".join(f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in values.items())


_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Exposition:
    """Builds the text of one scrape."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def family(self, name: str, kind: str, text: str) -> None:
        self._lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]

    def sample(self, name: str, value: float, **named: object) -> None:
        self._lines.append(f"{name}{{{labels(named)}}} {value}" if named else f"{name} {value}")

    def histogram(self, name: str, histogram: Histogram, **named: object) -> None:
        self._lines += histogram.lines(name, labels(named))

    def text(self) -> bytes:
        return ("\n".join(self._lines) + "\n").encode()
