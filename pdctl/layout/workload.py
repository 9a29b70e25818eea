"""What the user said about the GPUs, the network and the traffic; None and 0 where nothing was said."""

from __future__ import annotations

from typing import NamedTuple

MEM_FRACTION = 0.85  # assumed where none is given: SGLang derives its own from the GPU
ISL = 4096  # prompt tokens the transfer bill is reckoned for where no workload is given


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


class Workload(NamedTuple):
    """Tokens in and out of a request, requests per second, share of the input found in the cache; goals in seconds."""

    isl: int | None = None
    osl: int | None = None
    rate: float | None = None
    hit: float = 0.0
    ttft: float | None = None
    tpot: float | None = None


NO_WORKLOAD = Workload()


class Measured(NamedTuple):
    """What one instance was measured to do: a prefill in tokens per second, a decode in requests at once."""

    prefill_rate: float | None = None
    decode_batch: int | None = None


UNMEASURED = Measured()
