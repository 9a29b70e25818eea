"""What the user said about GPUs, network and traffic, and how many instances that takes; None and 0 where unsaid."""

from __future__ import annotations

from math import ceil

from pdctl.quick_definitions import NamedTuple

MEM_FRACTION = 0.85  # assumed where none is given: SGLang derives its own from the GPU
ISL = 4096  # prompt tokens assumed for the transfer bill where no workload is given
PREFILL_USE = 0.9  # share of an instance's peak that a steady load can use
DECODE_USE = 0.92


class Budget(NamedTuple):
    """`gpu_memory` is what is free before loading, in bytes; `kv_bytes` per element; `page_size` in tokens."""

    gpu_memory: int | None
    mem_fraction: float = MEM_FRACTION
    page_size: int = 1
    kv_bytes: int = 2

    @property
    def usable(self) -> int:
        return int((self.gpu_memory or 0) * self.mem_fraction)


class Demand(NamedTuple):
    """What the instance is meant to serve; None and 0 where the user did not say."""

    request_tokens: int = 0  # input and output of one request
    concurrency: float | None = None  # requests at once, in this instance
    context_length: int | None = None


NO_DEMAND = Demand()


class Nic(NamedTuple):
    """`speed` of one NIC in bits per second, `per_host` of them."""

    speed: int
    per_host: int = 1


class TrafficGoal(NamedTuple):
    """Tokens in and out of a request, requests per second, share of the input found in the cache; goals in seconds."""

    isl: int | None = None
    osl: int | None = None
    rate: float | None = None
    hit: float = 0.0
    ttft: float | None = None
    tpot: float | None = None


NO_WORKLOAD = TrafficGoal()


class Measured(NamedTuple):
    """What one instance was measured to do: a prefill in tokens per second, a decode in requests at once."""

    prefill_rate: float | None = None
    decode_batch: int | None = None


UNMEASURED = Measured()


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
