"""What /v1/loads says of a DP rank: SGLang's keys (0.5.8 to 0.5.23) and what each counts, by one name despite renames.

And the sums in /metrics that a load is measured from. pdctl's own engine has the keys of 0.5.23.
"""

from __future__ import annotations

from pdctl.quick_definitions import NamedTuple

QUEUES = ("running", "waiting", "bootstrap", "inflight", "prealloc", "transfer", "retracted")


class LoadKey(NamedTuple):
    """`section`: the object it stands in; "": the entry itself. `at`: its place in a list; None: it is the value."""

    meaning: str
    section: str
    name: str
    at: int | None = None


LOAD_KEYS: tuple[LoadKey, ...] = (
    LoadKey("running", "", "num_running_reqs"),
    LoadKey("waiting", "queues", "waiting"),
    LoadKey("bootstrap", "disaggregation", "prefill_prealloc_queue_reqs"),  # its name before 0.5.10
    LoadKey("bootstrap", "disaggregation", "prefill_bootstrap_queue_reqs"),
    LoadKey("inflight", "disaggregation", "prefill_inflight_queue_reqs"),
    LoadKey("prealloc", "disaggregation", "decode_prealloc_queue_reqs"),
    LoadKey("transfer", "disaggregation", "decode_transfer_queue_reqs"),
    LoadKey("retracted", "disaggregation", "decode_retracted_queue_reqs"),
    LoadKey("used_tokens", "", "num_used_tokens"),
    LoadKey("pool_tokens", "", "max_total_num_tokens"),
    LoadKey("waiting_prompt_tokens", "", "num_waiting_uncached_tokens"),
    LoadKey("prefilled_tokens", "", "total_prefill_uncached_tokens"),
    LoadKey("prefill_busy_us", "", "total_prefill_busy_us"),
    LoadKey("decode_steps", "", "decode_moments", 0),
    LoadKey("decode_busy_us", "", "decode_moments", 2),
)


def key_of(meaning: str) -> str:
    """The key that the newest release has for a meaning."""
    return next(key.name for key in reversed(LOAD_KEYS) if key.meaning == meaning)


# Counts of requests in /v1/loads, by section ("" is the entry itself), sglang 0.5.8 to 0.5.23.
HELD = (
    ("", "num_running_reqs"),
    ("", "num_waiting_reqs"),
    ("queues", "grammar"),
    ("queues", "paused"),
    ("queues", "retracted"),
    ("disaggregation", "prefill_prealloc_queue_reqs"),  # up to 0.5.8, then:
    ("disaggregation", "prefill_bootstrap_queue_reqs"),
    ("disaggregation", "prefill_inflight_queue_reqs"),
    ("disaggregation", "decode_prealloc_queue_reqs"),
    ("disaggregation", "decode_transfer_queue_reqs"),
    ("disaggregation", "decode_retracted_queue_reqs"),
)
OLD_HELD = (("", "num_reqs"), ("", "num_waiting_reqs"))  # /get_load, 0.5.3


class TrafficMetric(NamedTuple):
    """`role`: the side whose sums tell it. SGLang counts a room's KV transfer where it was sent from."""

    meaning: str
    name: str
    role: str


TRAFFIC: tuple[TrafficMetric, ...] = (
    TrafficMetric("requests", "sglang:num_requests_total", "prefill"),
    TrafficMetric("prompt_tokens", "sglang:prompt_tokens_total", "prefill"),
    TrafficMetric("cached_tokens", "sglang:cached_tokens_total", "prefill"),
    TrafficMetric("answers", "sglang:num_requests_total", "decode"),
    TrafficMetric("output_tokens", "sglang:generation_tokens_total", "decode"),
    TrafficMetric("ttft_s", "sglang:time_to_first_token_seconds_sum", "decode"),
    TrafficMetric("ttft_count", "sglang:time_to_first_token_seconds_count", "decode"),
    TrafficMetric("itl_s", "sglang:inter_token_latency_seconds_sum", "decode"),
    TrafficMetric("itl_count", "sglang:inter_token_latency_seconds_count", "decode"),
    TrafficMetric("moving_ms", "sglang:kv_transfer_latency_ms_sum", "prefill"),
)
