"""What holds of every policy: pure, monotone in the backlog, and within its limits after `constrain`."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import random
from collections.abc import Iterator
from typing import Any

from pdctl.errors import UsageError
from pdctl.json_records import REQUIRED, SMALLEST, figures
from pdctl.policy import POLICIES, DecisionInput, ScalingPolicyName, decide, read_input
from pdctl.policy.constraints import Limits
from pdctl.policy.observation import Arrival, Observation, ReplicaLoad
from pdctl.replica.states import ReplicaState
from tests.cases import for_each
from tests.policy.fleet import fleet, replica

FLEETS = 80
PREFILL_STATES = ("prefill", "loadingprefill", "newprefill", "oldprefill", "ausprefill", "refractoryprefill")
DECODE_STATES = ("decode", "loadingdecode", "ausdecode", "mutatingtodecode")
OTHERS = ("inactive", "shuttingprefill", "shuttingdecode", "shuttingnull", "failed")


def random_fleets(name: str) -> Iterator[tuple[Observation, ...]]:
    """Histories of one to nine observations, with and without a list of replicas; the same for the same name."""
    dice = random.Random(name)
    for _ in range(FLEETS):
        size = dice.randint(1, 9)
        yield tuple(random_observation(dice, 5.0 * at, listed=bool(size % 2)) for at in range(1, size + 1))


def random_observation(dice: random.Random, time_s: float, *, listed: bool) -> Observation:
    prefills, decodes = dice.randint(0, 6), dice.randint(0, 6)
    used = dice.randint(0, 150_000)
    return fleet(
        time_s=time_s,
        prefills=prefills,
        decodes=decodes,
        waiting_prompt_tokens=dice.choice((0, dice.randint(0, 200_000))),
        kv_blocks_used=used,
        kv_blocks_used_on_prefill=dice.randint(0, used) if prefills else 0,
        pending_prefills=0 if listed else dice.randint(0, prefills),
        pending_decodes=0 if listed else dice.randint(0, decodes),
        replicas=tuple(random_replicas(dice, prefills, decodes)) if listed else (),
        arrivals_ahead=tuple(
            Arrival(dice.uniform(0, 90), dice.randint(1, 20_000), dice.randint(1, 2_000))
            for _ in range(dice.randint(0, 9))
        ),
        requests_per_s=dice.uniform(0, 20),
        prompt_tokens=dice.choice((None, dice.uniform(1, 10_000))),
        itl_s=dice.choice((None, dice.uniform(0.001, 0.2))),
    )


def random_replicas(dice: random.Random, prefills: int, decodes: int) -> Iterator[ReplicaLoad]:
    groups = ((PREFILL_STATES, prefills), (DECODE_STATES, decodes), (OTHERS, dice.randint(0, 2)))
    for states, count in groups:
        for at in range(count):
            yield replica(
                f"{states[0]}-{at}", dice.choice(states),
                ready=dice.random() < 0.8, kv_blocks_used=dice.randint(0, 30_000),
                waiting_prompt_tokens=dice.randint(0, 20_000),
            )  # fmt: skip


def decisions(name: ScalingPolicyName, history: tuple[Observation, ...], limits: Limits | None) -> tuple[int, int]:
    one = decide(name, DecisionInput(history, POLICIES[name].settings(), limits))
    return one.prefill_delta, one.decode_delta


@for_each("name", list(ScalingPolicyName))
def test_more_backlog_never_lowers_the_number_of_prefills_wanted(name: ScalingPolicyName) -> None:
    for history in random_fleets(name.value):
        wanted = []
        for tokens in (0, 500, 5_000, 20_000, 60_000, 150_000, 600_000):
            now = dataclasses.replace(history[-1], waiting_prompt_tokens=tokens)
            wanted.append(decisions(name, (*history[:-1], now), None)[0])
        assert wanted == sorted(wanted), (name, history)


def extreme(of: type, dice: random.Random) -> Any:
    """A record of the least and greatest numbers that its members take, or of their defaults."""
    given: dict[str, Any] = {}
    for name, figure in figures(of).items():
        ends = (figure.least, figure.most, min(1, figure.most))
        if figure.kind in ("whole", "number"):
            given[name] = dice.choice(ends)
        elif figure.kind.endswith("range"):
            given[name] = tuple(sorted((dice.choice(ends), dice.choice(ends))))
        elif figure.kind == "object" and figure.of is not None:
            given[name] = extreme(figure.of, dice)
    return given if of in (Observation, ReplicaLoad) else of(**given)


def extreme_observation(dice: random.Random, time_s: float) -> Observation:
    given = extreme(Observation, dice) | {"time_s": time_s, "arrivals_ahead": (extreme(Arrival, dice),)}
    counts = [min(given[name], 3) for name in ("prefills", "decodes")]
    if dice.random() < 0.5:  # as a list, with counters at their ends
        states = ["prefill"] * counts[0] + ["decode"] * counts[1]
        listed = [extreme(ReplicaLoad, dice) for _ in states]
        each = [ReplicaLoad(**one | {"name": str(at), "state": ReplicaState(state)}) for at, (one, state) in
                enumerate(zip(listed, states, strict=True))]  # fmt: skip
        given |= {"replicas": tuple(each), "prefills": counts[0], "decodes": counts[1]}
        given |= {"prefill_tokens_per_s": None, "kv_ingress_tokens_per_s": None}
    return Observation(**given)


@for_each("name", list(ScalingPolicyName))
def test_no_number_that_is_taken_is_too_large_or_too_small(name: ScalingPolicyName) -> None:
    """Whatever the members' ends, there is a decision, or a figure is asked for; every number in it is finite."""
    dice, made = random.Random(name.value), 0
    for _ in range(300):
        times = dice.choice(((0.0, SMALLEST / 2, 10.0**15), (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)))
        history = tuple(extreme_observation(dice, time_s) for time_s in times)
        limits = dice.choice((None, extreme(Limits, dice)))
        given = DecisionInput(history, extreme(POLICIES[name].settings, dice), limits)
        try:
            found = decide(name, given)
        except UsageError:
            continue
        made += 1
        assert all(math.isfinite(one.value) for one in (*found.terms, *found.expected_cost))
    assert made > 30


