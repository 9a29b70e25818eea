"""What a simulated run comes to in figures, and what several seeds of a policy come to with their 95 % intervals.

`FIGURES` has each figure with its place in the document (simulation_document.py); docs/simulate.md prints them.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

from pdctl.errors import UsageError
from pdctl.quick_definitions import NamedTuple
from pdctl.replica.transitions import Trigger
from pdctl.simulation.kernel import SECOND
from pdctl.units import flag_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pdctl.simulation.fleet_shape import SimulationSettings
    from pdctl.simulation.result import SimulationRun

RESAMPLES = 2000  # of the seeds, for an interval
COVERED = 0.95  # share of the resampled means that an interval covers


class SloTargets(NamedTuple):
    """The longest times that are good enough, in ns. `ttft_token`: what each prompt token adds to `ttft`."""

    ttft: int
    tbt: int
    ttft_token: int = 0


class StatisticFigure(NamedTuple):
    """`path`: its members in the JSON document, from outside in. `of` gives None where a run has no value."""

    path: tuple[str, ...]
    meaning: str
    of: Callable[[_CountedRun], float | None]

    @property
    def name(self) -> str:
        return ".".join(self.path)


class RunStatistics(NamedTuple):
    """One run, of whose log there are `logged` events. `figures` has a value for each of FIGURES, in their order.

    `by_kind` counts its scaling events. `cut_at_s`: simulated time at which it was cut, None if all requests ended.
    """

    seed: int
    digest: str
    logged: int
    figures: tuple[float | None, ...]
    by_kind: Mapping[str, int]
    cut_at_s: float | None


class Estimate(NamedTuple):
    """A mean over seeds, and the interval of it; both None where no run has a value, the interval also for one seed."""

    mean: float | None
    interval: tuple[float, float] | None


class PolicyStatistics(NamedTuple):
    """All runs of one policy and one way to load weights; `estimates` as the figures of a run."""

    name: str
    policy: str
    loading: str
    runs: tuple[RunStatistics, ...]
    estimates: tuple[Estimate, ...]
    by_kind: Mapping[str, float]

    def estimate(self, name: str) -> Estimate:
        return self.estimates[PLACES[name]]


class _CountedRun(NamedTuple):
    """A run with its requests counted against the targets. `ttft` and `tbt` are ascending, in ns."""

    run: SimulationRun
    requests: int
    unserved: int
    met_ttft: int
    met_tbt: int
    met_both: int
    good_tokens: int
    ttft: Sequence[int]
    tbt: Sequence[int]
    by_kind: Mapping[str, int]

    @property
    def seconds(self) -> float:
        return self.run.end_ns / SECOND


def read_targets(text: str) -> SloTargets:
    """`ttft=2s,tbt=50ms`, with `ttft-per-token=0.08ms` where the TTFT may grow with the prompt. Raise UsageError."""
    example = "such as --slo ttft=2s,tbt=50ms, or with ttft-per-token=0.08ms for a TTFT that grows with the prompt"
    found: dict[str, int] = {}
    for part in text.split(","):
        name, sign, value = part.strip().partition("=")
        if name not in ("ttft", "tbt", "ttft-per-token") or not sign:
            raise UsageError(f"--slo {text}: `{part.strip()}` is no target", f"give NAME=TIME, {example}")
        if name in found:
            raise UsageError(f"--slo {text}: `{name}` stands twice", "keep one of them")
        found[name] = round(flag_seconds(f"--slo {name}", value, positive=True) * SECOND)
    if missing := [name for name in ("ttft", "tbt") if name not in found]:
        raise UsageError(f"--slo {text}: there is no `{missing[0]}`", f"give both, {example}")
    return SloTargets(found["ttft"], found["tbt"], found.get("ttft-per-token", 0))


def percentile(ascending: Sequence[int], share: float) -> float | None:
    """Linear between the two nearest ranks, as numpy's default; None of nothing."""
    if not ascending:
        return None
    place = share * (len(ascending) - 1)
    below = int(place)
    above = min(below + 1, len(ascending) - 1)
    return ascending[below] + (ascending[above] - ascending[below]) * (place - below)


def summarize_run(run: SimulationRun, targets: SloTargets) -> RunStatistics:
    """Without a first token a request misses the TTFT, without an end the TBT; what comes after the end is left out."""
    seen = _count_requests(run, targets)
    figures = tuple(figure.of(seen) for figure in FIGURES)
    cut_at_s = None if run.cut_at_ns is None else run.cut_at_ns / SECOND
    return RunStatistics(run.seed, run.digest, run.events, figures, seen.by_kind, cut_at_s)


def summarize_policy(name: str, settings: SimulationSettings, runs: Sequence[RunStatistics]) -> PolicyStatistics:
    """`runs`: at least one, all with these settings but for the seed. `name`: what tells them from others."""
    estimates = tuple(
        _estimate([value for one in runs if (value := one.figures[at]) is not None], figure.name)
        for at, figure in enumerate(FIGURES)
    )
    kinds = sorted({kind for one in runs for kind in one.by_kind})
    by_kind = {kind: sum(one.by_kind.get(kind, 0) for one in runs) / len(runs) for kind in kinds}
    return PolicyStatistics(name, settings.policy.value, settings.loading.value, tuple(runs), estimates, by_kind)


