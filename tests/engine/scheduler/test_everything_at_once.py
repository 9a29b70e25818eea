"""Shared prefixes, chunks, retraction, overlap and aborts together: the answers are those of a quiet engine."""

from __future__ import annotations

import random

import pytest

from pdctl.engine.ipc.messages import AbortRequest, Generate
from tests.engine.scheduler.rig import Station, ask, ids, pair, unified

TIGHT = {
    "max_total_tokens": 320,
    "max_running_requests": 6,
    "num_reserved_decode_tokens": 8,
    "chunked_prefill_size": 16,
}


def workload(seed: int) -> list[Generate]:
    """Prompts that share beginnings of several lengths, answers of one token to many."""
    draw = random.Random(seed)
    made = []
    for number in range(14):
        start = ids(40, draw.randrange(3))[: draw.choice((0, 4, 13, 24, 40))]
        own = ids(draw.randrange(1, 30), 11 + draw.randrange(4))
        made.append(ask(f"w{number:02}", [*start, *own], tokens=draw.choice((1, 2, 9, 40, 90)), room=500 + number))
    return made


def quiet(requests: list[Generate]) -> dict[str, list[int]]:
    with unified(max_total_tokens=4096, disable_radix_cache=True, disable_overlap_schedule=True) as station:
        for request in requests:
            station.run(request)
        return dict(station.answer)


def check(station: Station, expected: dict[str, list[int]], aborted: set[str]) -> None:
    for rid, answer in expected.items():
        if rid in aborted:
            assert station.answer[rid] == answer[: len(station.answer[rid])]
        else:
            assert station.answer[rid] == answer, rid


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.heavy)])
def test_one_engine(seed: int) -> None:
    requests, draw, aborted = workload(seed), random.Random(seed), set()
    expected = quiet(requests)
    with unified(**TIGHT) as station:
        for request in requests:
            station.turn(request)
            for _ in range(draw.randrange(4)):
                station.turn()
            if draw.random() < 0.3:
                aborted.add(request.rid)
                station.turn(AbortRequest(request.rid, exact=True))
        station.run()
        assert set(station.finish) == set(expected)
        check(station, expected, aborted)


@pytest.mark.parametrize("seed", [4, pytest.param(3, marks=pytest.mark.heavy)])
def test_a_pair_that_keeps_prefixes_on_both_sides(seed: int) -> None:
    requests, draw, aborted = workload(seed), random.Random(seed), set()
    expected = quiet(requests)
    with pair(prefill=TIGHT, decode={**TIGHT, "disaggregation_decode_enable_radix_cache": True}) as both:
        for request in requests:
            both.send(request)
            for _ in range(draw.randrange(4)):
                both.prefill.turn()
                both.decode.turn()
            if draw.random() < 0.3:
                aborted.add(request.rid)
                for side in both.both:
                    side.turn(AbortRequest(request.rid, exact=True))
        both.until("every answer", lambda: all(set(side.finish) == set(expected) for side in both.both) and both.idle)
        check(both.decode, expected, aborted)
