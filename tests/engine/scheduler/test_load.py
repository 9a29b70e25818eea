"""The numbers behind /metrics and /v1/loads are what a rank really holds."""

from __future__ import annotations

import logging

import pytest

from pdctl.engine.decode import decode_role
from pdctl.engine.scheduler.role import WorkCounters, live_rooms
from pdctl.engine.scheduler.schedule_batch import Batch, Outcome
from tests.engine.scheduler.rig import HOST, PATIENCE, Station, abort, ask, ids, pair, turns_until, unified, with_fields

PAGE = 4  # tokens, as the rig has it


def tokens_add_up(station: Station) -> dict[str, float]:
    load = station.scheduler._load()
    parts = ("num_used_tokens", "kv_evictable_tokens", "kv_available_tokens")
    assert sum(load[name] for name in parts) == load["max_total_num_tokens"] == station.resources.capacity
    return load


def test_every_token_of_the_pool_is_held_evictable_or_free() -> None:
    with unified() as station:
        empty = tokens_add_up(station)
        assert (empty["num_used_tokens"], empty["kv_evictable_tokens"]) == (0, 0)
        station.run(ask("one", ids(3 * PAGE, 1), tokens=4))
        kept = tokens_add_up(station)
        assert (kept["num_used_tokens"], kept["kv_evictable_tokens"]) == (0, 3 * PAGE)
        station.turn(ask("two", ids(3 * PAGE, 1), tokens=40))
        turns_until([station], "a first token", lambda: station.answer["two"])
        reading = tokens_add_up(station)
        assert reading["num_used_tokens"] >= 3 * PAGE
        assert reading["kv_evictable_tokens"] < 3 * PAGE
        turns_until([station], "the answer", lambda: "two" in station.finish)


def test_prompts_without_pages_are_pending() -> None:
    """Neither could end beside the other: the second waits in prealloc, its handshake done."""
    with pair(decode={"max_total_tokens": 256}) as both:
        both.send(ask("first", ids(16, 1), tokens=200, room=1))
        both.until("the first to run", lambda: both.decode.queues.running)
        both.send(ask("second", ids(24, 2), tokens=200, room=2))

        def waits_for_memory() -> bool:
            return any(row.rid == "second" and "free pages" in row.waiting_for for row in live_rooms(both.decode.role))

        both.until("the second to wait for memory", waits_for_memory)
        assert "first" not in both.decode.finish
        assert tokens_add_up(both.decode)["pending_prealloc_token_usage"] == 24 / 256
        abort(both.decode, "first")
        both.until("the second to run", lambda: both.decode.queues.running)
        assert both.decode.scheduler._load()["pending_prealloc_token_usage"] == 0
        abort(both.decode, "second")
        waited = both.decode.meta["second"]
        assert 0 < waited.alloc_time <= waited.bootstrap_time


def test_rooms_that_no_prefill_has_are_named_while_they_hold_the_slots(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING, "pdctl.engine")
    with pair(decode={"max_running_requests": 2}) as both:
        both.run(ask("real", ids(16, 9), tokens=2, room=9))  # the two know each other
        assert both.decode.scheduler._load()["decode_transfer_wait_s"] == 0.0
        invented = [ask(f"invented{room}", ids(16, room), room=room) for room in (1, 2, 3)]
        fields = {"bootstrap_host": HOST, "bootstrap_port": both.server.port}
        both.decode.box.requests.extend(with_fields(request, **fields) for request in invented)
        both.until("both slots to be held", lambda: both.decode.queues.transfer == 2)
        monkeypatch.setattr(decode_role, "LATE", 0.0)
        both.until("a line", lambda: "No slot for" in caplog.text)
        assert 0 < both.decode.scheduler._load()["decode_transfer_wait_s"] < PATIENCE
        line = next(record.getMessage() for record in caplog.records if "No slot for" in record.getMessage())
        assert line.startswith("No slot for 1 room(s): 2 of 2 are held by rooms without their KV cache")
        assert "by room=1 rid='invented1' for " in line
        assert line.endswith(f"has prefill {HOST}:{both.server.port} a request with it?")
        for request in invented:
            abort(both.decode, request.rid)
        both.run(ask("next", ids(16, 8), tokens=2, room=8))
        assert caplog.text.count("No slot for") == 1, "at most one line in LATE_SAID_EVERY seconds"


def test_retracted_tokens_are_counted() -> None:
    tight = {"max_total_tokens": 256, "max_running_requests": 8, "num_reserved_decode_tokens": 16}
    with unified(**tight) as station:
        station.run(*(ask(f"r{index}", ids(20 + index, index), tokens=120) for index in range(5)))
        metas = list(station.meta.values())
        assert sum(meta.retractions for meta in metas) > 0
        for meta in metas:
            assert (meta.retracted_output_tokens > 0) is (meta.retractions > 0)
            assert meta.retracted_output_tokens <= meta.retractions * meta.completion_tokens


def decode_moments(load: dict[str, float]) -> list[float]:
    return [load[f"decode_moment_{power}"] for power in range(6)]


