"""What each number on the engine's command line may be: refused when it is read, before anything is started."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pdctl.engine.config.instance_args import ServerArgs

LONGEST = 2_000_000.0  # seconds, 23 days: sockets count a deadline's milliseconds in 31 bits


class Bound(NamedTuple):
    """`zero`: what 0 stands for, below `least`."""

    least: float
    most: float = math.inf
    zero: str = ""

    def holds(self, value: float) -> bool:
        return (self.least <= value <= self.most and math.isfinite(value)) or (value == 0 and bool(self.zero))

    def __str__(self) -> str:
        span = f"at least {self.least:g}" if math.isinf(self.most) else f"{self.least:g} to {self.most:.10g}"
        return f"must be {span}{f', or 0: {self.zero}' if self.zero else ''}"


PORT = Bound(1, 65535)
WAIT = Bound(0.001, LONGEST)

BOUNDS = {
    "port": PORT,
    "disaggregation_bootstrap_port": PORT,
    "disaggregation_transfer_threads": Bound(1, 64, zero="by cores"),
    "tp_size": Bound(1),
    "dp_size": Bound(1),
    "attn_dp_size": Bound(1),
    "pp_size": Bound(1),
    "ep_size": Bound(1),
    "nnodes": Bound(1),
    "base_gpu_id": Bound(0),
    "page_size": Bound(1),
    "max_total_tokens": Bound(1, zero="from the memory at hand"),
    "max_running_requests": Bound(1),
    "max_queued_requests": Bound(0),
    "chunked_prefill_size": Bound(1),
    "num_reserved_decode_tokens": Bound(1),
    "optimistic_prefill_attempts": Bound(0),
    "context_length": Bound(1, zero="from the checkpoint"),
    "random_seed": Bound(0),
    "num_threads": Bound(1, zero="by cores"),
    "decode_log_interval": Bound(1),
    "dist_timeout": WAIT,
    "bootstrap_timeout": WAIT,
    "waiting_timeout": WAIT,
    "heartbeat_interval": WAIT,
    "heartbeat_max_failure": Bound(0),
    "shutdown_grace": Bound(0, LONGEST),
}


def refuse(args: ServerArgs) -> str:
    """The first number that cannot be, with its flag and what can; empty when all can."""
    for name, bound in BOUNDS.items():
        value = getattr(args, name)
        if not bound.holds(value):
            return f"--{name.replace('_', '-')} {value}: {bound}"
    if 0 < args.max_total_tokens < args.page_size:
        return f"--max-total-tokens {args.max_total_tokens}: must be at least one page, --page-size {args.page_size}"
    return ""
