"""Deadlines that end inside one another, and work under them that is called off."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pdctl.fleet import http_client
from pdctl.fleet.deadline import Deadline, map_within
from tests.fleet.conftest import Peer


def test_a_narrower_deadline_ends_with_the_one_it_came_from() -> None:
    whole = Deadline(30.0)
    inner = whole.within(60.0).within(20.0)
    assert 0.0 < inner.left <= 20.0
    assert whole.within(90.0).seconds <= 30.0
    whole.call_off()
    assert (whole.passed, inner.passed, inner.left) == (True, True, 0.0)
    assert Deadline(0.0).passed


def test_results_come_in_order_whoever_is_first() -> None:
    assert map_within(lambda number: number * number, range(100), 7, Deadline(10.0)) == tuple(n * n for n in range(100))
    assert map_within(lambda number: number, (), 7, Deadline(10.0)) == ()


def test_an_interrupt_calls_off_what_is_under_way(peer: Callable[..., Peer]) -> None:
    """Otherwise Ctrl-C would wait for every silent peer to the end of its patience."""
    url = f"http://127.0.0.1:{peer(hold=True).port}/"
    whole = Deadline(600.0)

    def work(number: int) -> str:
        if number == 0:
            raise KeyboardInterrupt
        return http_client.get(url, whole.within(600.0)).reason

    with pytest.raises(KeyboardInterrupt):
        map_within(work, range(8), 4, whole)
    assert whole.passed
