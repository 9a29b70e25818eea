"""Each limit and each rule: what it lets through, what it refuses, and in which words."""

from __future__ import annotations

from typing import Any

from pdctl.policy.constraints import Limits, constrain
from pdctl.policy.decision import Decision
from pdctl.policy.observation import Observation
from tests.policy.fleet import fleet, replica

WIDE = Limits()


def held(prefills: int, decodes: int, *history: Observation, **limits: Any) -> tuple[tuple[int, int], list[str]]:
    """The deltas that are left of a proposal, and what is refused with the reasons."""
    one = constrain(Decision("static", prefills, decodes, ()), history[-1], Limits(**limits), history)
    return (one.prefill_delta, one.decode_delta), [f"{no.action}: {no.because}" for no in one.refused]


def test_a_proposal_within_its_limits_stays_as_it_is() -> None:
    assert held(3, -1, fleet()) == ((3, -1), [])
    assert held(0, 0, fleet(waiting_prompt_tokens=10**6, kv_blocks_used=10**6)) == ((0, 0), [])


def test_fewest_and_most() -> None:
    assert held(3, -1, fleet(), prefill=(1, 4), decode=(2, 4)) == (
        (2, 0),
        ["prefill +3: the limits of prefill are 1 to 4: +2", "decode -1: the limits of decode are 2 to 4"],
    )


def test_a_fleet_outside_its_limits_comes_back_into_them() -> None:
    """Two prefills are fewer than 4: two more, whatever speaks against it. Three decodes are more than 2: one less."""
    seen = fleet(decodes=3, pending_prefills=1)
    one = constrain(Decision("static", 0, 0, ()), seen, Limits(prefill=(4, 9), decode=(1, 2), cooldown_up_s=60), [seen])
    assert (one.prefill_delta, one.decode_delta) == (2, -1)
    assert [term.because for term in one.terms] == [
        "P: 2 are there, the limits of prefill are 4 to 9",
        "D: 3 are there, the limits of decode are 1 to 2",
    ]


def test_one_leaves_at_a_time() -> None:
    assert held(-3, 0, fleet(prefills=6)) == ((-1, 0), ["prefill -3: one leaves at a time: -1"])
    leaving = (
        *(replica(f"p{at}", "prefill") for at in range(3)),
        replica("p3", "shuttingprefill"),
        replica("p4", "mutatingtoprefill"),
        replica("d0", "decode"),
        replica("d1", "decode"),
    )
    both = held(-1, -1, fleet(prefills=4, replicas=leaving))
    assert both == (
        (0, 0),
        [
            "prefill -1: p3 is still leaving, and one leaves at a time",
            "decode -1: p4 is still leaving, and one leaves at a time",
        ],
    )


def test_the_last_ready_one_stays() -> None:
    assert held(-1, -1, fleet(prefills=1, decodes=1), prefill=(1, 9)) == (
        (0, 0),
        ["prefill -1: the limits of prefill are 1 to 9", "decode -1: the limits of decode are 1 to 1,000,000"],
    )
    assert held(-1, -1, fleet(pending_prefills=1, pending_decodes=2)) == (
        (0, 0),
        ["prefill -1: it is the last ready prefill", "decode -1: no decode is ready"],
    )


def test_a_replica_that_does_not_answer_is_not_ready() -> None:
    listed = (replica("p0", "prefill"), replica("p1", "prefill", ready=False), replica("p2", "loadingprefill"))
    listed = (*listed, replica("d0", "decode"), replica("d1", "decode"))
    assert held(-1, -1, fleet(prefills=3, replicas=listed)) == ((0, -1), ["prefill -1: it is the last ready prefill"])


def test_cooldowns_begin_at_the_last_change_of_the_role() -> None:
    history = [fleet(time_s=100, prefills=3), fleet(time_s=110), fleet(time_s=130), fleet(time_s=140)]
    why = "it changed 30 s ago, and the cooldown is 31 s"
    assert held(1, 1, *history, cooldown_up_s=31) == ((0, 1), [f"prefill +1: {why}"])
    assert held(-1, -1, *history, cooldown_down_s=31) == ((0, -1), [f"prefill -1: {why}"])
    assert held(1, -1, *history, cooldown_up_s=30, cooldown_down_s=30) == ((1, -1), [])
    assert held(1, 1, *history, cooldown_down_s=300) == ((1, 1), []), "down is not up"


def test_pending_prefills_that_will_drain_the_backlog_are_enough() -> None:
    """30 kTok on two prefills of 15 kTok/s take 1 s, with one of them pending; 31 kTok take longer."""
    assert held(1, 0, fleet(pending_prefills=1, waiting_prompt_tokens=30_000)) == (
        (0, 0),
        ["prefill +1: with 1 pending the backlog drains in time: 30 kTok / (2 × 15 kTok/s) = 1 s <= 1 s"],
    )
    assert held(1, 0, fleet(pending_prefills=1, waiting_prompt_tokens=31_000)) == ((1, 0), [])
    assert held(1, 0, fleet(waiting_prompt_tokens=30_000)) == ((1, 0), []), "none is pending"


