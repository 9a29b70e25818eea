"""Compare scaling policies and ways to load weights in the simulator, as a page: policy_ladder.py has rows and traces.

Usage: python -m tests.bench.policy_comparison [--seeds 5] [--rows S1,A1,…] [--traces burst,…] [--trace FILE …]
           [--parts table,losses,start,factor] [--slo TARGETS] [--routing NAME] [--quick] [--out FILE.md]

A page is worth what the simulator is: hold it beside the engine first (tests/bench/simulator_validation.py).
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pdctl.errors import PdctlError, UsageError
from pdctl.layout.cost_profile import read_profile
from pdctl.policy import POLICIES
from pdctl.policy.constraints import Limits
from pdctl.simulation.fleet_shape import FleetShape, RequestRouting, SimulationSettings
from pdctl.simulation.kernel import SECOND
from pdctl.simulation.parallel_runs import LostRun, RunJob, run_jobs
from pdctl.simulation.statistics import FIGURES, read_targets, summarize_policy
from pdctl.simulation.synthetic import make_request_trace, trace_names
from pdctl.simulation.trace_files import read_request_trace
from pdctl.suggestions import hint
from tests.bench.policy_ladder import (
    EXPECTATIONS,
    FACTORS,
    GOODPUT,
    LOSSES,
    MISSING,
    ROWS,
    STARTS_S,
    TRACES,
    VARIED,
    ComparisonCase,
    factor_case,
    judge,
    say_loss,
    start_case,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pdctl.simulation.request_trace import RequestTrace
    from pdctl.simulation.statistics import Estimate, PolicyStatistics, RunStatistics, SloTargets

    Results = dict[tuple[str, str], PolicyStatistics]  # by case and row

GPUS_PER_MACHINE = 8
SPLIT_SEED = 1000  # the splits of static fleets are chosen on a trace of their own
WINDOW_NS = 10 * 10**9  # over which the peak of a trace is a mean
QUICK_TRACES = ("burst", "phase-shift", "decode-skew", "toolagent")
QUICK_S = 120  # of a trace
PARTS = ("table", "losses", "start", "factor")
LOSS_ROWS = ("S1", "S2", "S3", "A1", "A3", "A5", "D1", "D3")
START_ROWS, FACTOR_ROWS = ("A3", "D1"), ("S1", "A1", "A5")
# Figure, heading, what it is multiplied by, digits.
COLUMNS = (
    ("slo_attainment.ttft", "TTFT %", 100, 1),
    ("slo_attainment.tbt", "TBT %", 100, 1),
    ("slo_attainment.both", "both %", 100, 1),
    ("ttft_s.p50", "TTFT p50 s", 1, 2),
    ("ttft_s.p95", "p95", 1, 2),
    ("ttft_s.p99", "p99", 1, 2),
    ("tbt_s.p50", "TBT p50 ms", 1000, 0),
    ("tbt_s.p95", "p95", 1000, 0),
    ("tbt_s.p99", "p99", 1000, 0),
    ("goodput_requests_per_s", "goodput req/s", 1, 2),
    ("goodput_tokens_per_s", "tokens/s", 1, 0),
    ("gpu_time_s", "GPU-time s", 1, 0),
    ("loading_share", "loading %", 100, 1),
    ("draining_share", "draining %", 100, 1),
    (GOODPUT, "goodput req/GPU-s", 1, 3),
    ("mean_gpus", "mean GPUs", 1, 1),
    ("events", "scaling events", 1, 0),
    ("kv_bytes", "KV GB", 1e-9, 0),
    ("parameter_bytes", "weights GB", 1e-9, 0),
    ("decode_imbalance", "decode max/mean", 1, 2),
    ("unserved", "not ended", 1, 0),
)


class Split(NamedTuple):
    prefills: int
    decodes: int


class ComparisonOptions(NamedTuple):
    seeds: int
    rows: Sequence[str]
    targets: SloTargets
    routing: RequestRouting
    jobs: int
    quick: bool

    def spec(self, trace: str, seconds: int = QUICK_S) -> str:
        """The trace, shorter where it is to be quick. A file stays as it is."""
        if not self.quick or trace.partition(":")[0] not in trace_names():
            return trace
        name, _, parameters = trace.partition(":")
        kept = [one for one in parameters.split(",") if one and not one.startswith("duration=")]
        return f"{name}:{','.join([*kept, f'duration={seconds}'])}"


def trace_of(spec: str, seed: int) -> RequestTrace:
    return make_request_trace(spec, seed) if spec.partition(":")[0] in trace_names() else read_file(spec)


@lru_cache
def read_file(path: str) -> RequestTrace:
    return read_request_trace(Path(path))


def mean_gpus(case: ComparisonCase, trace: RequestTrace) -> int:
    """As many of the case's GPUs as its mean load is of its peak."""
    windows: dict[int, int] = {}
    for one in trace.requests:
        at = one.arrival_ns // WINDOW_NS
        windows[at] = windows.get(at, 0) + one.prompt_tokens + one.output_tokens
    mean = sum(windows.values()) / (max(windows) + 1)
    return min(case.gpus, max(2, round(case.gpus * mean / max(windows.values()))))


