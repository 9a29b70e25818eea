"""Pairs that cannot work: both clients hear both shapes at once, with every deadline far away."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

import pytest

from pdctl.engine.kv_link.bootstrap_client import ParallelInfo
from pdctl.engine.kv_link.kv_manager import shape_of
from pdctl.engine.kv_link.rank_shape import MismatchError, RankShape, find_writers, mismatch
from pdctl.engine.kv_link.room_state import FailureCode, KVPoll
from pdctl.engine.kvcache.pool_geometry import PoolGeometry
from pdctl.layout.kv_links import KvModel
from tests.engine.kv_link.instances import Grid, pair
from tests.engine.kv_link.rig import (
    DECODE,
    HOST,
    PATIENCE,
    bootstrap,
    decode_side,
    geometry,
    pages,
    prefill_side,
)
from tests.engine.kv_link.rooms import failed, open_room, run_room

BOUND = 60.0  # seconds; every deadline of the managers is 300
GQA = KvModel(6, 4)


def shape(**fields: object) -> RankShape:
    base = shape_of(replace(DECODE, model="m", layers=6, kv_heads=4), geometry(layers=6))
    return RankShape(**{**{name: getattr(base, name) for name in base.__struct_fields__}, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("decode", "sentence"),
    [
        ({"page_size": 8}, "Page size mismatch: prefill server has page_size=4, but decode server has page_size=8."),
        ({"kv_dtype": "bfloat16"}, "KV cache dtype mismatch: prefill server has kv_cache_dtype=float32, but decode"),
        ({"mla": True, "num_kv_heads": 1}, "Attention mismatch: prefill has GQA, decode has MLA."),
        ({"num_layers": 7}, "Model mismatch: prefill has num_layers=6, decode has num_layers=7."),
        ({"num_kv_heads": 8}, "Model mismatch: prefill has num_kv_heads=4, decode has num_kv_heads=8."),
        ({"head_dim": 16}, "Model mismatch: prefill has head_dim=8, decode has head_dim=16."),
        ({"model": "other"}, "Model mismatch: prefill has model=m, decode has model=other."),
        ({"pp_size": 3}, "Pipeline mismatch: prefill has pp_size=1, decode has pp_size=3."),
    ],
)
def test_what_a_prefill_rank_refuses_has_both_shapes(decode: dict[str, object], sentence: str) -> None:
    ours, theirs = shape(), shape(**decode)
    text = mismatch(ours, theirs)
    assert text.startswith(sentence)
    assert f"Prefill: {ours.words}. Decode: {theirs.words}." in text


def test_attention_tp_that_does_not_divide_is_named_with_both_sizes() -> None:
    text = mismatch(shape(attn_tp_size=2), shape(attn_tp_size=3))
    assert "Attention TP mismatch: prefill has attn_tp_size=2, decode has attn_tp_size=3." in text
    assert mismatch(shape(attn_tp_size=4), shape(attn_tp_size=2)) == ""


def test_context_parallel_prefills_are_refused_before_any_rank_is_asked() -> None:
    with pytest.raises(MismatchError, match=r"prefill has attn_cp_size=2.* Prefill: attn_tp_size=1 .* Decode: m: 6"):
        find_writers(shape(), ParallelInfo(1, 2, 1, 1))


@pytest.mark.parametrize("first", ["prefill's request first", "decode's request first"])
def test_shapes_that_do_not_divide_fail_both_clients_at_once(first: str) -> None:
    """The bootstrap server's answer is enough for the decode; the prefill hears of it from the decode."""
    with pair(GQA, Grid(1, 3), Grid(1, 2)) as both:
        prefill, decode, port = both
        began = time.monotonic()
        if first == "prefill's request first":
            senders, receivers = both.open()
        else:
            receivers = decode.receivers(1, port)
            decode.until(receivers, KVPoll.FAILED)
            senders = prefill.senders(1)
        decode.until(receivers, KVPoll.FAILED)
        prefill.ranks[0].side.until(senders[0], KVPoll.FAILED)
        assert time.monotonic() - began < BOUND
        for failure in (receivers[0].failure, senders[0].failure):
            assert failure is not None
            assert failure.code == FailureCode.MISMATCH.value
            assert "Pipeline mismatch: prefill has pp_size=3, decode has pp_size=2." in failure.message
            assert "attn_tp_size=1 pp_size=3" in failure.message
            assert "attn_tp_size=1 pp_size=2" in failure.message


