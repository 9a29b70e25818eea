"""The Retry-After of a full queue follows from how fast requests have been leaving."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pdctl.engine.frontend import intake
from pdctl.engine.frontend.intake import PACE_ENDS, PACE_LONGEST, PACE_UNKNOWN, PACE_WINDOW, Pace


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(now=100.0)
    made.monotonic = lambda: made.now
    monkeypatch.setattr(intake, "time", made)
    return made


def test_two_a_second_for_ten_seconds(clock: SimpleNamespace) -> None:
    queue = Pace()
    for _ in range(20):
        clock.now += 0.5
        queue.ended()
    assert [queue.seconds_until(ends) for ends in (1, 3, 8, 1000)] == [1, 2, 4, PACE_LONGEST]


def test_what_is_long_ago_says_nothing(clock: SimpleNamespace) -> None:
    queue = Pace()
    assert queue.seconds_until(1) == PACE_UNKNOWN
    queue.ended()
    clock.now += PACE_WINDOW + 1
    assert queue.seconds_until(1) == PACE_UNKNOWN
    queue.ended()
    assert queue.seconds_until(1) == PACE_WINDOW


def test_more_ends_than_are_remembered(clock: SimpleNamespace) -> None:
    queue = Pace()
    clock.now += PACE_WINDOW
    for _ in range(4 * PACE_ENDS):
        clock.now += 1 / 1024
        queue.ended()
    assert queue.seconds_until(4 * 1024) == 4
