"""The prefix cache at work: what is skipped, what is sent all the same, who is told, and that no answer changes."""

from __future__ import annotations

import logging

import pytest

from pdctl.engine.config.instance_args import FAKE_BOOTSTRAP_HOST
from pdctl.engine.ipc.messages import Ask, Flush
from pdctl.engine.model.forward_pass import ForwardBatch
from tests.engine.scheduler.rig import abort, ask, flush, ids, pair, unified, with_fields


def test_a_known_beginning_is_not_computed_again_and_the_answer_is_the_same() -> None:
    with unified() as station, unified(disable_radix_cache=True) as plain:
        prompt = ids(50)
        for other in (station, plain):
            other.run(ask("first", prompt))
            other.run(ask("again", prompt), ask("longer", [*prompt, 9, 8, 7, 6, 5]), ask("other", ids(50, 3)))
        assert station.answer == plain.answer
        cached = {rid: meta.cached_tokens for rid, meta in station.meta.items()}
        # 50 tokens are twelve pages of four and a half; the last token's logits are always computed.
        assert cached == {"first": 0, "again": 48, "longer": 48, "other": 0}
        assert all(meta.cached_tokens == 0 for meta in plain.meta.values())


def test_at_least_one_token_is_computed() -> None:
    with unified() as station:
        for length in (1, 4, 5, 8, 31, 32, 33, 64, 65):
            station.run(ask(f"a{length}", ids(length, length)))
            station.run(ask(f"b{length}", ids(length, length)))
            assert station.answer[f"a{length}"] == station.answer[f"b{length}"]
            assert station.meta[f"b{length}"].cached_tokens == (length - 1) // 4 * 4


def test_an_answer_can_be_gone_on_from() -> None:
    """The next turn of a chat: prompt and answer of the last one are known, but for the last token."""
    with unified() as station:
        station.run(ask("turn-1", ids(10), tokens=9))
        station.run(ask("turn-2", [*ids(10), *station.answer["turn-1"], 7, 7, 7]))
        assert station.meta["turn-2"].cached_tokens == 16  # 18 tokens have K and V: four pages are whole


def test_pages_nobody_reads_make_room() -> None:
    with unified(max_total_tokens=128) as station:
        for turn in range(6):
            station.run(ask(f"r{turn}", ids(100, turn), tokens=4))
        cache = station.resources.prefix
        assert cache is not None
        assert cache.pages <= 32
        station.run(ask("last-again", ids(100, 5), tokens=4))
        assert station.meta["last-again"].cached_tokens > 0
        assert station.answer["last-again"] == station.answer["r5"]


def test_two_that_compute_the_same_at_once_keep_their_own_pages() -> None:
    with unified() as station:
        station.run(ask("a", ids(20)), ask("b", ids(20)))
        assert station.answer["a"] == station.answer["b"]


def test_flush_forgets_and_is_refused_while_anything_runs() -> None:
    with unified() as station:
        station.run(ask("a", ids(40)))
        station.turn(ask("b", ids(40, 1), tokens=30), Flush("busy"))
        assert not station.flushed[-1].ok
        station.run()
        assert flush(station)
        station.resources.allocator.check(expected_used=0)
        station.run(ask("c", ids(40)))
        assert station.meta["c"].cached_tokens == 0


def test_a_hit_on_a_prefill_skips_the_compute_and_not_the_transfer() -> None:
    with pair() as both:
        both.run(ask("one", ids(41), room=11))
        both.run(ask("two", ids(41), room=12))
        assert both.decode.answer["one"] == both.decode.answer["two"]
        for side in (both.prefill, both.decode):  # the decode learns it from the metadata row
            assert [side.meta[rid].cached_tokens for rid in ("one", "two")] == [0, 40]
        sent = [both.prefill.meta[rid].transfer_bytes for rid in ("one", "two")]
        assert sent[0] == sent[1] > 0