def test_work_is_counted_from_the_start_on() -> None:
    """What passes computed, what the cache gave, and the time of each: 32 tokens a prefill pass, one a decode step."""
    with unified() as station:
        idle = station.scheduler._load()
        assert idle["total_prefill_uncached_tokens"] == idle["total_prefill_busy_us"] == 0
        assert decode_moments(idle) == [0] * 6
        station.run(ask("cold", ids(80, 1), tokens=9))
        cold = station.scheduler._load()
        assert (cold["total_prefill_uncached_tokens"], cold["total_prefill_cached_tokens"]) == (80, 0)
        assert cold["total_prefill_busy_us"] > 0
        assert cold["total_decode_tokens"] == 8, "the first token is the prefill's"
        count, batch, spent, square, product, made = decode_moments(cold)
        assert count == batch == square == made == 7, "the first of a row of steps has none before it"
        assert spent == product > 0
        station.run(ask("warm", ids(80, 1), tokens=2))
        warm = station.scheduler._load()
        assert warm["total_prefill_cached_tokens"] == 76
        assert warm["total_prefill_uncached_tokens"] == 84
        assert warm["total_prefill_busy_us"] > cold["total_prefill_busy_us"]


def test_steps_of_a_batch_are_counted_by_its_size() -> None:
    with unified() as station:
        station.run(*(ask(f"r{index}", ids(8, index), tokens=20) for index in range(3)))
        count, batch, spent, square, product, made = decode_moments(station.scheduler._load())
        assert (batch, square, product, made) == (3 * count, 9 * count, 3 * spent, 3 * count)
        assert count == 18


def test_health_requests_are_no_work() -> None:
    with unified() as station:
        station.run(ask("HEALTH_CHECK_1", ids(8, 1), tokens=4))
        load = station.scheduler._load()
        assert load["total_prefill_uncached_tokens"] == load["total_decode_tokens"] == 0
        station.run(ask("real", ids(8, 2), tokens=4))
        assert station.scheduler._load()["total_prefill_uncached_tokens"] == 8


def test_times_go_from_end_to_end_of_prefill_passes_and_from_start_to_start_of_decode_steps() -> None:
    """Seconds of made-up passes; a pause between two counts for neither."""
    work = WorkCounters()

    def passed(began: float, ended: float, prefill: bool) -> None:
        work.add(Outcome(Batch((), prefill), (), began, ended))

    passed(10.0, 11.0, prefill=True)
    passed(11.5, 12.0, prefill=True)
    assert work.totals()["total_prefill_busy_us"] == 2_000_000, "half a second between two passes in a row counts"
    work.pause()
    passed(20.0, 20.25, prefill=True)
    assert work.totals()["total_prefill_busy_us"] == 2_250_000
    passed(30.0, 30.5, prefill=False)
    passed(30.75, 31.0, prefill=False)
    assert decode_moments(work.totals())[0::2] == [1, 750_000, 0]
    work.pause()
    passed(31.0, 31.5, prefill=False)
    passed(34.0, 34.5, prefill=False)
    assert decode_moments(work.totals())[0] == 1, "neither after a pause nor of three seconds"
    passed(34.25, 35.0, prefill=True)
    assert work.totals()["total_prefill_busy_us"] == 3_000_000, "it began before the decode step ended"


def test_tokens_in_the_queues_of_a_pair() -> None:
    """A prompt of three passes on the prefill, and a room on the decode that waits for memory alone."""
    with pair(decode={"max_total_tokens": 256}) as both:
        both.send(ask("first", ids(16, 1), tokens=200, room=1))
        both.until("the first to run", lambda: both.decode.queues.running)
        both.send(ask("second", ids(80, 2), tokens=150, room=2))
        both.until("the second to wait for memory", lambda: both.decode.scheduler._load()["prealloc_ready_reqs"])
        decode, prefill = both.decode.scheduler._load(), both.prefill.scheduler._load()
        assert decode["num_prealloc_ready_tokens"] == 80
        assert decode["num_waiting_reqs"] == 1
        assert decode["num_total_tokens"] == decode["num_used_tokens"] + 80
        assert decode["num_active_tokens"] == decode["num_used_tokens"], "the second's KV cache has not arrived"
        assert decode["decode_sum_seq_lens"] > 16
        assert (prefill["prefill_bootstrap_queue_reqs"], prefill["num_waiting_uncached_tokens"]) == (1, 0)
        assert prefill["num_total_tokens"] == prefill["num_used_tokens"] + 80
        abort(both.decode, "first")
        both.until("the second's page list", lambda: both.prefill.queues.waiting)
        left = [both.prefill.scheduler._load()["num_waiting_uncached_tokens"]]
        while both.prefill.queues.waiting:
            both.prefill.turn()
            left.append(both.prefill.scheduler._load()["num_waiting_uncached_tokens"])
        assert left[0] == 80
        assert left[-1] == 0
        assert left == sorted(left, reverse=True)
        abort(both.decode, "second")


def test_prompts_that_wait_are_counted_without_what_the_cache_is_likely_to_have() -> None:
    with unified(max_running_requests=1) as station:
        station.run(ask("cold", ids(64, 1), tokens=1))
        station.run(ask("warm", ids(64, 1), tokens=1))
        rate = station.scheduler._batches.recent_hit_rate
        assert rate == 60 / 128
        station.turn(ask("runs", ids(8, 3), tokens=100))
        turns_until([station], "a first token", lambda: station.answer["runs"])
        station.turn(ask("waits", ids(100, 4), tokens=1))
        waiting = station.scheduler._load()["num_waiting_uncached_tokens"]
        assert waiting == int(100 * (1 - station.scheduler._batches.recent_hit_rate))
        abort(station, "runs")
        station.run()
