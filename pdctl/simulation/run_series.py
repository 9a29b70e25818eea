"""A simulated run over time, for plots: at most `BINS` points, however long it is and however many requests it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.quick_definitions import NamedTuple
from pdctl.replica.states import ReplicaState
from pdctl.simulation.kernel import SECOND
from pdctl.simulation.statistics import percentile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdctl.simulation.result import FleetSample, SimulationRun

BINS = 240
IDLE = (ReplicaState.INACTIVE, ReplicaState.FAILED)  # states that take no GPU-time
SHARES = (50, 95, 99)  # percentiles of the TTFT


class RunSeries(NamedTuple):
    """Each list has a value for each of `times_s`, the end of a bin; None where nothing falls into it.

    `replicas`: the mean number in each state that any replica was in, the order that of the states. `ttft_s`: by
    percentile, over the requests that arrived in the bin and got a first token.
    """

    name: str
    times_s: Sequence[float]
    replicas: Mapping[str, Sequence[float]]
    waiting_requests: Sequence[float | None]
    kv_use: Sequence[float | None]
    ttft_s: Mapping[int, Sequence[float | None]]
    serving_s: float
    loading_s: float
    draining_s: float

    @property
    def in_use(self) -> Sequence[float]:
        """Replicas that take GPU-time."""
        idle = {state.value for state in IDLE}
        rows = [values for state, values in self.replicas.items() if state not in idle]
        return [sum(values) for values in zip(*rows, strict=True)] if rows else [0.0] * len(self.times_s)


def draw_series(run: SimulationRun) -> RunSeries:
    """A sample holds until the next one, for replicas; queues and KV use are the highest of a bin's samples."""
    count = max(1, min(BINS, len(run.samples), run.end_ns))
    edges = [run.end_ns * (at + 1) // count for at in range(count)]
    waiting, kv_use = _highest(run.samples, edges)
    return RunSeries(
        run.policy,
        [edge / SECOND for edge in edges],
        _mean_replicas(run.samples, edges),
        waiting,
        kv_use,
        _first_tokens(run, edges),
        *run.gpu_time,
    )


def _mean_replicas(samples: Sequence[FleetSample], edges: Sequence[int]) -> dict[str, list[float]]:
    present = {state for sample in samples for state in sample.replicas}
    found: dict[str, list[float]] = {}
    for state in ReplicaState:
        if state in present:
            found[state.value] = _time_mean([(one.time_ns, one.replicas.get(state, 0)) for one in samples], edges)
    return found


def _time_mean(steps: Sequence[tuple[int, int]], edges: Sequence[int]) -> list[float]:
    """The mean of a step function in each bin; before its first step it has the value of that."""
    found, begin, at = [], 0, 0
    value = steps[0][1]
    for edge in edges:
        area, now = 0, begin
        while at < len(steps) and steps[at][0] < edge:
            when = max(now, steps[at][0])
            area += value * (when - now)
            now, value = when, steps[at][1]
            at += 1
        area += value * (edge - now)
        found.append(area / (edge - begin))
        begin = edge
    return found


def _highest(samples: Sequence[FleetSample], edges: Sequence[int]) -> tuple[list[float | None], list[float | None]]:
    waiting: list[float | None] = [None] * len(edges)
    kv_use: list[float | None] = [None] * len(edges)
    at = 0
    for one in samples:
        while at + 1 < len(edges) and one.time_ns >= edges[at]:
            at += 1
        waiting[at] = max(waiting[at] or 0, one.waiting_requests)
        kv_use[at] = max(kv_use[at] or 0.0, one.kv_use)
    return waiting, kv_use


def _first_tokens(run: SimulationRun, edges: Sequence[int]) -> dict[int, list[float | None]]:
    bins: list[list[int]] = [[] for _ in edges]
    count, end = len(edges), max(1, run.end_ns)
    for arrival, first in zip(run.requests.arrival_ns, run.requests.first_token_ns, strict=True):
        if first >= 0:
            bins[min(count - 1, arrival * count // end)].append(first - arrival)
    for one in bins:
        one.sort()
    found: dict[int, list[float | None]] = {}
    for share in SHARES:
        values = [percentile(one, share / 100) for one in bins]
        found[share] = [None if value is None else value / SECOND for value in values]
    return found