def test_cached_pages_leave_before_the_rest_is_computed() -> None:
    """They are with the sender when the forward pass begins."""
    with pair() as both:
        both.run(ask("one", ids(41), room=11))
        runner, manager = both.prefill.resources.runner, both.prefill.manager
        forward, begun = runner.forward, []

        def watched(batch: ForwardBatch) -> object:
            room = manager._rooms[12]
            both.prefill.woken.wait("the cached pages on their way", lambda: room.stats.pages)
            begun.append(room.stats.pages)
            return forward(batch)

        runner.forward = watched
        both.run(ask("two", ids(41), room=12))
        assert begun == [10]


def test_a_decode_that_keeps_prefixes_is_sent_only_what_it_lacks() -> None:
    with pair(decode={"disaggregation_decode_enable_radix_cache": True}) as both, unified() as station:
        prompts = {"one": ids(41), "two": ids(41), "tail": [*ids(38), 9, 9, 9, 9, 9], "other": ids(41, 3)}
        for room, (rid, prompt) in enumerate(prompts.items(), 11):
            both.run(ask(rid, prompt, room=room))
            station.run(ask(rid, prompt))
        assert both.decode.answer == station.answer
        pages = {rid: both.decode.meta[rid].transfer_pages for rid in prompts}
        assert pages == {"one": 11, "two": 1, "tail": 2, "other": 11}
        sent = {rid: both.prefill.meta[rid].transfer_bytes for rid in prompts}
        assert sent["two"] * 11 == sent["one"] == sent["other"]
        # The next turn of a chat: what the decode said itself is there too, and the prefill has never seen it.
        turn = [*ids(41), *both.decode.answer["one"], 7, 7]
        both.run(ask("turn", turn, room=20))
        station.run(ask("turn", turn))
        assert both.decode.answer["turn"] == station.answer["turn"]
        assert both.decode.meta["turn"].transfer_pages == 1
        assert flush(both.decode)
        both.run(ask("again", turn, room=21))
        assert both.decode.meta["again"].transfer_pages == 13
        assert both.decode.answer["again"] == both.decode.answer["turn"]


def test_a_decode_keeps_nothing_of_a_room_that_failed_or_was_a_rehearsal() -> None:
    """A fake room's pages were never written."""
    with pair(decode={"disaggregation_decode_enable_radix_cache": True}) as both:
        both.decode.turn(with_fields(ask("fake", ids(41)), bootstrap_host=FAKE_BOOTSTRAP_HOST, bootstrap_room=0))
        both.until("the end of the fake room", lambda: "fake" in both.decode.finish and both.idle)
        both.send(ask("gone", ids(41), room=5))
        both.decode.turn()
        both.until("the page list", lambda: both.decode.queues.transfer)
        abort(both.decode, "gone")
        both.until("the end of the room", lambda: both.idle)
        cache = both.decode.resources.prefix
        assert cache is not None
        assert cache.pages == 0
        both.run(ask("real", ids(41), room=6))
        assert both.decode.meta["real"].transfer_pages == 11


def test_the_lines_and_the_load_report_tell_of_hits(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pdctl.engine")
    with pair(prefill={"chunked_prefill_size": 64}) as both:
        both.run(ask("one", ids(41), room=11))
        both.run(ask("two", ids(41), room=12))
        both.prefill.turn(Ask("load"))
        (report,) = both.prefill.reports
    lines = [text for text in caplog.messages if text.startswith("Prefill batch")]
    assert "#new-seq: 1, #new-token: 41, #cached-token: 0" in lines[0]
    assert "#new-seq: 1, #new-token: 1, #cached-token: 40" in lines[-1]
    times = [text for text in caplog.messages if text.startswith("ReqTimeStats(rid=two")]
    assert len(times) == 2  # prefill and decode
    assert all("input_len=41, cached_input_len=40, " in text for text in times)
    assert report.load["cache_hit_rate"] == pytest.approx(40 / 41)
    assert report.load["token_usage"] == 0
    assert report.state["free_pages"] == report.state["num_pages"]
    assert report.state["cached_pages"] == 10
