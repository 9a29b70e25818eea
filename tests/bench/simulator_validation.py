"""The simulator beside the embedded engine: the same trace, the same machine, mean and p99 of TTFT and TBT.

Usage: python tests/bench/simulator_validation.py [--shapes 2p1d 3p2d] [--rounds 2] [--trace SPEC …]
       [--profile FILE] [--pace gpu-8b | none] [--times 10]

Starts its own deployments on free ports. The first shape is calibrated, then each trace is sent `--rounds` times as an
open loop, so that the spread between rounds stands beside the simulator's error. In the first trace each request is
alone: what is off there is the noise of this machine, and no queue or batch that was simulated wrongly. Passes take
`--times` the time of the profile `--pace` (docs/simulate.md), which a small machine keeps, the more so as its prefills
give way to whoever else wants a core. With `--pace none` they take this machine's: then client, router and ranks need
a core each, or what is measured is how they share cores.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from pdctl.fleet.observations import Endpoint
from pdctl.fleet.request_timing import TimedAnswer, TimedRequest, send_open_loop
from pdctl.layout.cost_profile import CostProfile, read_profile
from pdctl.simulation.calibration import CalibrationTarget, calibrate, write_profile
from pdctl.simulation.fleet_shape import FleetShape, RequestRouting, SimulationSettings
from pdctl.simulation.request_trace import RequestTrace
from pdctl.simulation.run import simulate
from pdctl.simulation.synthetic import make_request_trace
from tests.e2e.conftest import TINY, Deployment
from tests.ports import free_block

ALONE = "steady:rate=0.125,cv=0,duration=60,prompt=300,prompt_cv=0,output=48,output_cv=0"  # no two requests at a time
TRACES = (
    ALONE,
    "steady:rate=1.5,duration=90,prompt=1000,output=48",
    "burst:rate=0.6,factor=6,period=30s,burst=6s,duration=90,prompt=1000,output=32",
    "phase-shift:rate=1.2,duration=90,prompt=1500,output=16,later_prompt=200,later_output=96",
)
PASS_COSTS = (
    *("prefill_step_s", "prefill_token_s", "prefill_square_s"),
    *("decode_step_s", "decode_room_s", "decode_token_s"),
)
LOW = 15  # niceness
CONTEXT = 4000  # prompt and answer of the shipped checkpoint
TOKENS = (8, 500)  # ids that are sent


class LatencyFigures(NamedTuple):
    """Seconds; `tbt` of a request is the 99th percentile of the gaps between its tokens, as in the simulator."""

    ttft_mean: float
    ttft_p99: float
    tbt_mean: float
    tbt_p99: float
    itl_mean: float


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def of_answers(answers: tuple[TimedAnswer, ...], requests: list[TimedRequest]) -> LatencyFigures:
    problems = [answer.problem for answer in answers if answer.problem]
    if problems:
        raise SystemExit(f"{len(problems)} of {len(answers)} requests failed, the first: {problems[0]}")
    ttft = [answer.token_s[0] - request.at_s for answer, request in zip(answers, requests, strict=True)]
    gaps = [[b - a for a, b in pairwise(answer.token_s)] for answer in answers if len(answer.token_s) > 1]
    tbt = [percentile(one, 0.99) for one in gaps]
    return LatencyFigures(
        fmean(ttft), percentile(ttft, 0.99), fmean(tbt), percentile(tbt, 0.99), fmean(fmean(one) for one in gaps)
    )


def predicted(trace: RequestTrace, profile: CostProfile, prefills: int, decodes: int) -> LatencyFigures:
    fleet = FleetShape(prefills, decodes, prefills + decodes, profile, profile)
    run = simulate(fleet, trace, SimulationSettings(routing=RequestRouting.ROUND_ROBIN))
    columns = run.requests
    ttft = [(first - at) / 1e9 for first, at in zip(columns.first_token_ns, columns.arrival_ns, strict=True)]
    several = [at for at, tokens in enumerate(columns.output_tokens) if tokens > 1]
    tbt = [columns.tbt_ns[at] / 1e9 for at in several]
    itl = [(columns.end_ns[at] - columns.first_token_ns[at]) / 1e9 / (columns.output_tokens[at] - 1) for at in several]
    return LatencyFigures(fmean(ttft), percentile(ttft, 0.99), fmean(tbt), percentile(tbt, 0.99), fmean(itl))


def fitted(trace: RequestTrace) -> RequestTrace:
    """The trace with prompts and answers that the shipped checkpoint's context holds."""
    requests = []
    for one in trace.requests:
        prompt = max(2, min(one.prompt_tokens, CONTEXT * 3 // 4))
        requests.append(one._replace(prompt_tokens=prompt, output_tokens=min(one.output_tokens, CONTEXT - prompt)))
    return trace._replace(requests=requests)


def slowed(file: Path, pace: str, times: float) -> str:
    """The name of a profile whose passes take `times` as long."""
    profile = read_profile(pace)
    costs = {name: value * (times if name in PASS_COSTS else 1) for name, value in asdict(profile).items()}
    file.write_text("".join(f"{name}: {value!r}\n" for name, value in costs.items()), "utf-8")
    return str(file)


def launch(folder: Path, prefills: int, decodes: int, pace: str) -> Deployment:
    router, http, bootstrap = free_block(1), free_block(prefills + decodes), free_block(prefills + decodes)
    name = f"{prefills}p{decodes}d"
    urls = [f"http://127.0.0.1:{http + at}" for at in range(prefills + decodes)]
    found = Deployment(name, folder, f"http://127.0.0.1:{router}", tuple(urls[:prefills]), tuple(urls[prefills:]))
    sets = [f"router.port={router}", f"ports.http={http}", f"ports.bootstrap={bootstrap}"]
    sets += [f"roles.prefill.instances={prefills}", f"roles.decode.instances={decodes}"]
    sets += [f"engine.pace={pace}"] if pace else []
    words = (word for one in sets for word in ("--set", one))
    found.pdctl("launch", "topologies/2p1d.yaml", "-d", "--name", name, *words)
    return found


def give_way(deployment: Deployment) -> None:
    """Let prefills compute when nobody else has anything to do: on a fleet they have machines of their own.

    A paced pass is computed in less than its time, so that its end is not later for that.
    """
    for name, pid in deployment.processes().items():
        for each in family(pid) if name.startswith("prefill") else ():
            for thread in Path(f"/proc/{each}/task").iterdir():
                os.setpriority(os.PRIO_PROCESS, int(thread.name), LOW)


def family(pid: int) -> list[int]:
    """A process and those below it."""
    below = [int(each) for file in Path(f"/proc/{pid}/task").glob("*/children") for each in file.read_text().split()]
    return [pid, *(each for child in below for each in family(child))]


def main() -> None:
    reader = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    reader.add_argument("--shapes", nargs="+", default=["2p1d", "3p2d"])
    reader.add_argument("--rounds", type=int, default=2)
    reader.add_argument("--trace", nargs="+", default=TRACES)
    reader.add_argument("--seed", type=int, default=1)
    reader.add_argument("--pace", default="gpu-8b", help="a cost profile, or none")
    reader.add_argument("--times", type=float, default=10.0, help="how much slower than that the passes are")
    reader.add_argument("--profile", help="a profile that was measured before")
    asked = reader.parse_args()
    profile = read_profile(asked.profile) if asked.profile else None
    for shape in asked.shapes:
        prefills, decodes = map(int, shape.rstrip("d").split("p"))
        with tempfile.TemporaryDirectory() as folder:
            pace = "" if asked.pace == "none" else slowed(Path(folder) / "pace.yaml", asked.pace, asked.times)
            deployment = launch(Path(folder), prefills, decodes, pace)
            try:
                if pace:
                    give_way(deployment)
                profile = profile or measured(deployment, asked.seed)
                compare(deployment, asked, profile, prefills, decodes)
            finally:
                deployment.pdctl("down", deployment.name)


def measured(deployment: Deployment, seed: int) -> CostProfile:
    urls = [*(("prefill", url) for url in deployment.prefills), *(("decode", url) for url in deployment.decodes)]
    engines = tuple(Endpoint(f"{role}-{at}", role, url) for at, (role, url) in enumerate(urls))
    target = CalibrationTarget(deployment.router, engines, str(TINY))
    found = calibrate(target, read_profile("laptop"), seed, lambda words: print("  ", words, file=sys.stderr))
    print(write_profile(found, deployment.name), flush=True)
    return found.profile


def compare(
    deployment: Deployment, asked: argparse.Namespace, profile: CostProfile, prefills: int, decodes: int
) -> None:
    rng = random.Random(asked.seed)
    for spec in asked.trace:
        trace = fitted(make_request_trace(spec, asked.seed))
        seen = []
        for _ in range(asked.rounds):
            requests = [
                TimedRequest(
                    one.arrival_ns / 1e9,
                    tuple(rng.randrange(*TOKENS) for _ in range(one.prompt_tokens)),
                    one.output_tokens,
                )
                for one in trace.requests
            ]
            seen.append(of_answers(send_open_loop(deployment.router, requests, 120.0), requests))
        simulated = predicted(trace, profile, prefills, decodes)
        print(f"{deployment.name} {spec}: {len(trace.requests)} requests, {asked.rounds} rounds")
        print(f"{'ms':12}{'measured':>10}{'least':>10}{'most':>10}{'simulated':>11}{'error':>8}")
        for name, value in simulated._asdict().items():
            each = [getattr(one, name) for one in seen]
            middle = median(each)
            row = f"{middle * 1e3:10.2f}{min(each) * 1e3:10.2f}{max(each) * 1e3:10.2f}{value * 1e3:11.2f}"
            print(f"{name:12}{row}{100 * (value / middle - 1):+7.0f}%", flush=True)


if __name__ == "__main__":
    main()
