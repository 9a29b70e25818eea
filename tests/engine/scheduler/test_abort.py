"""An abort, or the loss of the other side's interest, at every stage of a room: both sides give everything back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pdctl.engine.ipc.messages import AbortRequest
from pdctl.engine.kv_link.room_state import KVPoll
from tests.cases import for_each
from tests.engine.scheduler.rig import Pair, ask, ids, pair, turns_until, unified, with_fields

GONE = ask("gone", 60, tokens=40, room=77)
CHUNKS = {"chunked_prefill_size": 16}
Stage = Callable[[Pair], None]


def queue(both: Pair, side: str) -> str:
    """Where the room is on one side; empty when it is nowhere."""
    station = both.prefill if side == "prefill" else both.decode
    return next((name for name, req in station.role.members() if req.rid == "gone"), "")


def bootstrap(both: Pair) -> None:
    """Only the prefill has heard of it: no page list will come."""
    both.prefill.box.requests.append(with_fields(GONE, bootstrap_host="127.0.0.1", bootstrap_port=both.server.port))
    both.until("the bootstrap queue", lambda: queue(both, "prefill") == "bootstrap")


def prealloc(both: Pair) -> None:
    """Only the decode has heard of it: it has pages announced and waits, or waits for the handshake."""
    both.decode.box.requests.append(with_fields(GONE, bootstrap_host="127.0.0.1", bootstrap_port=both.server.port))
    both.decode.turn()
    assert queue(both, "decode") == "prealloc"


def announced(both: Pair) -> None:
    prealloc(both)
    both.until("the page list to be sent", lambda: queue(both, "decode") == "transfer")


def waiting(both: Pair) -> None:
    """Behind a prompt that takes all of the memory; nothing of it has been computed."""
    both.send(ask("first", 100, tokens=4, room=5), GONE)
    both.until("the waiting queue", lambda: queue(both, "prefill") == "waiting" and both.prefill.queues.waiting == 2)


def mid_chunk(both: Pair) -> None:
    both.send(GONE)
    both.until("a chunk on its way", lambda: sent(both) and queue(both, "prefill") == "waiting")


def transfer(both: Pair) -> None:
    """The prefill is through; the decode has not looked yet."""
    both.send(GONE)
    both.decode.turn()
    both.until("the page list", lambda: queue(both, "decode") == "transfer")
    while queue(both, "prefill") not in ("inflight", ""):
        both.prefill.turn()
    assert queue(both, "decode") == "transfer"


def running(both: Pair) -> None:
    both.send(GONE)
    both.until("five tokens", lambda: len(both.decode.answer["gone"]) >= 5)


def sent(both: Pair) -> bool:
    return any(req.rid == "gone" and req.sent_pages for _, req in both.prefill.role.members())


def emptied(both: Pair) -> None:
    both.until("the end of the room", lambda: both.idle)
    for side in both.both:
        side.resources.check_idle()


@for_each("stage", [bootstrap, waiting, mid_chunk, transfer, prealloc, announced, running])
@for_each("side", ["prefill", "decode", "both"])
def test_an_abort_frees_both_sides(stage: Stage, side: str) -> None:
    tight = {"max_total_tokens": 128, "disable_radix_cache": True, **CHUNKS}
    with pair(prefill=tight if stage is waiting else CHUNKS) as both:
        stage(both)
        for name in ("prefill", "decode") if side == "both" else (side,):
            (both.prefill if name == "prefill" else both.decode).box.requests.append(AbortRequest("gone", exact=True))
        heard = dict(zip(("prefill", "decode"), both.both, strict=True))
        alone = {bootstrap: "prefill", prealloc: "decode", announced: "decode"}.get(stage)
        if alone not in (None, side) and side != "both":  # that side never knew it: nothing happens, then it goes
            both.prefill.turn()
            both.decode.turn()
            assert not heard[side].finish
            heard[alone].box.requests.append(AbortRequest("gone", exact=True))
        emptied(both)
        ends = {name: station.finish["gone"].type for name, station in heard.items() if "gone" in station.finish}
        assert "abort" in ends.values() or (stage in (transfer, running) and side == "prefill")
        both.run(ask("after", ids(60, 9), room=78))  # nothing is left behind that would disturb the next
        assert len(both.decode.answer["after"]) == 8


@pytest.mark.parametrize("turns", [1, 2, 3, 4, 6])
def test_an_abort_of_a_unified_request_frees_everything(turns: int) -> None:
    with unified(chunked_prefill_size=16) as station:
        station.turn(ask("stays", 20, tokens=30), ask("gone", 60, tokens=40))
        for _ in range(turns):
            station.turn()
        station.turn(AbortRequest("gone", exact=True))
        assert station.finish["gone"].type == "abort"
        assert (station.finish["gone"].status, station.finish["gone"].code) == (499, "aborted")
        station.run()
        assert len(station.answer["stays"]) == 30


def test_a_prefix_of_an_aborted_prompt_may_still_be_used() -> None:
    """What was computed was computed."""
    with unified(chunked_prefill_size=16) as station:
        station.turn(ask("gone", ids(60), tokens=4))
        station.turn()
        station.turn()
        station.turn(AbortRequest("gone", exact=True))
        station.run(ask("again", ids(60), tokens=4))
        assert station.meta["again"].cached_tokens >= 16
    with unified() as plain:
        plain.run(ask("again", ids(60), tokens=4))
        assert plain.answer == {"again": station.answer["again"]}


def test_arrival_is_the_only_priority_through_a_pair() -> None:
    """Short ones behind long ones wait their turn, and the other way round."""
    with pair(prefill=CHUNKS) as both:
        lengths = [90, 3, 70, 5, 80, 4, 60, 2]
        requests = [ask(f"q{at}", ids(length, at), tokens=6, room=30 + at) for at, length in enumerate(lengths)]
        both.send(*requests)
        both.prefill.turn()
        rooms = [req.sender for _, req in both.prefill.role.members()]
        turns_until([both.decode], "every page list", lambda: all(room.poll() > KVPoll.BOOTSTRAPPING for room in rooms))
        both.until("every answer", lambda: len(both.decode.finish) == len(requests))
        assert list(dict.fromkeys(both.prefill.told)) == [request.rid for request in requests]
        assert sorted(both.decode.finish) == sorted(request.rid for request in requests)
