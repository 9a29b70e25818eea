"""The numbers behind /metrics and /v1/loads are what a rank really holds."""

from __future__ import annotations

import logging

import pytest

from pdctl.engine.decode import decode_role
from pdctl.engine.scheduler.role import live_rooms
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
