"""Vectors of Dynamo's two modes, each worked out by hand. A prefill does 15 kTok/s, a prompt has 3,000 tokens."""

from __future__ import annotations

from typing import Any

import pytest

from pdctl.errors import UsageError
from pdctl.policy.dynamo import DynamoLoadSettings, StepTime, fit_step_time, propose_dynamo_load
from pdctl.policy.observation import Observation
from tests.policy.fleet import deltas, fleet, replica


def test_load_mode_sizes_prefills_by_the_shortest_queue() -> None:
    # The own prompt takes 0.2 s. 9 kTok on 2 are 4.5 each, 0.3 s: 0.5 s, just the target. On one 0.6 s, not < 0.24 s.
    assert deltas("dynamo-load", fleet(waiting_prompt_tokens=9_000)) == (0, 0)
    assert deltas("dynamo-load", fleet(waiting_prompt_tokens=9_100)) == (1, 0)
    # 3.5 kTok are 0.117 s each; on one 0.233 s < (0.5 - 0.2) × 0.8 = 0.24 s. 3.7 kTok would be 0.247 s.
    assert deltas("dynamo-load", fleet(waiting_prompt_tokens=3_500)) == (-1, 0)
    assert deltas("dynamo-load", fleet(waiting_prompt_tokens=3_700)) == (0, 0)
    # Half of the prompt is cached: 0.1 s of its own; 9.1 kTok give 0.403 s.
    assert deltas("dynamo-load", fleet(waiting_prompt_tokens=9_100, cached_share=0.5)) == (0, 0)


def test_load_mode_adds_one_only_if_all_miss_the_target() -> None:
    listed = (
        replica("p0", "prefill", waiting_prompt_tokens=90_000),
        replica("p1", "prefill"),
        replica("d0", "decode"),
        replica("d1", "decode"),
    )
    assert deltas("dynamo-load", fleet(waiting_prompt_tokens=90_000, replicas=listed)) == (0, 0)
    assert deltas("dynamo-load", fleet(waiting_prompt_tokens=90_000)) == (1, 0)


def stepping(*samples: tuple[int, float], **last: Any) -> list[Observation]:
    """Blocks in use on two decodes, and the seconds of a step, one observation every 5 s."""
    seen = [fleet(time_s=5.0 * at, kv_blocks_used=used, itl_s=itl) for at, (used, itl) in enumerate(samples, 1)]
    return [*seen, fleet(time_s=100.0, **last)]


# 10 ms + 1 µs per token on a decode: 1,000 blocks on two of 64 tokens are 32,000 tokens each, which add 32 ms.
LINE = ((1_000, 0.042), (500, 0.026), (250, 0.018), (0, 0.010), (125, 0.014))


def test_the_step_time_is_a_line_through_what_was_seen() -> None:
    line = fit_step_time(stepping(*LINE), 5)
    assert line is not None
    assert (line.base, line.per_token) == (pytest.approx(0.010), pytest.approx(1e-6))
    assert fit_step_time(stepping(*LINE[:4]), 5) is None
    flat = fit_step_time(stepping(*[(100, 0.02)] * 5), 5)
    assert flat == StepTime(pytest.approx(0.02), 0.0), "one load says nothing of another"
    falling = fit_step_time(stepping((0, 0.03), (1_000, 0.01)), 2)
    assert falling == StepTime(pytest.approx(0.02), 0.0), "more KV cache never makes a step shorter"


def test_the_step_time_is_measured_from_counters_where_no_latency_is_given() -> None:
    """10 steps in 0.5 s, then 20 in 1.4 s: 50 and 70 ms at the loads of their ends, 0 and 2,000 tokens a decode."""

    def seen(time_s: float, used: int, steps: int, busy: float) -> Observation:
        listed = (
            replica("p0", "prefill"),
            replica("d0", "decode", decode_steps=steps, decode_busy_s=busy, kv_blocks_used=used),
        )
        return fleet(time_s=time_s, prefills=1, decodes=1, block_tokens=1, kv_blocks_used=used, replicas=listed)

    line = fit_step_time([seen(0, 0, 0, 0.0), seen(5, 0, 10, 0.5), seen(10, 2_000, 30, 1.9)], 2)
    assert line == StepTime(pytest.approx(0.05), pytest.approx(1e-5))


