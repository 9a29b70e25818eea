"""Vectors of the reactive policies and of `oracle`, each worked out by hand in its comment.

Two prefills of 15 kTok/s and two decodes of 30,000 blocks of 64 tokens, if nothing else is said.
"""

from __future__ import annotations

import pytest

from pdctl.errors import UsageError
from pdctl.policy.observation import Arrival, Observation, QueueDepths
from tests.policy.fleet import deltas, fleet, replica


def test_static() -> None:
    assert deltas("static", fleet(waiting_prompt_tokens=10**6)) == (0, 0)
    assert deltas("static", fleet(), prefills=5, decodes=1) == (3, -1)
    assert deltas("static", fleet(), decodes=3) == (0, 1)


def test_ratio_shares_the_replicas_out_one_at_a_time() -> None:
    # 63 kTok / 15 kTok/s / 0.7 s = 6 prefills; 51,000 blocks / 30,000 / 0.85 = 2 decodes: 6/8 of 4 are 3 prefills.
    assert deltas("ratio", fleet(waiting_prompt_tokens=63_000, kv_blocks_used=51_000)) == (1, -1)
    # of 8 (5 + 3) they are 6, one more; from 2 + 6 there is a way of 4, of which one is gone now.
    assert deltas("ratio", fleet(prefills=5, decodes=3, waiting_prompt_tokens=63_000, kv_blocks_used=51_000)) == (1, -1)
    assert deltas("ratio", fleet(prefills=2, decodes=6, waiting_prompt_tokens=63_000, kv_blocks_used=51_000)) == (1, -1)
    # 10.5 kTok / 15 / 0.7 = 1 prefill; 76,500 / 30,000 / 0.85 = 3 decodes: a quarter of 4 is 1.
    assert deltas("ratio", fleet(waiting_prompt_tokens=10_500, kv_blocks_used=76_500)) == (-1, 1)
    assert deltas("ratio", fleet()) == (0, 0), "nothing to do"
    assert deltas("ratio", fleet(waiting_prompt_tokens=10**6)) == (1, -1), "3 of 4: a decode stays"
    assert deltas("ratio", fleet(prefills=3, decodes=1, waiting_prompt_tokens=10**6)) == (0, 0)


def test_thresholds() -> None:
    # 16,384 tokens on 2 prefills are 8,192 each: one context. 57,000 of 60,000 blocks: 0.95.
    assert deltas("thresholds", fleet(waiting_prompt_tokens=16_384, kv_blocks_used=57_000)) == (1, 1)
    # 16,383 are a little less than one; 56,999 a little less than 0.95.
    assert deltas("thresholds", fleet(waiting_prompt_tokens=16_383, kv_blocks_used=56_999)) == (0, 0)
    # 0.1 contexts each are 1,638.4 tokens: 1,638 on 2 prefills are 819 each. 35,999 of 60,000 blocks are below 0.6.
    assert deltas("thresholds", fleet(waiting_prompt_tokens=1_638, kv_blocks_used=35_999)) == (-1, -1)
    assert deltas("thresholds", fleet(waiting_prompt_tokens=3_277, kv_blocks_used=36_000)) == (0, 0)
    assert deltas("thresholds", fleet(prefills=1, decodes=1)) == (0, 0), "the last one stays"
    assert deltas("thresholds", fleet(prefills=0, decodes=0)) == (1, 1)


def test_thresholds_look_at_each_replica() -> None:
    """The mean queue is half a context, the longest of 9,000 tokens more than one; of 0.5 and 0.97 one is high."""
    listed = (
        replica("p0", "prefill", waiting_prompt_tokens=9_000),
        replica("p1", "prefill"),
        replica("d0", "decode", kv_blocks_used=15_000),
        replica("d1", "decode", kv_blocks_used=9_700, kv_blocks=10_000),
    )
    assert deltas("thresholds", fleet(waiting_prompt_tokens=9_000, kv_blocks_used=24_700, replicas=listed)) == (1, 1)
    assert deltas("thresholds", fleet(waiting_prompt_tokens=9_000, kv_blocks_used=24_700)) == (0, -1)


def test_wva() -> None:
    # Prompts of 3,000 tokens: 9,000 waiting are 1.5 rooms on each prefill, 3.5 of 5 to spare, on one 5 - 3 = 2 < 3.
    # 30,000 blocks on decodes: 0.5 each, 0.3 to spare; on one decode 0.8 - 1.0 < 0.1: both stay.
    assert deltas("wva", fleet(waiting_prompt_tokens=9_000, kv_blocks_used=30_000)) == (0, 0)
    # 12,300 tokens are 2.05 rooms each, 2.95 to spare < 3; 42,300 blocks are 0.705 each, 0.095 to spare < 0.1.
    assert deltas("wva", fleet(waiting_prompt_tokens=12_300, kv_blocks_used=42_300)) == (1, 1)
    # 6,000 tokens: on one prefill 5 - 2 = 3 rooms to spare. 21,000 blocks: on one decode 0.8 - 0.7 = 0.1.
    assert deltas("wva", fleet(waiting_prompt_tokens=6_000, kv_blocks_used=20_999)) == (-1, -1)
    # Three decodes, one of them pending, count as three: 63,000 blocks are 0.7 each, 0.1 to spare.
    assert deltas("wva", fleet(decodes=3, pending_decodes=1, kv_blocks_used=62_999)) == (-1, 0)


