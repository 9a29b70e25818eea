"""Events per CPU second of the simulator, by the size of the fleet, each in a process of its own.

Usage: python -m tests.bench.simulator [--gpus 1000 10000 100000] [--requests 100000] [--routing least-tokens] [--hour]

The load per prefill is the same in every fleet. `--hour` runs an hour like Mooncake's tool and agent traffic (23,608
requests, 8,596 tokens in and 182 out on average) under `blitz`. The pairs are heap pushes and pops of tuples like those
of the simulator, timed before each run: what the machine has to give at that moment.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import resource
import subprocess
import sys
import time
from random import Random

from pdctl.layout.cost_profile import read_profile
from pdctl.policy import ScalingPolicyName
from pdctl.policy.constraints import Limits
from pdctl.simulation.fleet_shape import FleetShape, RequestRouting, SimulationSettings
from pdctl.simulation.request_trace import RequestTrace, TraceRequest
from pdctl.simulation.run import simulate
from pdctl.simulation.weight_loads import LoadPlan

USE = 0.7  # of the prefills
PAIRS = 200_000


def trace(count: int, rate: float, prompt: int, output: int) -> RequestTrace:
    rng, now, requests = Random(1), 0.0, []
    for _ in range(count):
        now -= math.log(1 - rng.random()) / rate
        drawn = 1 + int(2 * prompt * rng.random()), 1 + int(2 * output * rng.random())
        requests.append(TraceRequest(round(now * 1e9), *drawn))
    return RequestTrace("bench", requests)


def pairs_per_s() -> float:
    before, heap = time.process_time(), list[tuple[int, int, int, int, int]]()
    for at in range(PAIRS):
        heapq.heappush(heap, ((at * 7919) % 1_000_003, 1, at, 0, 0))
    for _ in range(PAIRS):
        heapq.heappop(heap)
    return PAIRS / (time.process_time() - before)


def measure(gpus: int, requests: int, routing: str, hour: bool) -> dict[str, float]:
    one = read_profile("gpu-8b")
    if hour:
        given = trace(23_608, 23_608 / 3600, 8_596, 182)
        shape = FleetShape(2, 2, gpus, one, one)
        settings = SimulationSettings(
            policy=ScalingPolicyName.BLITZ,
            limits=Limits(gpus=gpus),
            routing=RequestRouting(routing),
            loading=LoadPlan.LIVE,
        )
    else:
        prefills = gpus // one.gpus // 2
        given = trace(requests, prefills * USE / (one.prefill_step_s + 1500 * one.prefill_token_s), 1500, 150)
        shape = FleetShape(prefills, gpus // one.gpus - prefills, gpus // one.gpus, one, one)
        settings = SimulationSettings(routing=RequestRouting(routing))
    pairs = pairs_per_s()
    before, clock = time.process_time(), time.monotonic()
    run = simulate(shape, given, settings)
    cpu, wall = time.process_time() - before, time.monotonic() - clock
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    ended = sum(end >= 0 for end in run.requests.end_ns)
    return {
        "events": run.events,
        "requests": len(given.requests),
        "ended": ended,
        "cpu_s": cpu,
        "wall_s": wall,
        "peak_mib": peak,
        "pairs": pairs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--routing", choices=[each.value for each in RequestRouting], default="least-tokens")
    parser.add_argument("--hour", action="store_true")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measure(asked.gpus[0], asked.requests, asked.routing, asked.hour)))
        return
    print(
        f"{'GPUs':>8} {'requests':>9} {'events':>10} {'CPU s':>7} {'events/CPU s':>13} {'per heap pair':>13} {'MiB':>6}"
    )
    for gpus in [16] if asked.hour else asked.gpus:
        command = [sys.executable, "-m", "tests.bench.simulator", "--one", "--gpus", str(gpus)]
        command += ["--requests", str(asked.requests), "--routing", asked.routing, *["--hour"][: asked.hour]]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        rate = found["events"] / found["cpu_s"]
        assert found["ended"] == found["requests"], "every request has ended"
        print(
            f"{gpus:8,} {found['requests']:9,} {found['events']:10,} {found['cpu_s']:7.1f} {rate:13,.0f} "
            f"{rate / found['pairs']:13.2f} {found['peak_mib']:6.0f}"
        )


if __name__ == "__main__":
    main()
