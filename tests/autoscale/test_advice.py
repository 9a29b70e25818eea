"""Advice over looks, and its record: what was observed is decided again alike; what is wrong is named with its line."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl.autoscale.advice import (
    ADVISERS,
    AdviceSettings,
    Adviser,
    FixedRates,
    RecordedLook,
    as_members,
    choose_policies,
    read_looks,
    read_settings,
    split_lines,
)
from pdctl.errors import UsageError
from pdctl.json_records import JsonPlace
from pdctl.policy import POLICIES, ScalingPolicyName
from pdctl.policy.constraints import Limits
from pdctl.policy.observation import Observation, QueueDepths, read_observation
from tests.cases import for_each
from tests.policy.fleet import fleet, replica

PLAIN = AdviceSettings(ADVISERS, {}, Limits(), FixedRates())


def looks(*observations: Observation | None) -> list[RecordedLook]:
    return [
        RecordedLook(f"2026-11-24T01:00:{number:02}.000Z", one, (f"note {number}",))
        for number, one in enumerate(observations)
    ]


def record(chosen: AdviceSettings, seen: list[RecordedLook]) -> bytes:
    return b"".join(json.dumps(one.document()).encode() + b"\n" for one in (chosen, *seen))


def replayed(data: bytes) -> tuple[AdviceSettings, list[RecordedLook]]:
    lines = split_lines([data[:7], data[7:]], "r.jsonl", lambda _: None)
    number, first = next(lines)
    return read_settings(first, f"r.jsonl:{number}", None), list(read_looks(lines, "r.jsonl"))


def test_a_record_without_lines_is_refused_soon() -> None:
    """Each chunk is looked at once, not once for every chunk that follows."""
    chunks = itertools.repeat(bytes(1 << 12))
    with pytest.raises(UsageError, match=r"r\.jsonl:1 is longer than"):
        next(split_lines(chunks, "r.jsonl", lambda _: None))
    assert list(split_lines([b"a", b"b\nc", b"\n\nd\n"], "r.jsonl", lambda _: None)) == [
        (1, b"ab"), (2, b"c"), (3, b""), (4, b"d"),
    ]  # fmt: skip


counts = st.integers(0, 10**7)
seconds = st.floats(1e-5, 1e5, allow_nan=False)
fleets = st.builds(
    lambda prefills, decodes, waiting, used, rates, tokens, busy: fleet(
        prefills=len(prefills),
        decodes=len(decodes),
        waiting_prompt_tokens=waiting,
        kv_blocks_used=used * (len(prefills) + len(decodes)),
        kv_blocks_used_on_prefill=used * len(prefills),
        prefill_tokens_per_s=rates[0],
        kv_ingress_tokens_per_s=rates[1],
        requests_per_s=rates[2],
        itl_s=busy,
        replicas=tuple(
            replica(f"{role}-{number}", role, ready=ready, kv_blocks_used=used, prefilled_tokens=tokens,
                    prefill_busy_s=busy, queues=QueueDepths(waiting=3))
            for role, some in (("prefill", prefills), ("decode", decodes))
            for number, ready in enumerate(some)
        ),
    ),
    st.lists(st.booleans(), min_size=1, max_size=4),
    st.lists(st.booleans(), min_size=1, max_size=4),
    counts,
    st.integers(0, 30_000),
    st.tuples(seconds, seconds, seconds),
    counts,
    seconds,
)  # fmt: skip


@settings(max_examples=60)
@given(st.lists(fleets, min_size=1, max_size=6), st.lists(seconds, min_size=6, max_size=6))
def test_a_record_is_decided_again_bit_for_bit(seen: list[Observation], gaps: list[float]) -> None:
    at, timed = 0.0, []
    for one, gap in zip(seen, gaps, strict=False):
        at += gap
        timed.append(dataclasses.replace(one, time_s=at))
    live = looks(None, *timed)
    chosen, again = replayed(record(PLAIN, live))
    assert (chosen, again) == (PLAIN, live)
    first, second = Adviser(PLAIN), Adviser(chosen)
    for one, other in zip(live, again, strict=True):
        told = first.advise(one).document()
        assert json.dumps(told) == json.dumps(second.advise(other).document())
        assert len(told["decisions"]) + len(told["undecided"]) == (len(ADVISERS) if one.observation else 0)  # type: ignore[arg-type]


def test_every_policy_decides_or_says_why_it_cannot() -> None:
    (look,) = looks(fleet(prefill_tokens_per_s=None, waiting_prompt_tokens=5))
    told = Adviser(PLAIN).advise(look)
    assert {one.policy for one in told.decisions} | set(told.undecided) == {name.value for name in ADVISERS}
    assert "`prefill_tokens_per_s`, which is neither given nor measured" in told.undecided["blitz"]
    fixed = PLAIN._replace(rates=FixedRates(prefill_tokens_per_s=10.0))
    blitz = next(one for one in Adviser(fixed).advise(look).decisions if one.policy == "blitz")
    assert "/ (0.7 s × 10 Tok/s)" in blitz.terms[0].because or "backlog 5 Tok" in blitz.terms[0].because


def test_limits_and_settings_hold() -> None:
    given = {"limits": {"prefill": [1, 3]}, "settings": {"static": {"prefills": 9}}, "rates": {}}
    chosen = read_settings(json.dumps(given).encode(), "s.json", choose_policies("static"))
    (look,) = looks(fleet())
    (made,) = Adviser(chosen).advise(look).decisions
    assert made.prefill_delta == 1
    assert "the limits of prefill are 1 to 3" in made.refused[0].because
    assert read_settings(json.dumps(chosen.document()).encode(), "r", None) == chosen


def test_looks_are_kept_as_far_back_as_a_policy_goes() -> None:
    adviser = Adviser(PLAIN._replace(policies=choose_policies("kpa")))
    for second in range(0, 600, 5):
        adviser.advise(RecordedLook("", dataclasses.replace(fleet(), time_s=float(second)), ()))
    kept = [one.time_s for one in adviser._history]
    assert (kept[0], kept[-1]) == (535.0, 595.0), "kpa averages over 60 s"
    long = Adviser(PLAIN._replace(policies=choose_policies("dynamo-throughput,kpa")))
    for second in range(0, 600, 5):
        long.advise(RecordedLook("", dataclasses.replace(fleet(), time_s=float(second)), ()))
    assert long._history[0].time_s == 415.0, "dynamo-throughput over 180 s"


def test_of_looks_that_come_fast_those_are_kept_that_span_the_window() -> None:
    adviser = Adviser(PLAIN._replace(policies=choose_policies("static")))
    for number in range(20_000):
        adviser.advise(RecordedLook("", dataclasses.replace(fleet(), time_s=number / 100), ()))
    kept = [one.time_s for one in adviser._history]
    assert 256 <= len(kept) <= 514
    assert (kept[-2] < 199.98, kept[-1]) == (True, 199.99)
    assert 139.0 <= kept[0] <= 140.0
    gaps = [later - earlier for earlier, later in itertools.pairwise(kept)]
    assert max(gaps) < 0.15


@for_each("name", [name.value for name in POLICIES])
def test_an_observation_is_written_as_it_is_read(name: str) -> None:
    seen = fleet(
        prefills=1, decodes=1, requests_per_s=0.1, ttft_s=1 / 3, time_s=7.5,
        replicas=(replica("a", "prefill", queues=QueueDepths(inflight=2)), replica("b", "decode", ready=False)),
    )  # fmt: skip
    text = json.dumps(as_members(seen))
    assert read_observation(json.loads(text), JsonPlace("x")) == seen
    made = POLICIES[ScalingPolicyName(name)].settings()
    assert as_members(made) == {}


def test_a_last_line_that_was_not_written_to_its_end_is_left_out() -> None:
    live = looks(fleet(time_s=1.0), fleet(time_s=2.0))
    data = record(PLAIN, live)
    assert replayed(data[:-5])[1] == live[:1]


GOOD = json.dumps(PLAIN.document())
SEEN = json.dumps(looks(fleet(time_s=3.0))[0].document())
WRONG: dict[str, tuple[str, str]] = {
    "no record": ('{"limits": {}}', "r.jsonl:1 is no record: its first line has no `schema` pdctl.fleet-record/1"),
    "empty": ("\n", "r.jsonl:1 is empty"),
    "not JSON": (f"{GOOD}\nnonsense", "r.jsonl:2:1:1: not JSON: expecting value"),
    "a policy that is none": (GOOD.replace("blitz", "blits"), "r.jsonl:1: `policies`: there is no policy `blits`"),
    "a limit that is none": (
        GOOD.replace('"limits": {}', '"limits": {"gpu": 1}'), "r.jsonl:1: `limits`: there is no member `gpu`",
    ),
    "a setting of no policy": (
        GOOD.replace('"settings": {}', '"settings": {"kpaa": {}}'), "r.jsonl:1: `settings`: there is no policy `kpaa`",
    ),
    "a rate that is none": (
        GOOD.replace('"rates": {}', '"rates": {"prefill_tokens_per_s": -1}'),
        "r.jsonl:1: `rates.prefill_tokens_per_s` is -1, not a number from 0.000001 to 1,000,000,000,000,000",
    ),
    "a member that is none": (GOOD.replace('"rates"', '"rate"'), "r.jsonl:1: there is no member `rate`"),
    "no look": (f'{GOOD}\n{{"at": 5}}', "r.jsonl:2 is no look at a fleet: it needs `at`, `observation` and `notes`"),
    "no observation": (
        GOOD + '\n{"at": "2026-11-24T01:00:00Z", "notes": [], "observation": 3}',
        "r.jsonl:2: `observation` is 3, not an object",
    ),
    "a wrong observation": (
        f"{GOOD}\n{SEEN.replace('30000', '-1')}",
        "r.jsonl:2: `observation.kv_blocks_per_replica` is -1, not a whole number from 1 to 1,000,000,000,000,000",
    ),
    "no order": (
        f"{GOOD}\n{SEEN}\n{SEEN}", "r.jsonl:3: `observation.time_s` is 3, and the look before has 3",
    ),
}  # fmt: skip


@for_each("what", WRONG)
def test_what_is_wrong_with_a_record_is_said_with_its_line(what: str) -> None:
    text, expected = WRONG[what]
    with pytest.raises(UsageError) as error:
        replayed(text.encode() + b"\n")
    assert str(error.value) == expected
    assert error.value.fix


@for_each("data", [b"", b"[]", b"[" * 100_000])
def test_a_file_that_is_no_object_is_told_what_it_should_be(data: bytes) -> None:
    """Not what an observation is."""
    with pytest.raises(UsageError) as error:
        read_settings(data, "s.json", ADVISERS)
    assert error.value.fix == "settings are a JSON object of `limits`, `settings` and `rates`: docs/autoscale.md"
    for before, fix in ((b"", "give a file of --record"), (f"{GOOD}\n".encode(), "remove the line")):
        with pytest.raises(UsageError) as error:
            replayed(b"%s%s\n" % (before, data))
        assert error.value.fix == fix


def test_policies_are_chosen_by_name() -> None:
    assert choose_policies("") == ADVISERS
    assert choose_policies("kpa, blitz,kpa") == (ScalingPolicyName.KPA, ScalingPolicyName.BLITZ)

    def refused(words: str) -> Any:
        with pytest.raises(UsageError) as error:
            choose_policies(words)
        return str(error.value), error.value.fix

    assert refused("kpb") == ("--policy: there is no policy `kpb`", "did you mean `kpa`?")
    assert refused("oracle")[0] == "--policy: oracle decides by arrivals to come, which nobody observes"
