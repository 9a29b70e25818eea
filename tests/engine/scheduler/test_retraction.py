"""Too little memory for everybody's whole answer: requests share it, are taken back, resume, and answer as if alone."""

from __future__ import annotations

import logging
import re

import pytest

from pdctl.engine.ipc.messages import AbortRequest
from tests.engine.scheduler.rig import Pair, Station, ask, ids, pair, turns_until, unified

TIGHT = {"max_total_tokens": 256, "max_running_requests": 8, "num_reserved_decode_tokens": 16}
MANY = [ask(f"r{index}", ids(20 + index, index), tokens=80, room=100 + index) for index in range(5)]


def alone() -> dict[str, list[int]]:
    with unified(max_total_tokens=2048, disable_radix_cache=True) as roomy:
        for request in MANY:
            roomy.run(request)
        return dict(roomy.answer)


@pytest.fixture(scope="module")
def expected() -> dict[str, list[int]]:
    return alone()


@pytest.mark.parametrize("layout", ["layer-major", "page-major", "head-major"])
def test_retracted_requests_answer_as_if_nothing_had_happened(
    layout: str, expected: dict[str, list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "pdctl.engine")
    with unified(**TIGHT, kv_layout=layout) as station:
        station.run(*MANY)
        assert station.answer == expected
        assert sum(meta.retractions for meta in station.meta.values()) > 0
    line = re.compile(r"KV cache pool is full\. Retract requests\. #retracted_reqs: \d+, #new_tokens_gained: [1-9]\d*$")
    assert any(line.match(message) for message in caplog.messages)


def test_a_decode_retracts_and_resumes_before_it_admits(expected: dict[str, list[int]]) -> None:
    with pair(decode=TIGHT) as both:
        admitted_beside_retracted = 0
        both.send(*MANY)

        def done() -> bool:
            nonlocal admitted_beside_retracted
            before = both.decode.queues
            if before.retracted:
                both.decode.turn()
                after = both.decode.queues
                admitted_beside_retracted += after.retracted > 0 and after.transfer > before.transfer
            return all(request.rid in both.decode.finish for request in MANY)

        both.until("every answer", done)
        assert both.decode.answer == expected
        assert sum(meta.retractions for meta in both.decode.meta.values()) > 0
        assert not admitted_beside_retracted


def retract_one(station: Station | Pair) -> Station:
    """Turns until something is retracted; returns the station that did it."""
    side = station.decode if isinstance(station, Pair) else station
    turns_until(station.both if isinstance(station, Pair) else [side], "a retraction", lambda: side.queues.retracted)
    return side


@pytest.mark.parametrize("how", ["one", "all"])
def test_a_retracted_request_can_be_aborted(how: str) -> None:
    with pair(decode=TIGHT) as both:
        both.send(*MANY)
        side = retract_one(both)
        rid = next(req.rid for name, req in side.role.members() if name == "retracted")
        side.turn(AbortRequest(all=True) if how == "all" else AbortRequest(rid, exact=True))
        assert side.finish[rid].type == "abort"
        if how == "all":
            assert side.queues.retracted == 0


def test_the_victim_has_said_least_and_of_several_the_longest_prompt_goes() -> None:
    with unified(**TIGHT) as station:
        station.turn(*MANY[:3])
        turns_until([station], "a retraction", lambda: station.queues.retracted)
        members = list(station.role.members())
        said = {req.rid: len(req.output_ids) for name, req in members if name == "running"}
        taken = [req for name, req in members if name == "retracted"]
        assert all(len(req.output_ids) <= min(said.values()) for req in taken)
        assert taken[-1].rid == "r2"  # all started together: it has the longest prompt
        station.run()
        assert len(station.finish) == 3


def test_a_prompt_that_can_never_fit_is_refused_and_a_long_answer_is_cut_to_the_pool() -> None:
    with unified(**TIGHT) as station:
        station.run(ask("never", 256))
        finish = station.finish["never"]
        assert (finish.status, finish.code) == (400, "context_length_exceeded")
        assert "Request never exceeds the maximum number of tokens: 256 > 255" in finish.message
        station.run(ask("long", 200, tokens=400))
        assert len(station.answer["long"]) == 56


def test_headroom_is_no_more_than_a_request_may_say() -> None:
    """512 tokens are reserved by default; requests of eight tokens must not keep one another out for that."""
    with unified(max_total_tokens=512, num_reserved_decode_tokens=512, chunked_prefill_size=256) as station:
        station.turn(*(ask(f"r{index}", ids(20, index), tokens=8) for index in range(12)))
        assert station.queues.running + station.queues.waiting == 12
        station.turn()
        station.turn()
        assert station.queues.running == 12
        station.run()
        assert not any(meta.retractions for meta in station.meta.values())


def test_the_line_of_a_decode_batch_counts_them(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pdctl.engine")
    with unified(**TIGHT, decode_log_interval=1) as station:
        station.run(*MANY)
    counts = [int(found[1]) for text in caplog.messages if (found := re.search(r"#retracted-req: (\d+),", text))]
    assert max(counts) > 0
    assert counts[-1] == 0


@pytest.mark.parametrize("reserved", [1, 16, 512])
def test_nobody_starves_and_the_first_come_are_the_first_served(reserved: int) -> None:
    with unified(**{**TIGHT, "num_reserved_decode_tokens": reserved}) as station:
        requests = [ask(f"s{index}", ids(30, index), tokens=60) for index in range(10)]
        station.run(*requests)
        firsts = list(dict.fromkeys(station.told))
        assert firsts == [request.rid for request in requests]
        assert all(len(station.answer[request.rid]) == 60 for request in requests)
