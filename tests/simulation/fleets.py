"""Small fleets and traces whose figures can be worked out by hand."""

from __future__ import annotations

import math
from random import Random

from pdctl.layout.cost_profile import CostProfile
from pdctl.simulation.fleet_shape import FleetShape
from pdctl.simulation.request_trace import RequestTrace, TraceRequest


def profile(**changed: float) -> CostProfile:
    """Round figures: 0.1 ms per prompt token, 10 ms per step, 1 GB/s, 1 kB of KV cache per token."""
    figures: dict[str, float] = {
        "prefill_step_s": 0.01,
        "prefill_token_s": 1e-4,
        "prefill_square_s": 0.0,
        "decode_step_s": 0.01,
        "decode_room_s": 0.0,
        "decode_token_s": 0.0,
        "layers": 32,
        "kv_bytes_per_token": 1000,
        "weight_bytes": 10**9,
        "kv_blocks": 1000,
        "nic_bytes_per_s": 1e9,
        "disk_bytes_per_s": 1e9,
        "host_bytes_per_s": 1e10,
    }
    return CostProfile(**{**figures, **changed})  # type: ignore[arg-type]


def shape(prefills: int = 1, decodes: int = 1, replicas: int = 0, **changed: float) -> FleetShape:
    one = profile(**changed)
    return FleetShape(prefills, decodes, replicas or prefills + decodes, one, one)


def poisson(
    count: int, rate: float, seed: int, prompt: int = 1000, output: int = 100, spread: bool = True
) -> RequestTrace:
    """Exponential gaps; lengths up to twice the means, or all equal."""
    rng, now, requests = Random(seed), 0.0, []
    for _ in range(count):
        now -= math.log(1 - rng.random()) / rate
        lengths = (
            (1 + int(2 * prompt * rng.random()), 1 + int(2 * output * rng.random())) if spread else (prompt, output)
        )
        requests.append(TraceRequest(round(now * 1e9), *lengths))
    return RequestTrace("poisson", requests)


def given(*requests: tuple[float, int, int]) -> RequestTrace:
    """Requests as (seconds, prompt, output)."""
    return RequestTrace("given", [TraceRequest(round(when * 1e9), prompt, output) for when, prompt, output in requests])