def make_job(row: str, case: ComparisonCase, split: Split, seed: int, given: ComparisonOptions) -> RunJob:
    one = ROWS[row]
    profile = replace(read_profile("gpu-8b"), **case.profile)
    fleet = FleetShape(*split, max(case.gpus, sum(split)), profile, profile, GPUS_PER_MACHINE)
    span = (1, case.gpus - 1) if one.split != "least" else (case.least, case.most)
    own = POLICIES[one.policy].settings()
    if hasattr(own, "ttft_s"):  # a policy that aims at targets has those that it is measured by
        own = replace(own, ttft_s=given.targets.ttft / SECOND, itl_s=given.targets.tbt / SECOND)
    settings = SimulationSettings(
        policy=one.policy,
        policy_settings=own,
        limits=None if row in ("S1", "S2") else Limits(prefill=span, decode=span, gpus=case.gpus),
        loading=one.loading,
        routing=case.routing or given.routing,
        gate=one.gate,
        flips=one.flips,
        seed=seed,
    )
    return RunJob(row, fleet, settings, lambda number: trace_of(case.trace, number), given.targets)


def run_all(jobs: Sequence[RunJob], processes: int) -> list[RunStatistics]:
    found: dict[int, RunStatistics] = {}
    for one in run_jobs(jobs, processes, lambda _: None):
        if isinstance(one, LostRun):
            raise PdctlError(f"{jobs[one.job].name}: {one.message}", one.fix)
        found[one.job] = one.statistics
        if sys.stderr.isatty():
            end = "\r" if len(found) < len(jobs) else "\n"
            print(f"{len(found)} of {len(jobs)} runs", end=end, file=sys.stderr, flush=True)
    return [found[at] for at in range(len(jobs))]


def choose_splits(cases: Mapping[str, ComparisonCase], given: ComparisonOptions) -> dict[tuple[str, str], Split]:
    """The best static split of each case, by its name and `peak` or `mean`; every split of these GPUs is tried."""
    wanted = {ROWS[row].split for row in given.rows} & {"peak", "mean"}
    tried: list[tuple[str, str, Split]] = []
    for name, case in cases.items():
        for kind in sorted(wanted):
            gpus = case.gpus if kind == "peak" else mean_gpus(case, trace_of(case.trace, SPLIT_SEED))
            tried += [(name, kind, Split(prefills, gpus - prefills)) for prefills in range(1, gpus)]
    jobs = [make_job("S1", cases[name], split, SPLIT_SEED, given) for name, _, split in tried]
    best: dict[tuple[str, str], tuple[tuple[float, float], Split]] = {}
    for (name, kind, split), run in zip(tried, run_all(jobs, given.jobs), strict=True):
        figures = dict(zip((one.name for one in FIGURES), run.figures, strict=True))
        rank = (figures["slo_attainment.both"] or 0.0, -(figures["ttft_s.p99"] or float("inf")))
        if (name, kind) not in best or rank > best[name, kind][0]:
            best[name, kind] = rank, split
    return {place: split for place, (_, split) in best.items()}


class Comparison(NamedTuple):
    """`begins`: what each fleet has at its begin. `failures`: what the runs of a row raised."""

    results: Results
    begins: dict[tuple[str, str], Split]
    failures: dict[tuple[str, str], str]


