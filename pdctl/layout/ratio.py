"""How many prefill and decode instances a workload needs, from rates the user measured or set as a goal."""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

PREFILL_USE = 0.9  # share of an instance's peak that a steady load can use
DECODE_USE = 0.92


class Ratio(NamedTuple):
    """Instances needed (exact, to be rounded up); None where the input for it is missing.

    `prefill_rate_needed`: input tokens per second each planned prefill instance has to sustain.
    """

    prefill: float | None
    decode: float | None
    concurrency: float | None
    batch: int | None
    prefill_rate_needed: float
    bottleneck: str | None

    @property
    def instances(self) -> tuple[int | None, int | None]:
        return _up(self.prefill), _up(self.decode)


def ratio(
    *,
    rate: float,
    isl: int,
    osl: int,
    hit: float = 0.0,
    tpot: float | None = None,
    prefill_rate: float | None = None,
    batch: int | None = None,
    have: tuple[int, int] = (1, 1),
) -> Ratio:
    """`prefill_rate` in tokens per second and `batch` in requests are per instance; `have` is what the plan holds."""
    load = rate * isl * (1 - hit)
    concurrency = rate * osl * tpot if tpot else None
    prefill = load / (prefill_rate * PREFILL_USE) if prefill_rate else None
    decode = concurrency / (batch * DECODE_USE) if concurrency is not None and batch else None
    bottleneck = None
    if prefill is not None and decode is not None:
        bottleneck = "prefill" if prefill / have[0] >= decode / have[1] else "decode"
    return Ratio(prefill, decode, concurrency, batch, load / (have[0] * PREFILL_USE), bottleneck)


def _up(value: float | None) -> int | None:
    return None if value is None else ceil(value)
