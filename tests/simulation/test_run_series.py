"""A run over time: the plots' points keep the integral of the samples, and are few however long the run is."""

from __future__ import annotations

from random import Random

import pytest

from pdctl.replica.states import ReplicaState
from pdctl.simulation.kernel import SECOND
from pdctl.simulation.result import FleetSample
from pdctl.simulation.run_series import BINS, draw_series
from tests.simulation.made_up import busy_run, run

PREFILL, DECODE, INACTIVE = ReplicaState.PREFILL, ReplicaState.DECODE, ReplicaState.INACTIVE


def test_replicas_keep_their_integral_whatever_the_bins() -> None:
    draw = Random(3).random
    for count in (1, 2, 239, 240, 241, 5000):
        times = sorted(int(draw() * 100 * SECOND) for _ in range(count))
        samples = [FleetSample(when, {PREFILL: int(draw() * 9), INACTIVE: 1}, 0, 0.0) for when in times]
        series = draw_series(run((), samples=samples))
        assert len(series.times_s) == min(BINS, count)
        assert series.times_s[-1] == 100
        begins = [0, *times[1:]]  # the first value holds from the start
        whole = sum(
            one.replicas[PREFILL] * (end - begin)
            for one, begin, end in zip(samples, begins, [*times[1:], 100 * SECOND], strict=True)
        )
        widths = [end - begin for begin, end in zip((0.0, *series.times_s), series.times_s, strict=False)]
        area = sum(width * value for width, value in zip(widths, series.replicas["prefill"], strict=True))
        assert area == pytest.approx(whole / SECOND, rel=1e-6)
        assert series.in_use == pytest.approx(series.replicas["prefill"]), "an inactive one takes no GPU-time"


def test_queues_show_the_highest_and_first_tokens_the_requests_of_their_time() -> None:
    samples = [FleetSample(at * SECOND, {PREFILL: 1, DECODE: 1}, at, at / 10) for at in range(4)]
    rows = [
        (0, 1000, 2000, 10, 1, 2),
        (900, 3900, 4000, 10, 1, 2),
        (3999, 4499, 5000, 10, 1, 2),
        (3000, -1, -1, 0, 1, 2),
    ]
    series = draw_series(run(rows, samples=samples, seconds=4))
    assert series.times_s == [1, 2, 3, 4]
    assert series.waiting_requests == [0, 1, 2, 3]
    assert series.kv_use == [0, 0.1, 0.2, 0.3]
    assert series.ttft_s[50] == [2, None, None, 0.5]
    assert list(series.replicas) == ["prefill", "decode"]


def test_a_busy_run_is_drawn_by_states_in_their_order() -> None:
    series = draw_series(busy_run("blitz", 0, 1))
    order = [state.value for state in ReplicaState]
    assert list(series.replicas) == sorted(series.replicas, key=order.index)
    assert max(series.in_use) > min(series.in_use)
    assert len(series.times_s) == 120