def test_pending_decodes_that_will_hold_the_cache_are_enough() -> None:
    assert held(0, 2, fleet(pending_decodes=1, kv_blocks_used=48_000)) == (
        (0, 0),
        ["decode +2: with 1 pending the KV use is 0.8 <= 0.8"],
    )
    assert held(0, 2, fleet(pending_decodes=1, kv_blocks_used=48_001)) == ((0, 2), [])


def test_none_leaves_whose_load_the_others_cannot_carry() -> None:
    """On one prefill 16 kTok take 1.07 s; on one of two decodes 25,000 blocks are 0.83 of its 30,000."""
    assert held(-1, -1, fleet(waiting_prompt_tokens=16_000, kv_blocks_used=25_000)) == (
        (0, 0),
        [
            "prefill -1: 1 would need 1.07 s > 1 s for the backlog of 16 kTok",
            "decode -1: the KV use of 1 would be 0.833 > 0.8",
        ],
    )
    assert held(-1, -1, fleet(waiting_prompt_tokens=15_000, kv_blocks_used=24_000)) == ((-1, -1), [])


def test_arrivals_count_as_load_of_prefills() -> None:
    """8 requests/s of 3,000 tokens, half of them cached, are 12 kTok/s: 0.8 of one prefill; 9 are 0.9."""
    seen = {"prompt_tokens": 3_000.0, "cached_share": 0.5}
    assert held(-1, 0, fleet(requests_per_s=8.0, **seen)) == ((-1, 0), [])
    assert held(-1, 0, fleet(requests_per_s=9.0, **seen)) == (
        (0, 0),
        ["prefill -1: arrivals of 13.5 kTok/s would use 0.9 > 0.8 of 1"],
    )


def test_free_gpus_are_given_in_turn_a_decode_first() -> None:
    assert held(3, 3, fleet(), gpus=7) == (
        (1, 2),
        ["prefill +3: 4 of 7 GPUs are in use: +1", "decode +3: 4 of 7 GPUs are in use: +2"],
    )
    assert held(3, 3, fleet(), gpus=10) == ((3, 3), [])
    assert held(2, 2, fleet(), gpus=9, gpus_per_prefill=2) == (
        (1, 1),
        ["prefill +2: 6 of 9 GPUs are in use: +1", "decode +2: 6 of 9 GPUs are in use: +1"],
    )


def test_where_no_gpu_is_free_one_changes_its_role() -> None:
    seen = fleet()
    one = constrain(Decision("static", 0, 2, ()), seen, Limits(gpus=4), [seen])
    assert (one.prefill_delta, one.decode_delta) == (-1, 1)
    assert one.terms[0] == ("gpu_budget", 4, "4 of 4 GPUs are in use: P−1, D+1, one changes its role")
    assert one.refused == (("decode +2", "4 of 4 GPUs are in use: +1"),)
    assert held(1, 0, seen, gpus=4) == ((1, -1), [])
    assert held(1, 0, seen, gpus=5) == ((1, 0), []), "one is free"
    assert held(1, -1, seen, gpus=4) == ((1, -1), []), "it was proposed so"


def test_one_that_may_not_leave_does_not_change_its_role_either() -> None:
    assert held(1, 0, fleet(kv_blocks_used=25_000), gpus=4) == (
        (0, 0),
        ["decode -1: the KV use of 1 would be 0.833 > 0.8", "prefill +1: 4 of 4 GPUs are in use"],
    )
    assert held(1, 1, fleet(), gpus=4) == (
        (0, 0),
        ["prefill +1: 4 of 4 GPUs are in use", "decode +1: 4 of 4 GPUs are in use"],
    )
    assert held(1, 0, fleet(), gpus=6, gpus_per_prefill=2, gpus_per_decode=1) == (
        (0, 0),
        ["decode -1: one prefill needs 2 GPUs, it frees 1", "prefill +1: 6 of 6 GPUs are in use"],
    )


def test_replicas_that_are_empty_but_keep_their_weights_keep_their_gpus() -> None:
    listed = (
        replica("p0", "prefill"), replica("p1", "prefill"), replica("d0", "decode"), replica("d1", "decode"),
        replica("x0", "shuttingnull"), replica("x1", "inactive"),
    )  # fmt: skip
    assert held(0, 1, fleet(replicas=listed), gpus=6) == ((0, 1), [])
    assert held(1, 1, fleet(replicas=listed), gpus=6) == ((0, 1), ["prefill +1: 5 of 6 GPUs are in use"])