def test_wva_counts_the_peak_of_its_window() -> None:
    """The peak of 12,300 tokens is 30 s old: it counts within 60 s, and not within 20 s."""
    earlier, now = fleet(time_s=100, waiting_prompt_tokens=12_300), fleet(time_s=130)
    assert deltas("wva", earlier, now) == (1, -1)
    assert deltas("wva", earlier, now, window_s=20.0) == (-1, -1)


def test_a_saturated_replica_has_nothing_to_spare() -> None:
    """Queues of 6 and 0 rooms: 0 and 5 to spare, 2.5 on average < 3. Left out of the mean it would be 5: none more."""
    listed = (
        replica("p0", "prefill"),
        replica("p1", "prefill"),
        replica("d0", "decode", queues=QueueDepths(prealloc=4, transfer=2)),
        replica("d1", "decode"),
    )
    assert deltas("wva", fleet(replicas=listed)) == (-1, 1)


def steady(*backlogs: int, every: float = 2.0) -> list[Observation]:
    """One observation every two seconds."""
    return [fleet(time_s=100 + every * at, waiting_prompt_tokens=tokens) for at, tokens in enumerate(backlogs)]


def test_kpa_follows_the_mean_of_the_stable_window() -> None:
    # A prefill's load is 0.7 s × 15 kTok/s = 10.5 kTok. 25 kTok are 2.38 of them: 3. No decode is needed, one stays.
    assert deltas("kpa", *steady(25_000, 25_000, 25_000)) == (1, -1)
    # (30 + 11) / 2 = 20.5 kTok are 1.95: 2.
    assert deltas("kpa", *steady(30_000, 11_000)) == (0, -1)
    # 42,001 blocks / (0.7 × 30,000) = 2.00005: 3.
    assert deltas("kpa", fleet(kv_blocks_used=42_001)) == (-1, 1)


def test_kpa_panics_at_a_burst_and_takes_none_away_for_a_stable_window() -> None:
    # 60 s of nothing, then 6 s with 42 kTok: over 6 s they are 4 prefills, twice the 2 there are. Over 60 s 0.4: 1.
    burst = steady(*[0] * 30, 42_000, 42_000, 42_000)
    assert deltas("kpa", *burst) == (2, -1)
    # Two samples of the three are not enough: (0 + 42 + 42) / 3 = 28 kTok are 3, less than twice 2. 1 is needed.
    assert deltas("kpa", *burst[:-1]) == (-1, -1)
    # 10 s after it nothing waits: the peak of 4 still holds for 2, and none is taken from 6.
    later = [*burst, fleet(time_s=176, waiting_prompt_tokens=0)]
    assert deltas("kpa", *later) == (2, -1)
    assert deltas("kpa", *burst, fleet(time_s=176, prefills=6)) == (0, -1)
    # 60 s after the last sample of the burst it is over: (0) over the stable window needs 1.
    assert deltas("kpa", *burst, fleet(time_s=164 + 61, prefills=6)) == (-5, -1)


def test_oracle() -> None:
    # 21 kTok now: 21 / 15 / 0.7 = 2. 84 kTok more after 3.3 s: 105 kTok / 15 kTok/s / 4 s = 1.75, so 2 stay.
    ahead = (Arrival(in_s=3.3, prompt_tokens=84_000, output_tokens=1_000),)
    assert deltas("oracle", fleet(waiting_prompt_tokens=21_000, arrivals_ahead=ahead)) == (0, -1)
    # After 0.3 s: 105 kTok / 15 kTok/s / 1 s = 7 prefills.
    near = (Arrival(in_s=0.3, prompt_tokens=84_000, output_tokens=1_000),)
    assert deltas("oracle", fleet(waiting_prompt_tokens=21_000, arrivals_ahead=near)) == (5, -1)
    # Beyond the horizon nothing is seen; the backlog alone needs 2.
    assert deltas("oracle", fleet(waiting_prompt_tokens=21_000, arrivals_ahead=near), horizon_s=0.2) == (0, -1)


def test_oracle_keeps_room_for_the_most_blocks_to_come() -> None:
    # (63,000 + 1,000) / 64 = 1,000 blocks each, for 1,000 × 0.05 s = 50 s. Two at 0 s and 10 s are there at once.
    # 55,500 + 2,000 blocks / 0.95 / 30,000 = 2.02: 3. 50 s apart they are not: 56,500 / 28,500 = 1.98: 2.
    def two(gap: float) -> Observation:
        each = [Arrival(in_s=at, prompt_tokens=63_000, output_tokens=1_000) for at in (0.0, gap)]
        return fleet(kv_blocks_used=55_500, prefill_tokens_per_s=10.0**9, arrivals_ahead=tuple(each))

    assert deltas("oracle", two(10)) == (-1, 1)
    assert deltas("oracle", two(50)) == (-1, 0)


@pytest.mark.parametrize("name", ["ratio", "kpa", "oracle", "dynamo-load", "blitz"])
def test_a_rate_that_nobody_gave_or_measured_is_asked_for(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        deltas(name, fleet(prefill_tokens_per_s=None))
    assert (
        caught.value.message == f"the policy {name} needs `prefill_tokens_per_s`, which is neither given nor measured"
    )
    assert caught.value.fix == (
        "add it to the observation, or a `history` whose replicas have prefilled_tokens and prefill_busy_s"
    )
