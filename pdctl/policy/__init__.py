"""Scaling policies: what each would change about a fleet, and why. No I/O, no clock, no randomness (docs/autoscale.md).

observe (observation.py) → estimate (its `estimate`) → propose (a policy) → constrain (constraints.py).
"""

from __future__ import annotations

from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pdctl.errors import UsageError
from pdctl.json_records import JsonPlace, parse_object, read_record
from pdctl.policy.blitz import BlitzBounds, propose_blitz
from pdctl.policy.constraints import Limits, constrain
from pdctl.policy.decision import Decision, estimate_cost
from pdctl.policy.dynamo import (
    DynamoLoadSettings,
    DynamoThroughputSettings,
    propose_dynamo_load,
    propose_dynamo_throughput,
)
from pdctl.policy.observation import Observation, estimate, read_observation
from pdctl.policy.reactive import (
    KpaSettings,
    OracleSettings,
    RatioSettings,
    StaticSettings,
    ThresholdSettings,
    WvaSettings,
    propose_kpa,
    propose_oracle,
    propose_ratio,
    propose_static,
    propose_thresholds,
    propose_wva,
)
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class ScalingPolicyName(str, Enum):
    BLITZ = "blitz"
    THRESHOLDS = "thresholds"
    RATIO = "ratio"
    STATIC = "static"
    DYNAMO_LOAD = "dynamo-load"
    DYNAMO_THROUGHPUT = "dynamo-throughput"
    WVA = "wva"
    KPA = "kpa"
    ORACLE = "oracle"


class ScalingPolicy(NamedTuple):
    """`settings`: the record whose defaults hold where none are given; `propose` takes a history and such a record.

    `interval_s`: seconds between two decisions where nobody says otherwise; None: it has no period of its own.
    """

    settings: type[Any]
    propose: Callable[[Sequence[Observation], Any], Decision]
    meaning: str
    interval_s: float | None


POLICIES: dict[ScalingPolicyName, ScalingPolicy] = {
    ScalingPolicyName.BLITZ: ScalingPolicy(
        BlitzBounds,
        propose_blitz,
        "BlitzScale's planner: backlog, KV memory and KV ingress, each within two bounds",
        0.1,  # planner.rs turns without a pause; the shortest batches it waits for take about as long
    ),
    ScalingPolicyName.THRESHOLDS: ScalingPolicy(
        ThresholdSettings,
        propose_thresholds,
        "one more if any queue or KV use is high, one less if all are low",
        5.0,  # Dynamo's load mode decides every 5 s
    ),
    ScalingPolicyName.RATIO: ScalingPolicy(
        RatioSettings, propose_ratio, "as many replicas as there are, shared out by what each role needs", 5.0
    ),
    ScalingPolicyName.STATIC: ScalingPolicy(StaticSettings, propose_static, "a fixed number of each role", None),
    ScalingPolicyName.DYNAMO_LOAD: ScalingPolicy(
        DynamoLoadSettings,
        propose_dynamo_load,
        "Dynamo's load mode: one more if all of a role miss the target",
        5.0,  # Dynamo's load mode decides every 5 s
    ),
    ScalingPolicyName.DYNAMO_THROUGHPUT: ScalingPolicy(
        DynamoThroughputSettings,
        propose_dynamo_throughput,
        "Dynamo's throughput mode: what expected arrivals need",
        180.0,  # Dynamo's throughput mode decides every 180 s
    ),
    ScalingPolicyName.WVA: ScalingPolicy(
        WvaSettings,
        propose_wva,
        "llm-d's saturation rule: keep some KV memory and queue to spare on average",
        30.0,  # as long as llm-d waits between two looks
    ),
    ScalingPolicyName.KPA: ScalingPolicy(
        KpaSettings,
        propose_kpa,
        "Knative's averages: a stable window, and a panic window for bursts",
        2.0,  # Knative: the tick of its autoscaler
    ),
    ScalingPolicyName.ORACLE: ScalingPolicy(
        OracleSettings, propose_oracle, "clairvoyant: the fewest replicas for the arrivals it is told of", 1.0
    ),
}


class DecisionInput(NamedTuple):
    """What a decision is made from. `settings`: a record of the policy's; `limits`: None for the proposal as it is."""

    history: tuple[Observation, ...]
    settings: Any
    limits: Limits | None


def decide(name: ScalingPolicyName, given: DecisionInput) -> Decision:
    """Raise UsageError if the policy needs a figure that is neither given nor measured."""
    history = estimate(given.history)
    decision = POLICIES[name].propose(history, given.settings)
    if given.limits is not None:
        decision = constrain(decision, history[-1], given.limits, history)
    return decision._replace(expected_cost=estimate_cost(decision, history[-1]))


SHAPE = "an observation is a JSON object: docs/autoscale.md"
BESIDE = ("bounds", "settings", "limits", "history")  # members of a file beside those of the newest observation


def read_input(data: bytes, file: str, name: ScalingPolicyName) -> DecisionInput:
    """A file's newest observation, earlier ones in `history`, `limits`, and the policy's settings. Raise UsageError.

    The settings of `blitz` are `bounds`; for any other policy `bounds` are checked and not used.
    """
    members, place = parse_object(data, file, SHAPE), JsonPlace(file)
    beside = {member: members.pop(member) for member in BESIDE if member in members}
    now = read_observation(members, place, BESIDE)
    earlier = beside.get("history", [])
    if not isinstance(earlier, list):
        raise UsageError(f"{place.member('history')} is no list", "give a list of observations, the oldest first")
    history = [read_observation(one, place.member("history").entry(at)) for at, one in enumerate(earlier)]
    for at, (one, later) in enumerate(pairwise((*history, now))):
        if one.time_s >= later.time_s:
            where = place.member("history").entry(at).member("time_s")
            raise UsageError(
                f"{where} is {one.time_s:g}, and the observation after it has {later.time_s:g}",
                "give the oldest first, each with its `time_s`",
            )
    bounds = read_record(BlitzBounds, beside.get("bounds", {}), place.member("bounds"))
    chosen = POLICIES[name]
    if chosen.settings is BlitzBounds:
        if "settings" in beside:
            raise UsageError(f"{place}: the settings of {name.value} are the member `bounds`", "leave `settings` out")
        settings: object = bounds
    else:
        settings = read_record(chosen.settings, beside.get("settings", {}), place.member("settings"))
    limits = read_record(Limits, beside["limits"], place.member("limits")) if "limits" in beside else None
    return DecisionInput((*history, now), settings, limits)
