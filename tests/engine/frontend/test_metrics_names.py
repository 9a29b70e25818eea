"""Every metric of sglang 0.5.23 about disaggregation: here under its name and type, or absent for a reason."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.engine.frontend.conftest import Engine

# Without the prefix `sglang:`.
GAUGES = (
    "num_prefill_bootstrap_queue_reqs",
    "num_prefill_inflight_queue_reqs",
    "num_decode_prealloc_queue_reqs",
    "num_decode_transfer_queue_reqs",
    "num_decode_deferred_kv_release_reqs",
    "pending_prealloc_token_usage",
    "num_queue_reqs",
    "num_running_reqs",
    "num_retracted_reqs",
    "token_usage",
    "cache_hit_rate",
    "decode_sum_seq_lens",
    "gen_throughput",
    "kv_available_tokens",
    "kv_used_tokens",
    "kv_evictable_tokens",
)
COUNTERS = (
    "realtime_tokens_total",
    "num_bootstrap_failed_reqs_total",
    "num_transfer_failed_reqs_total",
    "num_prefill_retries_total",
    "decode_deferred_kv_release_total",
    "num_aborted_requests_total",
    "num_retracted_requests_total",
    "num_retracted_input_tokens_total",
    "num_retracted_output_tokens_total",
)
HISTOGRAMS = (
    "kv_transfer_speed_gb_s",
    "kv_transfer_latency_ms",
    "kv_transfer_bootstrap_ms",
    "kv_transfer_alloc_ms",
    "kv_transfer_total_mb",
    "queue_time_seconds",
    "per_stage_req_latency_seconds",
    "decode_deferred_kv_release_seconds",
)
ABSENT = {
    "num_prefill_prealloc_queue_reqs": "the name until 0.5.8",
    "prealloc_full_token_usage": "one kind of pool",
    "prealloc_swa_token_usage": "one kind of pool",
    "num_decode_host_receive_queue_reqs": "pages arrive where they are read",
    "num_decode_host_receive_reqs_total": "pages arrive where they are read",
}


def exposed(engine: Engine) -> dict[str, tuple[str, set[str]]]:
    """Family → its type and the labels it has."""
    families = text_string_to_metric_families(engine.client.get("/metrics").text)
    return {
        family.name.removeprefix("sglang:"): (family.type, {label for one in family.samples for label in one.labels})
        for family in families
    }


@pytest.mark.parametrize("role", ["prefill", "decode", "unified"])
def test_every_name_has_sglangs_type(request: pytest.FixtureRequest, role: str) -> None:
    engine: Engine = request.getfixturevalue(role)
    found = exposed(engine)
    wanted = {
        **dict.fromkeys(GAUGES, "gauge"),
        **{name.removesuffix("_total"): "counter" for name in COUNTERS},
        **dict.fromkeys(HISTOGRAMS, "histogram"),
    }
    assert {name: found.get(name, ("absent", set()))[0] for name in wanted} == wanted
    assert not {name.removesuffix("_total") for name in ABSENT} & found.keys()
    for name in GAUGES:
        assert {"model_name", "engine_type", "tp_rank", "pp_rank", "moe_ep_rank"} <= found[name][1]
