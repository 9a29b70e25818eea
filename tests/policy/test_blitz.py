"""BlitzScale's formulas: golden vectors, the order of divisions, the unit defect and its mending."""

from __future__ import annotations

from typing import Any

import pytest

from pdctl.errors import UsageError
from pdctl.policy.blitz import BlitzBounds, propose_blitz
from pdctl.policy.observation import Observation, estimate
from tests.cases import for_each
from tests.policy.fleet import deltas, fleet, replica

# P, D, blocks on prefills, blocks on all, waiting prompt tokens → change of P, of D: worked out from the published
# formulas with 15 kTok/s, 96 kTok/s, 30,000 blocks of 64 tokens and the bounds that are the defaults.
GOLDEN = [
    ((2, 2, 0, 0, 0), (-1, -1)),
    ((2, 2, 0, 0, 30_000), (2, -1)),
    ((2, 2, 0, 0, 9_000), (0, -1)),
    ((2, 2, 1_000, 70_000, 20_000), (0, 2)),
    ((1, 1, 0, 0, 100_000), (11, 0)),
    ((3, 4, 0, 30_000, 0), (-1, -1)),
    ((2, 2, 3_000, 20_000, 21_000), (1, 0)),
]


def seen(prefills: int, decodes: int, on_prefill: int, used: int, waiting: int, **members: Any) -> Observation:
    return fleet(
        prefills=prefills,
        decodes=decodes,
        kv_blocks_used_on_prefill=on_prefill,
        kv_blocks_used=used,
        waiting_prompt_tokens=waiting,
        **members,
    )


@for_each(("numbers", "expected"), GOLDEN)
def test_the_golden_vectors(numbers: tuple[int, ...], expected: tuple[int, int]) -> None:
    assert deltas("blitz", seen(*numbers)) == expected


def test_the_divisions_are_made_in_the_published_order() -> None:
    """21000 / 0.7 / 15000 is a little more than 2 in doubles; with the bound multiplied first it is 2: no step."""
    assert 21_000 / (0.7 * 15_000) == 2.0
    assert deltas("blitz", fleet(waiting_prompt_tokens=21_000)) == (1, -1)


def test_an_empty_pool_gets_one_and_the_last_one_stays() -> None:
    assert deltas("blitz", fleet(prefills=0, decodes=0)) == (1, 1)
    assert deltas("blitz", fleet(prefills=1, decodes=1)) == (0, 0)


def test_kv_on_prefills_orders_nothing_by_the_ingress_of_no_decode() -> None:
    """3,750 blocks are 240 kTok; what they need is KV memory: 3,750 / (0.95 × 30,000) = 1."""
    decision = propose_blitz([seen(2, 0, 3_750, 3_750, 9_000)], BlitzBounds())
    assert (decision.prefill_delta, decision.decode_delta) == (0, 1)
    words = {one.name: (one.value, one.because) for one in decision.terms}
    for name in ("kv_ingress_at_least", "kv_ingress_at_most"):
        assert words[name] == (0, "KV waiting on prefills 240 kTok, which no decode takes in")
    several = propose_blitz([seen(2, 0, 3_750, 70_000, 9_000)], BlitzBounds())
    assert several.terms[1].because == (
        "D: KV memory 70,000 blocks / (0.95 × 30,000 blocks) = 3 > 0; the middle of 3 to 4 is 4"
    )


