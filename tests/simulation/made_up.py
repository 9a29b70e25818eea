"""Simulated runs of known content, without a simulator: what statistics, documents and pages are tried on."""

from __future__ import annotations

import hashlib
from array import array
from random import Random
from typing import TYPE_CHECKING

from pdctl.policy import ScalingPolicyName
from pdctl.replica.states import ReplicaState
from pdctl.replica.transitions import ReplicaEvent
from pdctl.simulation.fleet_shape import SimulationSettings
from pdctl.simulation.kernel import SECOND
from pdctl.simulation.result import FleetSample, GpuTime, RequestColumns, SimulationRun, StateChange
from pdctl.simulation.run_series import draw_series
from pdctl.simulation.simulation_document import SimulationOutcome, SimulationSetup
from pdctl.simulation.statistics import SloTargets, summarize_policy, summarize_run
from pdctl.simulation.weight_loads import LoadPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

TARGETS = SloTargets(2 * SECOND, SECOND // 20)
ORDER = StateChange(5 * SECOND, 2, ReplicaEvent.LOAD_PREFILL, ReplicaState.INACTIVE, ReplicaState.LOADING_PREFILL)
SETTINGS = {name.value: SimulationSettings(policy=name, loading=LoadPlan.DISK) for name in ScalingPolicyName}
GPU_TIME = GpuTime(150.0, 30.0, 20.0)
DONE = StateChange(9 * SECOND, 2, ReplicaEvent.LOADED, ReplicaState.LOADING_PREFILL, ReplicaState.PREFILL)


def columns(rows: Sequence[tuple[int, int, int, int, int, int]]) -> RequestColumns:
    """`rows`: arrival, first token, end and TBT in ms (-1: never), prompt and answer."""
    million = [[value if value < 0 else value * 1_000_000 for value in row[:4]] + list(row[4:]) for row in rows]
    return RequestColumns(*(array("q", values) for values in zip(*million, strict=True)))


def run(
    rows: Sequence[tuple[int, int, int, int, int, int]],
    policy: str = "blitz",
    seed: int = 0,
    seconds: int = 100,
    samples: Sequence[FleetSample] = (),
    gpu_time: GpuTime = GPU_TIME,
) -> SimulationRun:
    digest = hashlib.sha256(f"{policy}/{seed}".encode()).hexdigest()
    given = columns(rows) if rows else RequestColumns(*(array("q") for _ in range(6)))
    moved = (10**9, 16 * 10**9)
    changes = (ORDER, DONE)
    return SimulationRun(
        policy,
        seed,
        digest,
        7 * len(rows),
        seconds * SECOND,
        given,
        changes,
        (),
        samples,
        gpu_time,
        *moved,
        1.25,
    )


def busy_run(policy: str, seed: int, speed: float) -> SimulationRun:
    """A minute with a burst in its middle, which a slow policy answers late."""
    draw = Random(f"{policy}/{seed}").random
    rows, samples = [], []
    for at in range(1200):
        arrival = at * 50
        burst = 3.0 if 25_000 < arrival < 35_000 else 0.4
        first = arrival + int(1000 * burst / speed * (0.5 + draw()))
        rows.append((arrival, first, first + 2000, int(30 + 20 * draw() * burst / speed), 500, 60))
    for second in range(120):
        late = 25 < second / 2 < 40
        replicas = {
            ReplicaState.PREFILL: 4 if late else 2,
            ReplicaState.LOADING_PREFILL: 2 if 24 < second / 2 < 26 else 0,
            ReplicaState.DECODE: 3 if late else 2,
            ReplicaState.SHUTTING_PREFILL: 2 if 40 <= second / 2 < 44 else 0,
            ReplicaState.SHUTTING_NULL: 2 if 44 <= second / 2 < 55 else 0,
            ReplicaState.INACTIVE: 4,
        }
        waiting = int(40 / speed * draw()) if late else int(3 * draw())
        samples.append(FleetSample(second * SECOND // 2, replicas, waiting, 0.3 + 0.3 * late))
    gpu_time = GpuTime(300.0 * speed, 20.0 * draw(), 30.0 * draw())
    return run(rows, policy, seed, 62, samples, gpu_time)


def outcome(policies: Sequence[str], seeds: int = 3) -> SimulationOutcome:
    runs = {name: [busy_run(name, seed, 1 + at / 2) for seed in range(seeds)] for at, name in enumerate(policies)}
    setup = SimulationSetup(
        "2p1d", "burst:rate=8,factor=5", "gpu-8b", ("disk",), TARGETS, {"prefill": [1, 4]},
        {"prefills": 2, "decodes": 2, "replicas": 8},
    )  # fmt: skip
    return SimulationOutcome(
        setup,
        [
            summarize_policy(name, SETTINGS[name], [summarize_run(one, TARGETS) for one in each])
            for name, each in runs.items()
        ],
        [draw_series(each[0]) for each in runs.values()],
    )
