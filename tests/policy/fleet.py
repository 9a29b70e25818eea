"""Fleets that policies look at."""

from __future__ import annotations

import dataclasses
from typing import Any

from pdctl.policy import POLICIES, ScalingPolicyName
from pdctl.policy.observation import MeasuredTraffic, Observation, ReplicaLoad, estimate
from pdctl.replica.states import ReplicaState

ROOMY = Observation(
    prefills=2,
    decodes=2,
    waiting_prompt_tokens=0,
    kv_blocks_used=0,
    kv_blocks_used_on_prefill=0,
    block_tokens=64,
    kv_blocks_per_replica=30_000,
    prefill_tokens_per_s=15_000.0,
    kv_ingress_tokens_per_s=96_000.0,
)


def fleet(**members: Any) -> Observation:
    """Two prefills and two decodes with nothing to do, but for `members`; traffic by its own names."""
    traffic = {field.name for field in dataclasses.fields(MeasuredTraffic)}
    measured = {name: value for name, value in members.items() if name in traffic}
    own = {name: value for name, value in members.items() if name not in traffic}
    return dataclasses.replace(ROOMY, measured=MeasuredTraffic(**measured), **own)


def replica(name: str, state: str, **members: Any) -> ReplicaLoad:
    return ReplicaLoad(name=name, state=ReplicaState(state), **members)


def deltas(name: str, *history: Observation, **settings: Any) -> tuple[int, int]:
    policy = POLICIES[ScalingPolicyName(name)]
    decision = policy.propose(estimate(history), policy.settings(**settings))
    return decision.prefill_delta, decision.decode_delta
