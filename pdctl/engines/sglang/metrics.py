"""The PD metrics of SGLang (prefixed `sglang:`) and of the Rust routers, with their Prometheus types.

Which release exports which metric is in the table read from the wheels (engines/releases/sglang/metrics.tsv).
"""

from __future__ import annotations

from pdctl.engines import versions
from pdctl.engines.versions import Span, Version
from pdctl.quick_definitions import NamedTuple

GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"


class Metric(NamedTuple):
    """`role`: the side that exports it, "": both. `meaning`: one name despite renames. `queue`: must be 0 when idle."""

    name: str
    type: str
    meaning: str
    role: str = ""
    queue: bool = False

    @property
    def span(self) -> Span:
        """The releases that export it. The routers' metrics are not dated, because their binaries do not list names."""
        named = self.name.startswith("sglang:")
        return versions.span("metrics", self.name, self.type) if named else Span()


METRICS: tuple[Metric, ...] = (
    # The old name of the bootstrap queue; on a decode, `prealloc` is another queue in every release.
    Metric("sglang:num_prefill_prealloc_queue_reqs", GAUGE, "prefill bootstrap queue", "prefill", queue=True),
    Metric("sglang:num_prefill_bootstrap_queue_reqs", GAUGE, "prefill bootstrap queue", "prefill", queue=True),
    Metric("sglang:num_prefill_inflight_queue_reqs", GAUGE, "prefill inflight queue", "prefill", queue=True),
    Metric("sglang:num_decode_prealloc_queue_reqs", GAUGE, "decode prealloc queue", "decode", queue=True),
    Metric("sglang:num_decode_transfer_queue_reqs", GAUGE, "decode transfer queue", "decode", queue=True),
    Metric("sglang:num_queue_reqs", GAUGE, "waiting requests", queue=True),
    Metric("sglang:num_running_reqs", GAUGE, "running requests", queue=True),
    Metric("sglang:num_decode_deferred_kv_release_reqs", GAUGE, "deferred releases", "decode", queue=True),
    Metric("sglang:num_decode_host_receive_queue_reqs", GAUGE, "host receive queue", "decode", queue=True),
    Metric("sglang:num_bootstrap_failed_reqs_total", COUNTER, "failed bootstraps"),
    Metric("sglang:num_transfer_failed_reqs_total", COUNTER, "failed transfers"),
    Metric("sglang:num_prefill_retries_total", COUNTER, "prefill retries", "prefill"),
    Metric("sglang:num_aborted_requests_total", COUNTER, "aborted requests"),
    Metric("sglang:num_retracted_reqs", GAUGE, "retracted requests"),
    Metric("sglang:num_retracted_requests_total", COUNTER, "retractions"),
    Metric("sglang:kv_transfer_speed_gb_s", GAUGE, "transfer speed"),
    Metric("sglang:kv_transfer_speed_gb_s", HISTOGRAM, "transfer speed"),
    Metric("sglang:kv_transfer_latency_ms", GAUGE, "transfer time"),
    Metric("sglang:kv_transfer_latency_ms", HISTOGRAM, "transfer time"),
    Metric("sglang:kv_transfer_bootstrap_ms", GAUGE, "bootstrap time"),
    Metric("sglang:kv_transfer_bootstrap_ms", HISTOGRAM, "bootstrap time"),
    Metric("sglang:kv_transfer_alloc_ms", GAUGE, "allocation time"),
    Metric("sglang:kv_transfer_alloc_ms", HISTOGRAM, "allocation time"),
    Metric("sglang:kv_transfer_total_mb", GAUGE, "transferred"),
    Metric("sglang:kv_transfer_total_mb", HISTOGRAM, "transferred"),
    Metric("sglang:pending_prealloc_token_usage", GAUGE, "pages waited for", "decode"),
    Metric("sglang:prealloc_full_token_usage", GAUGE, "pages reserved", "decode"),
    Metric("sglang:prealloc_swa_token_usage", GAUGE, "SWA pages reserved", "decode"),
    Metric("sglang:decode_deferred_kv_release_seconds", HISTOGRAM, "deferred release time", "decode"),
    Metric("sglang:decode_deferred_kv_release_total", COUNTER, "deferred releases ended", "decode"),
    Metric("sglang:token_usage", GAUGE, "pool in use"),
    Metric("sglang:cache_hit_rate", GAUGE, "cache hit rate"),
    Metric("sglang:gen_throughput", GAUGE, "tokens per second"),
    Metric("sglang:queue_time_seconds", HISTOGRAM, "queue time"),
    Metric("sglang:per_stage_req_latency_seconds", HISTOGRAM, "stage time"),
    Metric("sglang:kv_available_tokens", GAUGE, "tokens available"),
    Metric("sglang:kv_used_tokens", GAUGE, "tokens used"),
    Metric("sglang:kv_evictable_tokens", GAUGE, "tokens evictable"),
)

# sglang-router 0.3.x and smg 1.13 export the same prefix, on a separate port (default 29000).
ROUTER_METRICS: tuple[Metric, ...] = (
    Metric("smg_worker_cb_state", GAUGE, "breaker: 0 closed, 1 open, 2 half-open", "router"),
    Metric("smg_worker_health", GAUGE, "worker health", "router"),
    Metric("smg_worker_cb_transitions_total", COUNTER, "breaker transitions", "router"),
    Metric("smg_worker_cb_outcomes_total", COUNTER, "outcomes booked on a breaker", "router"),
    Metric("smg_worker_retries_total", COUNTER, "retries", "router"),
    Metric("smg_worker_pool_size", GAUGE, "workers", "router"),
    Metric("smg_worker_requests_active", GAUGE, "requests running", "router", queue=True),
    Metric("smg_router_requests_total", COUNTER, "requests", "router"),
    Metric("smg_pd_rendezvous_failures_total", COUNTER, "legs that never met (smg only)", "router"),
)


def queues(role: str, version: Version | None = None) -> tuple[Metric, ...]:
    """The gauges of a role that must be 0 on an idle instance."""
    return tuple(
        row for row in METRICS
        if row.queue and row.role in (role, "") and (version is None or row.span.holds(version))
    )  # fmt: skip