TINY_AND_HUGE = (0, 1, 2.0, 1e-9, 1e-320, 5e-324, 2.2e-308, -1e-320, 0.5, 1e14 + 0.5, 10**15, 10**16, 1e308, 10**400)


def hostile_json(of: type, dice: random.Random) -> dict[str, Any]:
    """A record as JSON: most numbers at an end of what their members take, a few far outside; some left out."""
    given: dict[str, Any] = {}
    needed = {field.name for field in dataclasses.fields(of) if field.default is REQUIRED}
    for name, figure in figures(of).items():
        if name not in needed and dice.random() < 0.3:
            continue
        numbers = [figure.least, int(figure.most), min(1, figure.most)]
        if dice.random() < 0.01:
            numbers = list(TINY_AND_HUGE)
        if figure.kind in ("whole", "number"):
            given[name] = dice.choice(numbers)
        elif figure.kind.endswith("range"):
            given[name] = sorted(dice.choices(numbers, k=2))
        elif figure.kind == "object" and figure.of is not None:
            given[name] = hostile_json(figure.of, dice)
        elif figure.of is Arrival:
            given[name] = [hostile_json(Arrival, dice) for _ in range(3)]
    return given


def hostile_file(name: ScalingPolicyName, dice: random.Random) -> bytes:
    history = [hostile_json(Observation, dice) | {"time_s": float(at)} for at in range(dice.randint(1, 6))]
    for one in history:  # else most are refused, as a part must not be above its total
        one["kv_blocks_used_on_prefill"] = dice.choice((0, one["kv_blocks_used"]))
        one.pop("pending_prefills", None)
        one.pop("pending_decodes", None)
        if dice.random() < 0.5:
            states = dice.choices(("prefill", "decode", "loadingprefill", "failed"), k=3)
            one["replicas"] = [
                hostile_json(ReplicaLoad, dice) | {"name": str(at), "state": state} for at, state in enumerate(states)
            ]
            one["prefills"], one["decodes"] = sum("prefill" in state for state in states), states.count("decode")
    settings = POLICIES[name].settings
    beside = "bounds" if name is ScalingPolicyName.BLITZ else "settings"
    members = {**history.pop(), "history": history, beside: hostile_json(settings, dice)}
    if dice.random() < 0.5:
        members["limits"] = hostile_json(Limits, dice)
    return json.dumps(members).encode()


@for_each("name", list(ScalingPolicyName))
def test_a_file_of_any_numbers_gets_a_decision_in_finite_numbers_or_a_clear_error(name: ScalingPolicyName) -> None:
    dice, made, refused = random.Random(f"files of {name.value}"), 0, 0
    for _ in range(200):
        data = hostile_file(name, dice)
        try:
            found = decide(name, read_input(data, "f.json", name))
        except UsageError:
            refused += 1
            continue
        made += 1
        text = json.dumps(found.document(), allow_nan=False)  # raises at a number that is not finite
        assert " inf" not in text.lower(), (text, data)
        assert " nan" not in text.lower(), (text, data)
    assert made > 20, (made, refused)
    assert refused > 20, (made, refused)


@for_each("name", list(ScalingPolicyName))
def test_a_decision_is_a_function_of_its_input_alone(name: ScalingPolicyName) -> None:
    for history in random_fleets(name.value):
        given = DecisionInput(history, POLICIES[name].settings(), Limits(gpus=7, cooldown_down_s=12.0))
        before = copy.deepcopy(given)
        first = decide(name, given)
        assert decide(name, before) == first
        assert given == before, "the input was changed"
        assert all(each.because for each in (*first.terms, *first.refused))


@for_each("name", list(ScalingPolicyName))
def test_what_limits_allow_is_within_them(name: ScalingPolicyName) -> None:
    """Whatever is proposed: bounds and GPUs hold where they can, one leaves at a time, and the last ready one never."""
    dice = random.Random(name.value)
    for history in random_fleets(name.value):
        now, lowest = history[-1], dice.randint(1, 3)
        limits = Limits(prefill=(lowest, 5), decode=(1, lowest + 3), gpus=dice.randint(2, 14))
        deltas = decisions(name, history, limits)
        held = sum(one.state.value in ("shuttingprefill", "shuttingdecode", "shuttingnull") for one in now.replicas)
        present = now.prefills + now.decodes + held
        assert present + sum(deltas) <= max(limits.gpus or 0, present)
        for pool, delta, (least, most) in zip(now.pools, deltas, (limits.prefill, limits.decode), strict=True):
            assert delta >= -1
            assert delta <= 0 or pool.size + delta <= most
            if delta < 0:
                assert pool.size + delta >= least
                assert pool.ready >= 2
