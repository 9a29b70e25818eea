"""The figures of a run by hand and by the standard library, and intervals against all resamples there are."""

from __future__ import annotations

import itertools
import math
import statistics
from random import Random

import pytest

from pdctl.errors import UsageError
from pdctl.simulation.statistics import (
    FIGURES,
    SECOND,
    RunStatistics,
    SloTargets,
    percentile,
    read_targets,
    summarize_policy,
    summarize_run,
)
from tests.cases import for_each
from tests.simulation.made_up import SETTINGS, TARGETS, busy_run, run

# Arrival, first token, end, TBT in ms, prompt, answer. In order: both met; TTFT late; TBT late; one token; no end;
# no first token.
ROWS = (
    (0, 500, 4000, 40, 100, 50),
    (1000, 4000, 9000, 40, 2500, 60),
    (2000, 3000, 9000, 60, 100, 70),
    (3000, 3100, 3100, 0, 100, 1),
    (4000, 4200, -1, 0, 100, 80),
    (99_000, -1, -1, 0, 100, 90),
)


def figure(one: RunStatistics, name: str) -> float | None:
    return dict(zip((each.name for each in FIGURES), one.figures, strict=True))[name]


def told(one: RunStatistics, *names: str) -> list[float | None]:
    return [figure(one, name) for name in names]


def test_the_figures_of_six_requests_by_hand() -> None:
    one = summarize_run(run(ROWS), TARGETS)
    assert told(one, "requests", "unserved") == [6, 2]
    assert told(one, "slo_attainment.ttft", "slo_attainment.tbt", "slo_attainment.both") == [4 / 6, 3 / 6, 2 / 6]
    assert told(one, "ttft_s.p50", "ttft_s.mean") == [0.5, pytest.approx((0.5 + 3 + 1 + 0.1 + 0.2) / 5)]
    assert told(one, "tbt_s.p50", "tbt_s.mean") == [0.04, pytest.approx(0.14 / 3)], "of three with more than one token"
    assert told(one, "gpu_time_s", "loading_share", "draining_share", "mean_gpus") == [200, 0.15, 0.1, 2]
    assert told(one, "goodput_per_gpu", "goodput_requests_per_s", "goodput_tokens_per_s") == [0.01, 0.02, 0.51]
    assert told(one, "kv_bytes", "parameter_bytes", "decode_imbalance", "length_s") == [1e9, 16e9, 1.25, 100]
    assert figure(one, "events") == 1, "an order counts, not what follows from it"
    assert one.by_kind == {"load prefill": 1}


def test_a_ttft_that_grows_with_the_prompt_forgives_the_long_one() -> None:
    grown = SloTargets(TARGETS.ttft, TARGETS.tbt, ttft_token=SECOND // 2500)
    assert figure(summarize_run(run(ROWS), grown), "slo_attainment.ttft") == 5 / 6
    shorter = SloTargets(TARGETS.ttft, TARGETS.tbt, ttft_token=SECOND // 2500 - 1)
    assert figure(summarize_run(run(ROWS), shorter), "slo_attainment.ttft") == 4 / 6


def test_a_request_that_comes_after_the_end_of_the_run_is_left_out() -> None:
    one = summarize_run(run(ROWS, seconds=10), TARGETS)
    assert told(one, "requests", "unserved") == [5, 1]


def test_a_run_without_requests_has_no_value_where_none_can_be() -> None:
    one = summarize_run(run((), seconds=0, gpu_time=run(())._replace().gpu_time._replace(serving_s=0.0)), TARGETS)
    missing = {each.name for each, value in zip(FIGURES, one.figures, strict=True) if value is None}
    assert missing == {
        *(f"slo_attainment.{part}" for part in ("ttft", "tbt", "both")),
        *(f"{time}_s.{part}" for time in ("ttft", "tbt") for part in ("p50", "p95", "p99", "mean")),
        "goodput_requests_per_s", "goodput_tokens_per_s", "mean_gpus",
    }  # fmt: skip
    policy = summarize_policy("blitz", SETTINGS["blitz"], [one, one])
    assert policy.estimate("slo_attainment.ttft") == (None, None)


def test_percentiles_are_those_of_the_standard_library() -> None:
    draw = Random(7).random
    for count in (2, 3, 10, 101, 1000):
        values = sorted(int(draw() * 10**12) for _ in range(count))
        hundred = statistics.quantiles(values, n=100, method="inclusive")
        for share in (1, 50, 95, 99):
            found = percentile(values, share / 100)
            assert found is not None
            assert math.isclose(found, hundred[share - 1], rel_tol=1e-12)
    assert percentile([], 0.5) is None
    assert percentile([3], 0.99) == 3


def test_an_interval_is_that_of_all_resamples() -> None:
    """Three seeds have 27 resamples; the drawn ones must end where the share of these reaches 2.5 and 97.5 %."""
    runs = [summarize_run(busy_run("blitz", seed, 1), TARGETS) for seed in range(3)]
    policy = summarize_policy("blitz", SETTINGS["blitz"], runs)
    narrow = 0
    for at, each in enumerate(FIGURES):
        values = [one.figures[at] or 0 for one in runs]
        estimate = policy.estimates[at]
        assert estimate.mean == pytest.approx(sum(values) / 3)
        whole = sorted(sum(one) / 3 for one in itertools.product(values, repeat=3))
        assert estimate.interval == pytest.approx((whole[0], whole[-1])), each.name
        narrow += whole[0] == whole[-1]
    assert narrow < len(FIGURES) / 2, "most figures differ from seed to seed"


def test_one_seed_has_no_interval_and_the_same_runs_give_the_same() -> None:
    runs = [summarize_run(busy_run("static", seed, 2), TARGETS) for seed in range(8)]
    assert summarize_policy("blitz", SETTINGS["blitz"], runs) == summarize_policy("blitz", SETTINGS["blitz"], runs)
    assert {each.interval for each in summarize_policy("blitz", SETTINGS["blitz"], runs[:1]).estimates} == {None}
    for estimate in summarize_policy("blitz", SETTINGS["blitz"], runs).estimates:
        assert estimate.mean is not None
        assert estimate.interval is not None
        low, high = estimate.interval
        assert low <= estimate.mean <= high


def test_targets_as_typed() -> None:
    assert read_targets("ttft=2s,tbt=50ms") == SloTargets(2 * SECOND, SECOND // 20)
    assert read_targets("tbt=50ms, ttft=1m, ttft-per-token=0.08ms") == SloTargets(60 * SECOND, SECOND // 20, 80_000)


@for_each(
    "text, message",
    [
        ("ttft=2s", "--slo ttft=2s: there is no `tbt`"),
        ("", "--slo : `` is no target"),
        ("ttft=2,tbt=50ms", "--slo ttft 2: 2 has no unit"),
        ("ttft=2s,tbt=0s", "--slo tbt 0s: this is no time at all"),
        ("ttft=2s,tbt=50ms,ttft=3s", "--slo ttft=2s,tbt=50ms,ttft=3s: `ttft` stands twice"),
        ("ttft=2s,itl=50ms", "--slo ttft=2s,itl=50ms: `itl=50ms` is no target"),
        ("ttft=-1s,tbt=1s", "--slo ttft -1s: this is not a time"),
    ],
)
def test_wrong_targets_are_named(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_targets(text)
    assert caught.value.message == message
    assert caught.value.fix