@pytest.mark.parametrize("late", [False, True], ids=["prefill's request first", "decode's request first"])
def test_what_only_the_prefill_can_see_fails_both_clients_at_once(late: bool, caplog: pytest.LogCaptureFixture) -> None:
    other = geometry(layers=5)
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side(other) as decode:
        began = time.monotonic()
        if late:
            receiver = decode.manager.receiver(1, "r", HOST, server.port)
            decode.until(receiver, KVPoll.FAILED)
            sender = prefill.manager.sender(1, "r")
        else:
            sender, receiver = open_room(prefill, decode, 1, server.port)
        text = "Model mismatch: prefill has num_layers=3, decode has num_layers=5."
        failed(decode, receiver, FailureCode.MISMATCH, text, "3 layers", "5 layers")
        failed(prefill, sender, FailureCode.MISMATCH, text, "3 layers", "5 layers")
        assert time.monotonic() - began < BOUND
        assert receiver.drained
        assert sender.drained
        refusals = [r.message for r in caplog.records if r.levelno == logging.ERROR and text in r.message]
        assert len(refusals) == 2, "one line on either side"
        with decode_side() as fitting:
            run_room(prefill, fitting, 2, server.port)


def test_a_refused_room_is_told_once_and_its_number_is_free_again() -> None:
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side(geometry(layers=5)) as decode:
        receiver = decode.manager.receiver(1, "r", HOST, server.port)
        decode.until(receiver, KVPoll.FAILED)
        failed(prefill, prefill.manager.sender(1, "r"), FailureCode.MISMATCH)
        with decode_side() as fitting:
            run_room(prefill, fitting, 1, server.port)


def test_a_refusal_that_came_too_long_ago_is_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pdctl.engine")
    with (
        bootstrap() as server,
        prefill_side(server.port, refusal_ttl=0.0) as prefill,
        decode_side(geometry(layers=5)) as decode,
    ):
        receiver = decode.manager.receiver(1, "r", HOST, server.port)
        decode.until(receiver, KVPoll.FAILED)
        prefill.woken.wait("notice", lambda: "Received abort notification for room 1" in caplog.text)
        with decode_side() as fitting:
            run_room(prefill, fitting, 1, server.port)


def test_a_pool_that_is_not_what_its_shape_says_is_refused() -> None:
    """A decode whose numbers contradict one another: nothing may be written by them."""
    claims = {"layers": 3, "kv_heads": 4}
    small = PoolGeometry(layers=3, num_pages=32, page_size=4, kv_heads=2, head_dim=8, itemsize=4)
    with (
        bootstrap() as server,
        prefill_side(server.port, geometry(), **claims, attn_tp_size=1) as prefill,
        decode_side(small, **claims) as decode,
    ):
        sender, receiver = open_room(prefill, decode, 1, server.port)
        failed(decode, receiver, FailureCode.MISMATCH, "heads 0..3 are not in the pool")
        failed(prefill, sender, FailureCode.MISMATCH, "heads 0..3 are not in the pool")


# --- data parallelism


@pytest.mark.parametrize("kind", [("attn_dp_rank", "attn_dp_size"), ("dp_rank", "dp_size")])
def test_a_room_at_another_dp_rank_than_its_number_says_is_refused_at_once(kind: tuple[str, str]) -> None:
    rank, size = kind
    with bootstrap() as server, prefill_side(server.port, **{rank: 1, size: 2}, registered=True) as prefill:
        began = time.monotonic()
        sender = prefill.manager.sender(10, "r")
        failed(
            prefill, sender, FailureCode.DP_CONFLICT,
            "follow_bootstrap_room conflict: dispatched to dp_rank 1 but bootstrap_room 10 implies dp_rank 0.",
        )  # fmt: skip
        assert time.monotonic() - began < BOUND
        assert prefill.manager.sender(11, "r").poll() == KVPoll.BOOTSTRAPPING
        named = prefill.manager.sender(13, "r", dp_rank=0)
        failed(prefill, named, FailureCode.DP_CONFLICT, "but disagg_prefill_dp_rank of bootstrap_room 13 is 0")


@pytest.mark.parametrize("kind", [("attn_dp_rank", "attn_dp_size"), ("dp_rank", "dp_size")])
def test_either_kind_of_dp_is_found_by_the_room_number(kind: tuple[str, str]) -> None:
    rank, size = kind
    with (
        bootstrap() as server,
        prefill_side(server.port, **{rank: 0, size: 2}) as even,
        prefill_side(server.port, **{rank: 1, size: 2}) as odd,
        decode_side() as decode,
    ):
        for room in (10, 11):
            run_room((even, odd)[room % 2], decode, room, server.port)
        assert even.manager.stats().succeeded == odd.manager.stats().succeeded == 1


