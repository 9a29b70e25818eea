"""GET /v1/loads in the shape of sglang 0.5.23 (srt/entrypoints/v1_loads.py), from the ranks' flat load reports."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from pdctl import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.engine.frontend.instance import Instance
    from pdctl.engine.ipc.messages import Report

GIB = 1 << 30
CORE_COUNTS = (
    "num_running_reqs",
    "num_waiting_reqs",
    "num_used_tokens",
    "max_total_num_tokens",
    "max_running_requests",
)
CORE_RATES = ("token_usage", "gen_throughput", "cache_hit_rate", "utilization")
DISAGGREGATION_COUNTS = (
    "prefill_bootstrap_queue_reqs",
    "prefill_inflight_queue_reqs",
    "decode_prealloc_queue_reqs",
    "decode_transfer_queue_reqs",
    "decode_retracted_queue_reqs",
)
DISAGGREGATION_RATES = ("kv_transfer_speed_gb_s", "kv_transfer_latency_ms")
SECTIONS = {"memory", "disaggregation", "queues"}


def loads(instance: Instance, reports: Sequence[Report], include: frozenset[str]) -> dict[str, Any]:
    """`include` holds sglang's section names (core, memory, disagg, queues); empty or `all` means every one."""
    wanted = (
        SECTIONS if not include or "all" in include else {"disaggregation" if n == "disagg" else n for n in include}
    )
    rows = [_row(instance, report) for report in reports]
    args = instance.args
    return {
        "timestamp": datetime.now(timezone.utc).isoformat(),
        "version": f"pdctl-{__version__}",
        "accelerator": None,
        "num_accelerators": args.tp_size * args.pp_size,
        "loads": [{key: value for key, value in row.items() if key not in SECTIONS or key in wanted} for row in rows],
    }


def _row(instance: Instance, report: Report) -> dict[str, Any]:
    load, facts = report.load, instance.ranks.facts
    counts = {name: int(load.get(name, 0)) for name in (*CORE_COUNTS, *DISAGGREGATION_COUNTS)}
    retracted = counts["decode_retracted_queue_reqs"]
    rates = {name: load.get(name, 0.0) for name in (*CORE_RATES, *DISAGGREGATION_RATES)}
    return {
        "timestamp": datetime.now(timezone.utc).timestamp(),
        "dp_rank": report.dp_rank,
        **{name: counts[name] for name in CORE_COUNTS},
        "num_total_tokens": counts["num_used_tokens"],
        **{name: rates[name] for name in CORE_RATES},
        "memory": {
            "weight_gb": _gib(facts.get("weight_bytes")),
            "kv_cache_gb": _gib(facts.get("kv_cache_bytes")),
            "graph_gb": 0.0,
            "token_capacity": counts["max_total_num_tokens"],
        },
        "disaggregation": {
            "mode": instance.manager.mode,
            **{name: counts[name] for name in DISAGGREGATION_COUNTS},
            **{name: rates[name] for name in DISAGGREGATION_RATES},
        },
        "queues": {"waiting": int(load.get("queue_waiting", 0)), "grammar": 0, "paused": 0, "retracted": retracted},
    }


def _gib(size: object) -> float:
    return round(size / GIB, 3) if isinstance(size, int | float) else 0.0
