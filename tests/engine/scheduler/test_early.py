"""Optimistic prefill: computed before the decode is heard of, sent when it is, given back when it is not."""

from __future__ import annotations

import pytest

from pdctl.engine.ipc.messages import Generate
from tests.engine.scheduler.rig import HOST, Pair, abort, ask, pair, unified, with_fields

ONCE = {"optimistic_prefill_attempts": 1}


def expected(request: Generate) -> list[int]:
    with unified() as station:
        station.run(with_fields(request, bootstrap_room=None))
        return station.answer[request.rid]


def addressed(both: Pair, request: Generate) -> Generate:
    return with_fields(request, bootstrap_host=HOST, bootstrap_port=both.server.port)


def computed_alone(both: Pair, request: Generate) -> None:
    """Only the prefill has heard of it, and has its first token."""
    both.prefill.box.requests.append(addressed(both, request))
    both.until("the prompt to be computed", lambda: both.prefill.queues.inflight == 1)


@pytest.mark.parametrize("length", [1, 30, 90])
def test_the_prompt_is_computed_before_the_decode_is_heard_of(length: int) -> None:
    request = ask("early", length, tokens=6, room=11)
    with pair(prefill=ONCE) as both:
        computed_alone(both, request)
        assert not both.prefill.finish
        both.decode.box.requests.append(addressed(both, request))
        both.until("both answers", lambda: "early" in both.prefill.finish and "early" in both.decode.finish)
        assert both.decode.answer["early"] == expected(request)


def test_without_attempts_nothing_starts_early() -> None:
    with pair() as both:
        both.prefill.box.requests.append(addressed(both, ask("late", 30, room=12)))
        for _ in range(30):
            both.prefill.turn()
        assert both.prefill.queues.bootstrap == 1
        abort(both.prefill, "late")


def test_pages_go_back_when_the_decode_stays_away_and_the_answer_is_still_right() -> None:
    request = ask("slow", 60, tokens=5, room=13)
    with pair(prefill=ONCE) as both:
        computed_alone(both, request)
        both.until("the pages to be given back", lambda: both.prefill.queues.bootstrap == 1)
        assert both.prefill.resources.held_pages == 0
        both.decode.box.requests.append(addressed(both, request))
        both.until("both answers", lambda: "slow" in both.prefill.finish and "slow" in both.decode.finish)
        assert both.decode.answer["slow"] == expected(request)
        assert both.prefill.meta["slow"].cached_tokens == 56  # whole pages, and never the last token


@pytest.mark.parametrize("attempts", [1, 3])
def test_attempts_begun_again_are_counted(attempts: int) -> None:
    request = ask("slow", 60, tokens=5, room=18)
    with pair(prefill={"optimistic_prefill_attempts": attempts}) as both:
        both.prefill.box.requests.append(addressed(both, request))
        both.until("the last attempt", lambda: [req.attempts for _, req in both.prefill.role.members()] == [attempts])
        both.until("the pages to be given back", lambda: both.prefill.queues.bootstrap == 1)
        both.decode.box.requests.append(addressed(both, request))
        both.until("both answers", lambda: "slow" in both.prefill.finish and "slow" in both.decode.finish)
        assert both.prefill.meta["slow"].prefill_retries == attempts - 1


def test_one_whose_decode_is_ready_is_not_held_up() -> None:
    """A pool with room for one prompt: the early one makes way."""
    early, ready = ask("early", 90, tokens=2, room=14), ask("ready", 90, tokens=2, room=15)
    with pair(prefill={**ONCE, "max_total_tokens": 128, "disable_radix_cache": True}) as both:
        computed_alone(both, early)
        both.send(ready)
        both.until("the ready one", lambda: "ready" in both.decode.finish)
        assert both.decode.answer["ready"] == expected(ready)
        both.decode.box.requests.append(addressed(both, early))
        both.until("the early one", lambda: "early" in both.decode.finish and "early" in both.prefill.finish)
        assert both.decode.answer["early"] == expected(early)


@pytest.mark.parametrize("stage", ["chunk", "computed", "given back"])
def test_an_abort_frees_an_early_start(stage: str) -> None:
    with pair(prefill={**ONCE, "chunked_prefill_size": 16}) as both:
        request = ask("gone", 60, room=16)
        if stage == "chunk":
            both.prefill.box.requests.append(addressed(both, request))
            both.until("a chunk", lambda: any(req.computed for _, req in both.prefill.role.members()))
        else:
            computed_alone(both, request)
        if stage == "given back":
            both.until("the pages to be given back", lambda: both.prefill.queues.bootstrap == 1)
        abort(both.prefill, "gone")
        both.until("the end", lambda: "gone" in both.prefill.finish and both.idle)
        assert both.prefill.resources.held_pages == 0


def test_a_timeout_names_what_did_not_come() -> None:
    with pair(prefill={**ONCE, "bootstrap_timeout": 0.2}) as both:
        both.prefill.box.requests.append(addressed(both, ask("never", 30, room=17)))
        both.until("the failure", lambda: "never" in both.prefill.finish)
        assert "0 of 1 decode ranks sent their page list for room 17" in both.prefill.finish["never"].message