def test_a_measured_arrival_rate_replaces_the_published_ingress_term() -> None:
    """300 kTok/s arrive, a decode takes 96: 300 / (0.8 × 96) = 3.9 to 300 / (0.4 × 96) = 7.8, so 4 to 8: 6.

    As published the 3,000 blocks on prefills give 192 kTok / (0.8 × 2 × 96) = 1.25 to 2.5: 2 to 3, and no step.
    """
    waiting = seen(2, 2, 3_000, 20_000, 0)
    assert deltas("blitz", waiting) == (0, 0)
    mended = seen(2, 2, 3_000, 20_000, 0, kv_arrival_tokens_per_s=300_000.0)
    decision = propose_blitz([mended], BlitzBounds())
    assert (decision.prefill_delta, decision.decode_delta) == (4, 4)
    assert decision.terms[1].because == (
        "D: KV arrival 300 kTok/s / (0.8 × 96 kTok/s) = 4 > 2; the middle of 4 to 8 is 6"
    )
    published = propose_blitz([waiting], BlitzBounds())
    (ingress,) = [one for one in published.terms if one.name == "kv_ingress_at_least"]
    assert ingress.because == (
        "KV waiting on prefills 192 kTok / (0.8 × 2 × 96 kTok/s, as published: no KV arrival rate is measured) = 2"
    )


def test_the_binding_term_says_its_arithmetic() -> None:
    bounds = BlitzBounds(prefill=(0.5, 0.7))
    decision = propose_blitz([fleet(prefills=3, waiting_prompt_tokens=42_000, prefill_tokens_per_s=12_100.0)], bounds)
    assert decision.terms[0] == (
        "prefill", 6, "P: backlog 42 kTok / (0.7 s × 12.1 kTok/s) = 5 > 3; the middle of 5 to 7 is 6",
    )  # fmt: skip


def counted(time_s: float, tokens: int, busy_s: float, **members: Any) -> Observation:
    """A fleet whose rates are not given; one prefill and one decode count."""
    found = {
        "prefill_tokens_per_s": None,
        "kv_ingress_tokens_per_s": None,
        "prefills": 1,
        "decodes": 1,
        "time_s": time_s,
        "replicas": (
            replica("p0", "prefill", prefilled_tokens=tokens, prefill_busy_s=busy_s),
            replica("d0", "decode", received_kv_tokens=tokens, kv_ingress_busy_s=busy_s / 4),
        ),
    }
    return fleet(**{**found, **members})


def test_rates_are_measured_from_two_observations_and_given_ones_win() -> None:
    """20 kTok in 2 busy seconds are 10 kTok/s; the same tokens in 0.5 s of ingress 40 kTok/s; in 5 s 4 kTok/s."""
    earlier, now = counted(10, 1_000, 1.0), counted(15, 21_000, 3.0, waiting_prompt_tokens=28_000)
    decision = propose_blitz(estimate((earlier, now)), BlitzBounds())
    words = {one.name: one.because for one in decision.terms}
    assert words["prefill_backlog_at_least"] == "backlog 28 kTok / (0.7 s × 10 kTok/s) = 4"
    assert words["kv_ingress_at_least"] == "KV arrival 4 kTok/s / (0.8 × 40 kTok/s) = 1"
    given = counted(15, 21_000, 3.0, waiting_prompt_tokens=28_000, prefill_tokens_per_s=20_000.0)
    words = {one.name: one.because for one in propose_blitz(estimate((earlier, given)), BlitzBounds()).terms}
    assert words["prefill_backlog_at_least"] == "backlog 28 kTok / (0.7 s × 20 kTok/s) = 2"


def test_a_replica_that_was_started_again_is_left_out_of_the_measurement() -> None:
    earlier, now = counted(10, 50_000, 9.0), counted(15, 21_000, 3.0)
    with pytest.raises(UsageError, match="the policy blitz needs `prefill_tokens_per_s`, which is neither given nor"):
        deltas("blitz", earlier, now)


def test_an_idle_interval_is_measured_over_the_whole_history() -> None:
    """Nothing was computed in the last 5 s: the rate is the one since the oldest observation, 20 kTok in 2 s."""
    history = [counted(5, 1_000, 1.0), counted(10, 21_000, 3.0), counted(15, 21_000, 3.0, waiting_prompt_tokens=70_000)]
    assert estimate(history)[-1].prefill_tokens_per_s == 10_000.0
