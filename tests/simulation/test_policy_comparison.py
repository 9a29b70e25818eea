"""The comparison of scaling policies: its rows build, two of them run, and expectations are computed from figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pdctl.errors import UsageError
from pdctl.simulation.fleet_shape import RequestRouting
from pdctl.simulation.statistics import read_targets
from tests.bench import policy_comparison
from tests.bench.policy_comparison import (
    COLUMNS,
    PARTS,
    SPLIT_SEED,
    ComparisonOptions,
    Split,
    compare,
    losses,
    make_job,
    mean_gpus,
    means,
    read_names,
    run_all,
    table,
    trace_of,
    verdicts,
)
from tests.bench.policy_ladder import (
    BOTH,
    EVENTS,
    EXPECTATIONS,
    GOODPUT,
    GPU_TIME,
    IMBALANCE,
    REACTIVE,
    ROWS,
    STARTS_S,
    TBT_P99,
    TRACES,
    TTFT_MEAN,
    TTFT_P99,
    VARIED,
    ComparisonCase,
    Verdict,
    judge,
    say_loss,
    start_case,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.simulation.parallel_runs import RunJob
    from pdctl.simulation.statistics import RunStatistics

GIVEN = ComparisonOptions(2, tuple(ROWS), read_targets("ttft=2s,tbt=50ms"), RequestRouting.LEAST_TOKENS, 1, False)
SHORT = ComparisonCase(
    "burst:rate=2,factor=4,duration=20,period=10,burst=3,prompt=2048,output=64", gpus=4, least=1, most=3
)


def test_every_row_builds_on_every_case() -> None:
    cases = {**TRACES, **VARIED, "start": start_case(30)}
    for case in cases.values():
        assert trace_of(case.trace, SPLIT_SEED).requests
    for row, one in ROWS.items():
        for case in cases.values():
            job = make_job(row, case, Split(case.least, case.least), 3, GIVEN)
            assert job.settings.seed == 3
            assert job.settings.policy is one.policy
            assert job.fleet.replicas == case.gpus
            assert (job.settings.limits is None) == (row in ("S1", "S2"))


def test_two_rows_run_and_are_printed() -> None:
    found = compare({"short": SHORT}, ("S1", "A3", "A5"), GIVEN._replace(rows=("S1", "A3")))
    results, begins = found.results, found.begins
    assert set(results) == set(begins) == {("short", "S1"), ("short", "A3")}
    assert sum(begins["short", "S1"]) == 4
    assert begins["short", "A3"] == Split(1, 1)
    figures = means(results)
    assert figures["short", "S1"][GPU_TIME] > figures["short", "A3"][GPU_TIME] > 0
    assert figures["short", "S1"]["requests"] == figures["short", "A3"]["requests"] > 0
    assert figures["short", "S1"][EVENTS] == 0 < figures["short", "A3"][EVENTS]
    lines = list(table("short", found))
    assert [line.count("|") for line in lines] == [len(COLUMNS) + 3] * 4
    assert len(list(verdicts(results))) == len(EXPECTATIONS) + 2
    assert any("not run" in line for line in losses(results))


def test_a_row_that_fails_is_named_and_the_others_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(jobs: Sequence[RunJob], processes: int) -> list[RunStatistics]:
        if jobs and jobs[0].name == "A1":
            raise RuntimeError("a run failed in a process of its own:\nTraceback\n  file, line\nKeyError: 5\n")
        return run_all(jobs, processes)

    monkeypatch.setattr(policy_comparison, "run_all", fail)
    found = compare({"short": SHORT}, ("A1", "A3"), GIVEN._replace(seeds=1))
    assert found.failures == {("short", "A1"): "KeyError: 5"}
    assert list(found.results) == [("short", "A3")]
    lines = list(table("short", found))
    assert lines[2].startswith("| A1 | 1P1D | failed |")
    assert lines[3].startswith("| A3 | 1P1D | ")


def test_the_mean_load_is_a_share_of_the_peak() -> None:
    trace = trace_of("step:rate=10,factor=4,at=0.5,duration=200,cv=0,prompt_cv=0,output_cv=0", 1)
    assert mean_gpus(ComparisonCase("", gpus=16), trace) == 10


def test_names_that_are_not_known_are_refused() -> None:
    assert read_names("losses,table", PARTS, "--parts") == ["table", "losses"]
    with pytest.raises(UsageError, match=r"--rows H1: .* is no policy of pdctl"):
        read_names("S1,H1", ROWS, "--rows")
    with pytest.raises(UsageError, match="--traces brust: there is none"):
        read_names("brust", TRACES, "--traces")


def verdict(claim: str, **rows: dict[str, float]) -> Verdict:
    """Of the expectation with that claim, on figures that are the same in every case it looks at."""
    (found,) = (one for one in EXPECTATIONS if claim in one.claim)
    return judge(found, {(case, row): rows[row] for case, row in found.needs if row in rows})


def test_expectations_follow_from_the_figures() -> None:
    peak = {BOTH: 0.99, GPU_TIME: 1000.0}
    assert verdict("0.55 of its", S1=peak, A5={BOTH: 0.981, GPU_TIME: 540.0}).came_out
    assert verdict("0.55 of its", S1=peak, A5={BOTH: 0.981, GPU_TIME: 560.0}).came_out is False
    assert verdict("40 % less", S1=peak, A5={BOTH: 0.981, GPU_TIME: 560.0}).came_out
    late = verdict("0.55 of its", S1=peak, A5={BOTH: 0.90, GPU_TIME: 100.0})
    assert late == Verdict(False, "A5 is 9.00 points below S1, with 0.10 of its GPU-time")
    assert verdict("0.55 of its", S1=peak) == Verdict(None, "not run: A5 on burst")
    assert verdict("from disk", A4={TTFT_P99: 2.0}, A1={TTFT_P99: 4.0}).came_out
    assert verdict("from disk", A4={TTFT_P99: 2.1}, A1={TTFT_P99: 4.0}).came_out is False
    assert verdict("15 to 30 %", A4={TTFT_MEAN: 0.8}, A3={TTFT_MEAN: 1.0}).came_out
    assert verdict("15 to 30 %", A4={TTFT_MEAN: 0.9}, A3={TTFT_MEAN: 1.0}).came_out is False
    assert verdict("15 to 30 %", A4={TTFT_MEAN: 0.9}, A3={TTFT_MEAN: 0.0}).came_out is False
    skewed = {IMBALANCE: 2.0, TBT_P99: 0.05, TTFT_P99: 1.0}
    assert verdict("the gate (A6)", A5=skewed, A6={IMBALANCE: 1.5, TBT_P99: 0.04, TTFT_P99: 1.2}).came_out
    assert verdict("the gate (A6)", A5=skewed, A6=skewed).came_out is False
    order = {"D1": {GOODPUT: 3.0}, "D2": {GOODPUT: 2.0, EVENTS: 6.0}, "S1": {GOODPUT: 1.0}}
    assert verdict("the order of", **order).came_out
    assert verdict("the order of", **{**order, "S1": {GOODPUT: 2.0}}).came_out is False
    seldom = verdict("the order of", **{**order, "D2": {GOODPUT: 2.0, EVENTS: 1.0}})
    assert seldom.came_out is None
    assert seldom.words.startswith("D2 had 1 scaling events, the trace is too short: ")
    reactive = {row: {GOODPUT: 1.0} for row in REACTIVE}
    best = verdict("a reactive policy", **{**reactive, "W1": {GOODPUT: 2.5}, "S1": {GOODPUT: 1.0}})
    assert best == Verdict(True, "the best, W1, has 2.50 × the goodput per GPU of S1")


def test_a_cliff_is_where_most_is_lost() -> None:
    (found,) = (one for one in EXPECTATIONS if "cliff" in one.claim)

    def starts(fall_s: int) -> Verdict:
        figures = {
            (f"start {seconds} s", "D1"): {BOTH: 0.95 - 0.3 * (seconds >= fall_s), EVENTS: 42 - seconds / 10}
            for seconds in STARTS_S
        }
        return judge(found, figures)

    assert starts(120).came_out
    assert starts(60) == Verdict(
        False, "the largest drop, 30.0 points, is between 30 and 60 s; scaling events go from 42 to 12"
    )
    assert starts(1000).came_out is False, "without a drop there is no cliff"


def test_blitz_loses_to_what_does_as_well_for_less() -> None:
    blitz = {BOTH: 0.95, GPU_TIME: 500.0, GOODPUT: 2.0}
    small = {BOTH: 0.95, GPU_TIME: 400.0, GOODPUT: 2.5}
    large = {BOTH: 1.0, GPU_TIME: 1000.0, GOODPUT: 1.0}
    figures = {("steady", "A5"): blitz, ("steady", "S1"): large, ("burst", "S2"): small}
    lost = say_loss("steady", {**figures, ("steady", "S2"): small})
    assert lost == Verdict(True, "A5 attains 95.0 % and loses to S2 (+0.0 points with 0.80 of its GPU-time)")
    kept = say_loss("steady", figures)
    assert kept.came_out is False
    assert "S1 has the most goodput per GPU, 0.50 ×" in kept.words
    assert say_loss("burst", figures) == Verdict(None, "not run: A5 on burst")
    assert say_loss("steady", {("steady", "A5"): blitz}).came_out is None