def compare(cases: Mapping[str, ComparisonCase], rows: Sequence[str], given: ComparisonOptions) -> Comparison:
    """All rows on all cases. A row that fails does not cost what the others take."""
    given = given._replace(rows=[row for row in given.rows if row in rows])
    splits = choose_splits(cases, given)
    found = Comparison({}, {}, {})
    for name, case in cases.items():
        for row in given.rows:
            split = splits.get((name, ROWS[row].split), Split(case.least, case.least))
            jobs = [make_job(row, case, split, seed, given) for seed in range(given.seeds)]
            found.begins[name, row] = split
            try:
                runs = run_all(jobs, given.jobs)
            except PdctlError:
                raise
            except Exception as error:  # noqa: BLE001 - a bug of the simulator costs the row, and is said
                found.failures[name, row] = f"{type(error).__name__}: {error}".rstrip().rpartition("\n")[2]
                continue
            found.results[name, row] = summarize_policy(row, jobs[0].settings, runs)
    return found


def say(estimate: Estimate, factor: float, digits: int) -> str:
    """A mean, and its 95 % interval where there are several seeds."""
    if estimate.mean is None:
        return ""
    words = f"{estimate.mean * factor:.{digits}f}"
    if estimate.interval is None:
        return words
    low, high = (f"{end * factor:.{digits}f}" for end in estimate.interval)
    return words if low == high else f"{words} [{low}, {high}]"


def table(name: str, found: Comparison) -> Iterable[str]:
    """The rows of one case."""
    heads = [head for _, head, _, _ in COLUMNS]
    yield f"| row | begins with | {' | '.join(heads)} |"
    yield f"|---|---|{'---|' * len(heads)}"
    for (case, row), split in found.begins.items():
        if case != name:
            continue
        one = found.results.get((case, row))
        if one is None:
            cells = ["failed", *[""] * (len(COLUMNS) - 1)]
        else:
            cells = [say(one.estimate(figure), factor, digits) for figure, _, factor, digits in COLUMNS]
        yield f"| {row} | {split.prefills}P{split.decodes}D | {' | '.join(cells)} |"


def means(results: Results) -> dict[tuple[str, str], dict[str, float]]:
    """What expectations are judged by; a figure that no run has is 0."""
    names = [one.name for one in FIGURES]
    return {place: {name: one.estimate(name).mean or 0.0 for name in names} for place, one in results.items()}


def verdicts(results: Results) -> Iterable[str]:
    figures = means(results)
    yield "| source | expected | came out | figures |"
    yield "|---|---|---|---|"
    for one in EXPECTATIONS:
        found = judge(one, figures)
        came_out = {True: "yes", False: "**no**", None: "-"}[found.came_out]
        yield f"| {one.source} | {one.claim} | {came_out} | {found.words} |"


def losses(results: Results) -> Iterable[str]:
    figures = means(results)
    yield "| case | blitz loses | figures |"
    yield "|---|---|---|"
    for case in dict.fromkeys([*LOSSES, *(name for name, row in results if row == "A5")]):
        found = say_loss(case, figures)
        yield f"| {case} | {({True: '**yes**', False: 'no', None: '-'})[found.came_out]} | {found.words} |"