def _count_requests(run: SimulationRun, targets: SloTargets) -> _CountedRun:
    rows = run.requests
    requests = unserved = met_ttft = met_tbt = met_both = good_tokens = 0
    ttfts, tbts = [], []
    for arrival, first, end, tbt, prompt, answer in zip(*rows, strict=True):
        if arrival > run.end_ns:
            continue
        requests += 1
        ended = end >= 0
        in_time = steady = False
        if first >= 0:
            ttft = first - arrival
            ttfts.append(ttft)
            in_time = ttft <= targets.ttft + targets.ttft_token * prompt
        if ended:
            steady = tbt <= targets.tbt
            if answer > 1:
                tbts.append(tbt)
        unserved += not ended
        met_ttft += in_time
        met_tbt += steady
        if in_time and steady:
            met_both += 1
            good_tokens += answer
    ttfts.sort()
    tbts.sort()
    ordered = (Trigger.PLANNER, Trigger.FAULT)
    kinds = Counter(change.event.value for change in run.changes if change.event.trigger in ordered)
    by_kind = dict(sorted(kinds.items()))
    return _CountedRun(run, requests, unserved, met_ttft, met_tbt, met_both, good_tokens, ttfts, tbts, by_kind)


def _estimate(values: Sequence[float], name: str) -> Estimate:
    """The mean, and the percentile interval of the means of resampled values: the same for the same values."""
    if not values:
        return Estimate(None, None)
    count = len(values)
    if count == 1:
        return Estimate(values[0], None)
    mean = sum(values) / count
    if min(values) == max(values):
        return Estimate(mean, (mean, mean))
    draw = Random(f"bootstrap/{name}").random
    means = sorted(sum(values[int(draw() * count)] for _ in range(count)) / count for _ in range(RESAMPLES))
    outside = round(RESAMPLES * (1 - COVERED) / 2)
    return Estimate(mean, (means[outside], means[-1 - outside]))


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _seconds(ascending: Sequence[int], share: float) -> float | None:
    found = percentile(ascending, share)
    return None if found is None else found / SECOND


def _mean(values: Sequence[int]) -> float | None:
    return sum(values) / len(values) / SECOND if values else None


def _figures() -> tuple[StatisticFigure, ...]:
    row, attained, seconds = StatisticFigure, "slo_attainment", "seconds"
    return (
        row((attained, "ttft"), "share of the requests whose first token came in time",
            lambda it: _share(it.met_ttft, it.requests)),
        row((attained, "tbt"), "share of the requests that ended with the 99th percentile of their token gaps in time",
            lambda it: _share(it.met_tbt, it.requests)),
        row((attained, "both"), "share of the requests with both", lambda it: _share(it.met_both, it.requests)),
        row(("ttft_s", "p50"), f"{seconds} to the first token, of those that got one",
            lambda it: _seconds(it.ttft, 0.5)),
        row(("ttft_s", "p95"), "the same", lambda it: _seconds(it.ttft, 0.95)),
        row(("ttft_s", "p99"), "the same", lambda it: _seconds(it.ttft, 0.99)),
        row(("ttft_s", "mean"), "the same", lambda it: _mean(it.ttft)),
        row(("tbt_s", "p50"), f"{seconds}: the 99th percentile of a request's token gaps, of ended ones that have any",
            lambda it: _seconds(it.tbt, 0.5)),
        row(("tbt_s", "p95"), "the same", lambda it: _seconds(it.tbt, 0.95)),
        row(("tbt_s", "p99"), "the same", lambda it: _seconds(it.tbt, 0.99)),
        row(("tbt_s", "mean"), "the same", lambda it: _mean(it.tbt)),
        row(("gpu_time_s",), "GPU-seconds of replicas that are not inactive or failed",
            lambda it: it.run.gpu_time.total_s),
        row(("goodput_per_gpu",), "requests with both targets met, per GPU-second",
            lambda it: _share(it.met_both, it.run.gpu_time.total_s)),
        row(("events",), "scaling events: orders to replicas, and unloads of those parked for too long",
            lambda it: sum(it.by_kind.values())),
        row(("loading_share",), "share of the GPU-time spent loading weights",
            lambda it: _share(it.run.gpu_time.loading_s, it.run.gpu_time.total_s)),
        row(("draining_share",), "share of the GPU-time spent draining, or parked",
            lambda it: _share(it.run.gpu_time.draining_s, it.run.gpu_time.total_s)),
        row(("goodput_requests_per_s",), "requests with both targets met, per second of the run",
            lambda it: _share(it.met_both, it.seconds)),
        row(("goodput_tokens_per_s",), "tokens of their answers, per second of the run",
            lambda it: _share(it.good_tokens, it.seconds)),
        row(("mean_gpus",), "GPU-time / length of the run", lambda it: _share(it.run.gpu_time.total_s, it.seconds)),
        row(("kv_bytes",), "KV cache that was moved", lambda it: it.run.kv_bytes),
        row(("parameter_bytes",), "weights that were moved", lambda it: it.run.parameter_bytes),
        row(("decode_imbalance",), "KV blocks in use: those of the fullest decode / their mean, over the samples",
            lambda it: it.run.decode_imbalance),
        row(("requests",), "requests that arrived", lambda it: it.requests),
        row(("unserved",), "those of them that did not end", lambda it: it.unserved),
        row(("too_large",), "those of them that no replica has room for", lambda it: it.run.too_large),
        row(("length_s",), f"{seconds} of simulated time", lambda it: it.seconds),
    )  # fmt: skip


FIGURES = _figures()
PLACES = {figure.name: at for at, figure in enumerate(FIGURES)}