def test_load_mode_sizes_decodes_by_their_step() -> None:
    # 0.05 s is reached at 40,000 tokens: 625 blocks on each of two, 1,250 in all.
    assert deltas("dynamo-load", *stepping(*LINE, kv_blocks_used=1_252)) == (-1, 1)
    assert deltas("dynamo-load", *stepping(*LINE, kv_blocks_used=1_248)) == (-1, 0)
    # On one decode a step may take 0.8 × 0.05 = 0.04 s: 30,000 tokens, 468.75 blocks in all.
    assert deltas("dynamo-load", *stepping(*LINE, kv_blocks_used=468)) == (-1, -1)
    assert deltas("dynamo-load", *stepping(*LINE, kv_blocks_used=470)) == (-1, 0)


def test_load_mode_does_nothing_while_a_replica_loads_and_says_so() -> None:
    seen = fleet(waiting_prompt_tokens=90_000, prefills=3, pending_prefills=1)
    decision = propose_dynamo_load([seen], DynamoLoadSettings())
    assert decision.prefill_delta == 0
    assert decision.refused[0] == ("prefill +1", "a change is in progress: 1 still load")
    assert decision.refused[1] == ("decode ±1", "5 observations with decode steps are needed, there are 0")


def test_load_mode_says_why_it_keeps_one_that_it_could_lack() -> None:
    decision = propose_dynamo_load([fleet(waiting_prompt_tokens=3_700)], DynamoLoadSettings())
    assert decision.refused[0] == ("prefill -1", "on 1 the queue would take 0.247 s, not less than 0.24 s")
    full = stepping(*[(100, 0.02)] * 5, kv_blocks_used=40_000)
    decision = propose_dynamo_load(full, DynamoLoadSettings())
    assert decision.refused == (("decode -1", "on 1 one would need 40,000 KV blocks and has 30,000"),)


def test_throughput_mode() -> None:
    # 12 requests/s × 3,000 tokens / 15 kTok/s = 2.4: 3 prefills. Memory of 30,000 × 64 tokens / (3,000 + 150 / 2) holds
    # 624 rooms, which end in 150 × 0.05 s: 83 requests/s a decode, so 1.
    assert deltas("dynamo-throughput", fleet(requests_per_s=12.0)) == (1, -1)
    # 200 requests/s: 40 prefills; 200 / 83.25 = 2.4: 3 decodes.
    assert deltas("dynamo-throughput", fleet(requests_per_s=200.0)) == (38, 1)
    # Prompts of 9,000 tokens take 0.6 s, more than 0.5 s: at least ceil(0.6 / 0.5) = 2 prefills for 0.1 requests/s.
    assert deltas("dynamo-throughput", fleet(requests_per_s=0.1, prompt_tokens=9_000.0)) == (0, -1)
    # The mean of 10 and 20 requests/s is 15: 3 prefills. The first is older than 180 s after a while: 20 need 4.
    first = fleet(time_s=10, requests_per_s=10.0)
    assert deltas("dynamo-throughput", first, fleet(time_s=20, requests_per_s=20.0)) == (1, -1)
    assert deltas("dynamo-throughput", first, fleet(time_s=200, requests_per_s=20.0)) == (2, -1)


def test_throughput_mode_holds_a_step_to_its_target() -> None:
    # 0.05 s is reached at 40,000 tokens: 40,000 / 3,075 = 13 rooms, 13 / 7.5 s = 1.734 requests/s a decode: 4 need 3.
    assert deltas("dynamo-throughput", *stepping(*LINE, requests_per_s=4.0)) == (-1, 1)


def test_throughput_mode_needs_arrivals() -> None:
    with pytest.raises(UsageError, match=r"needs `measured\.requests_per_s`, which is not given"):
        deltas("dynamo-throughput", fleet())