def write_page(parts: Sequence[str], cases: Mapping[str, ComparisonCase], given: ComparisonOptions) -> Iterable[str]:
    """Run everything and say it, a section at a time."""
    targets, began = given.targets, time.monotonic()
    yield "# Scaling policies beside each other, in the simulator\n"
    yield f"`python -m tests.bench.policy_comparison {' '.join(sys.argv[1:])}`\n"
    yield (
        f"Profile gpu-8b, {GPUS_PER_MACHINE} GPUs per machine, {given.seeds} seeds, {given.routing.value}. In time: "
        f"TTFT within {targets.ttft / 1e9:g} s + {targets.ttft_token / 1e6:g} ms per prompt token, p99 of a request's "
        f"token gaps within {targets.tbt / 1e6:g} ms. In brackets: 95 % intervals of the mean over the seeds.\n"
    )
    yield "| row | what | settings |\n|---|---|---|"
    yield from (f"| {row} | {ROWS[row].meaning} | {ROWS[row].settings()} |" for row in given.rows)
    yield from (f"| {row} | {what} | no policy of pdctl is this |" for row, what in MISSING.items())
    results: Results = {}
    failures: dict[tuple[str, str], str] = {}
    everything: dict[str, tuple[Mapping[str, ComparisonCase], Sequence[str]]] = {
        "table": (cases, given.rows),
        "losses": ({**{name: TRACES[name] for name in LOSSES if name in TRACES and name not in cases}, **VARIED},
                   (*LOSS_ROWS, "A4")),
        "start": ({f"start {seconds} s": start_case(seconds) for seconds in STARTS_S}, START_ROWS),
        "factor": ({f"factor {factor}": factor_case(factor) for factor in FACTORS}, FACTOR_ROWS),
    }  # fmt: skip
    for part in parts:
        group, rows = everything[part]
        seconds = 400 if part == "start" else QUICK_S  # the swing needs a whole period
        group = {name: case._replace(trace=given.spec(case.trace, seconds)) for name, case in group.items()}
        for name, case in group.items():
            found = compare({name: case}, rows, given)
            results |= found.results
            failures |= found.failures
            changed = "".join(f", {key} = {value:g}" for key, value in case.profile.items())
            routed = f", {case.routing.value}" if case.routing else ""
            yield f"\n## {name}\n\n`{case.trace}`, {case.gpus} GPUs{changed}{routed}\n"
            yield from table(name, found)
    if failures:
        yield "\n## What failed\n"
        yield from (f"- {row} on {case}: `{what}`" for (case, row), what in failures.items())
    yield "\n## What was expected\n"
    yield from verdicts(results)
    yield "\n## Where blitz loses\n"
    yield "Where a row other than A4, A6 and O attains as much as A5 for less GPU-time, or more for no more.\n"
    yield from losses(results)
    yield f"\n{time.monotonic() - began:.0f} s with {given.jobs} processes."


def read_names(text: str, known: Iterable[str], what: str) -> list[str]:
    """The names of a list; raise UsageError for one that is not known."""
    names, known = text.split(","), list(known)
    for name in names:
        if name in MISSING:
            raise UsageError(f"{what} {name}: {MISSING[name]} is no policy of pdctl", f"known: {', '.join(known)}")
        if name not in known:
            raise UsageError(f"{what} {name}: there is none", hint(name, known) or f"known: {', '.join(known)}")
    return [name for name in known if name in names]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, help="5; with --quick 2")
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--traces", help=f"{','.join(TRACES)}; with --quick {','.join(QUICK_TRACES)}")
    parser.add_argument("--trace", action="append", default=[], metavar="FILE", help="a request trace; repeatable")
    parser.add_argument("--parts", default=",".join(PARTS))
    # Those of Dynamo's published sweep. BlitzScale's scripts: ttft=300ms..500ms,ttft-per-token=0.08ms,tbt=10ms..50ms.
    parser.add_argument("--slo", default="ttft=2s,tbt=50ms")
    parser.add_argument("--routing", type=RequestRouting, default=RequestRouting.LEAST_TOKENS)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help=f"fewer and shorter traces, {QUICK_S} s")
    parser.add_argument("--out", type=Path, metavar="FILE.md")
    asked = parser.parse_args()
    try:
        files = {Path(file).name: ComparisonCase(file) for file in asked.trace}
        for file in asked.trace:
            read_file(file)  # once, before any process is forked
        chosen = asked.traces or ("" if files else ",".join(QUICK_TRACES if asked.quick else TRACES))
        traces = read_names(chosen, TRACES, "--traces") if chosen else []
        given = ComparisonOptions(
            asked.seeds or (2 if asked.quick else 5),
            read_names(asked.rows, ROWS, "--rows"),
            read_targets(asked.slo),
            *(asked.routing, asked.jobs, asked.quick),
        )
        cases = {**{name: TRACES[name] for name in traces}, **files}
        lines = []
        for line in write_page(read_names(asked.parts, PARTS, "--parts"), cases, given):
            print(line, flush=True)
            lines.append(f"{line}\n")
    except UsageError as error:
        print(f"{error.message}: {error.fix}", file=sys.stderr)
        return 2
    if asked.out is not None:
        asked.out.write_text("".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
