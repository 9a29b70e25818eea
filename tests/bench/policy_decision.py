"""Milliseconds of one scaling decision, per policy, over a fleet of many replicas with a history and limits.

Usage: python -m tests.bench.policy_decision [--replicas 1000] [--history 13] [--rounds 30]
"""

from __future__ import annotations

import argparse
import statistics
import time

from pdctl.policy import POLICIES, DecisionInput, decide
from pdctl.policy.constraints import Limits
from pdctl.policy.observation import Arrival, MeasuredTraffic, Observation, QueueDepths, ReplicaLoad
from pdctl.replica.states import ReplicaState


def observed(replicas: int, time_s: float) -> Observation:
    """Half of them prefills; every fourth counts tokens at a rate of its own; nothing is given that can be measured."""
    prefills = replicas // 2
    listed = tuple(
        ReplicaLoad(
            name=f"replica-{at}",
            state=ReplicaState.PREFILL if at < prefills else ReplicaState.DECODE,
            kv_blocks_used=at % 20_000,
            waiting_prompt_tokens=at % 4_000 if at < prefills else 0,
            queues=QueueDepths(waiting=at % 5, transfer=at % 3),
            prefilled_tokens=int(time_s * (10_000 + at % 4)),
            prefill_busy_s=time_s,
            received_kv_tokens=int(time_s * (90_000 + at % 4)),
            kv_ingress_busy_s=time_s,
            decode_steps=int(time_s * 30),
            decode_busy_s=time_s,
        )
        for at in range(replicas)
    )
    return Observation(
        prefills=prefills,
        decodes=replicas - prefills,
        waiting_prompt_tokens=sum(one.waiting_prompt_tokens for one in listed) + 100_000,
        kv_blocks_used=sum(one.kv_blocks_used for one in listed),
        kv_blocks_used_on_prefill=sum(one.kv_blocks_used for one in listed[:prefills]),
        block_tokens=64,
        kv_blocks_per_replica=30_000,
        time_s=time_s,
        measured=MeasuredTraffic(requests_per_s=400.0, prompt_tokens=3_000.0, output_tokens=300.0),
        replicas=listed,
        arrivals_ahead=tuple(Arrival(at / 400, 3_000, 300) for at in range(1_000)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=1_000)
    parser.add_argument("--history", type=int, default=13, help="observations, 5 s apart: 13 are the windows' minute")
    parser.add_argument("--rounds", type=int, default=30)
    asked = parser.parse_args()
    history = tuple(observed(asked.replicas, 5.0 * at) for at in range(1, asked.history + 1))
    limits = Limits(gpus=asked.replicas + 50, cooldown_up_s=30.0, cooldown_down_s=60.0)
    print(f"{asked.replicas} replicas, {asked.history} observations, {asked.rounds} rounds")
    print(f"{'policy':20} {'min ms':>8} {'median ms':>10}  decision")
    for name, policy in POLICIES.items():
        given = DecisionInput(history, policy.settings(), limits)
        times = []
        for _ in range(asked.rounds):
            before = time.process_time()
            found = decide(name, given)
            times.append((time.process_time() - before) * 1e3)
        deltas = f"P{found.prefill_delta:+d} D{found.decode_delta:+d}"
        print(f"{name.value:20} {min(times):8.2f} {statistics.median(times):10.2f}  {deltas}")


if __name__ == "__main__":
    main()