@pytest.mark.parametrize("late", [False, True], ids=["prefill's request first", "decode's request first"])
def test_a_request_at_the_wrong_dp_rank_fails_the_decode_at_once_too(late: bool) -> None:
    """The page list comes to the rank that the room implies: the other one tells it that nobody will ask for it."""
    with (
        bootstrap() as server,
        prefill_side(server.port, attn_dp_rank=0, attn_dp_size=2) as implied,
        prefill_side(server.port, attn_dp_rank=1, attn_dp_size=2) as taken,
        decode_side() as decode,
    ):
        began = time.monotonic()
        receiver = decode.manager.receiver(10, "r", HOST, server.port)
        if late:
            decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
            receiver.send_metadata(pages(1))
        sender = taken.manager.sender(10, "r")
        failed(taken, sender, FailureCode.DP_CONFLICT)
        if not late:
            decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
            receiver.send_metadata(pages(1))
        failed(
            decode, receiver, FailureCode.DP_CONFLICT,
            "dispatched to dp_rank 1 but bootstrap_room 10 implies dp_rank 0.",
        )  # fmt: skip
        decode.until_drained(receiver)
        assert time.monotonic() - began < BOUND
        assert implied.manager.stats().rooms == 0


def test_a_dp_rank_that_follows_the_room_is_asked_for_where_both_sides_are_told_to() -> None:
    both = {"query_dp_rank": True}
    with (
        bootstrap() as server,
        prefill_side(server.port, attn_dp_rank=0, attn_dp_size=2, **both),
        prefill_side(server.port, attn_dp_rank=1, attn_dp_size=2, **both) as taken,
        decode_side(**both) as decode,
    ):
        run_room(taken, decode, 10, server.port)


def test_a_dp_rank_that_only_the_prefill_knows_is_asked_for_and_refusals_reach_it() -> None:
    settings = {"load_balance_method": "round_robin", "attn_dp_size": 2}
    with (
        bootstrap() as server,
        prefill_side(server.port, **settings, attn_dp_rank=0),
        prefill_side(server.port, **settings, attn_dp_rank=1) as chosen,
        decode_side() as decode,
        decode_side(geometry(layers=5)) as unfit,
    ):
        run_room(chosen, decode, 10, server.port)
        sender = chosen.manager.sender(12, "r")
        receiver = unfit.manager.receiver(12, "r", HOST, server.port)
        failed(unfit, receiver, FailureCode.MISMATCH)
        failed(chosen, sender, FailureCode.MISMATCH, "num_layers")


# --- some ranks of a group


def test_one_decode_rank_that_gives_up_ends_the_room_for_the_whole_prefill_rank() -> None:
    """Two decode ranks share a prefill rank: it waits for both page lists, and one of them will never come."""
    with pair(GQA, Grid(1), Grid(2)) as both:
        prefill, decode, _ = both
        senders, receivers = both.open()
        decode.until(receivers, KVPoll.WAITING_FOR_INPUT)
        receivers[0].send_metadata(pages(1, 2))
        receivers[1].abort("out of pages on this rank")
        prefill.until(senders, KVPoll.FAILED)
        decode.until(receivers, KVPoll.FAILED)
        for rank, receiver in zip(decode.ranks, receivers, strict=True):
            rank.side.until_drained(receiver)
        assert [rank.side.manager.stats().rooms for rank in (*prefill.ranks, *decode.ranks)] == [0, 0, 0]


def test_one_prefill_rank_that_fails_fails_the_decode_rank_and_stops_the_others() -> None:
    with pair(GQA, Grid(2), Grid(1)) as both:
        prefill, decode, _ = both
        senders, receivers = both.announced()
        senders[1].abort("the second rank ran out of something")
        decode.until(receivers, KVPoll.FAILED)
        assert receivers[0].failure is not None
        assert receivers[0].failure.message == "the second rank ran out of something"
        prefill.until(senders, KVPoll.FAILED)
        decode.ranks[0].side.until_drained(receivers[0])


@pytest.mark.parametrize("who", [0, 1])
def test_a_dummy_rank_that_fails_is_heard_too(who: int) -> None:
    with pair(KvModel(3, 1, mla=True), Grid(2), Grid(1)) as both:
        prefill, decode, _ = both
        senders, receivers = both.announced()
        senders[who].abort("said by the test")
        decode.until(receivers, KVPoll.FAILED)
        prefill.until(senders, KVPoll.FAILED, PATIENCE)
        decode.ranks[0].side.until_drained(receivers[0])
