"""Groups of ranks under random ends: whoever gives up, whenever, every rank's part of the room ends and lets go."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pdctl.engine.kv_link.room_state import KVPoll
from pdctl.layout.kv_links import KvModel
from tests.engine.kv_link.instances import DST, SRC, Grid, Instance, cache, held, instance
from tests.engine.kv_link.rig import bootstrap, pages

ROOMS = 24


def give_up(rooms: list, rng: random.Random) -> None:
    """One rank of the group, as its scheduler would: the others hear of it from the other side, or agree later."""
    rng.choice(rooms).abort("chosen by the test")


def settle(group: Instance, rooms: list) -> None:
    """What the roles do when their ranks have agreed: a room that failed anywhere is given up everywhere."""
    for rank, room in zip(group.ranks, rooms, strict=True):
        rank.side.woken.wait(
            f"end of room {room.room} at {rank.seat}",
            lambda room=room: room.poll().final or any(one.poll() == KVPoll.FAILED for one in rooms),
        )
    if any(room.poll() == KVPoll.FAILED for room in rooms):
        for room in rooms:
            room.abort("another rank failed")
    for rank, room in zip(group.ranks, rooms, strict=True):
        rank.side.until_drained(room)


@pytest.mark.parametrize(
    ("model", "prefill_grid", "decode_grid"),
    [
        (KvModel(4, 4), Grid(2), Grid(1)),
        (KvModel(4, 4), Grid(1), Grid(2)),
        (KvModel(4, 2), Grid(2, 2), Grid(2)),
        (KvModel(3, 1, mla=True), Grid(2), Grid(1)),
    ],
)
def test_every_part_of_every_room_ends(model: KvModel, prefill_grid: Grid, decode_grid: Grid) -> None:
    rng = random.Random(11)
    with (
        bootstrap() as server,
        instance("prefill", model, prefill_grid, server.port) as prefill,
        instance("decode", model, decode_grid) as decode,
    ):
        whole = cache(model)
        prefill.fill(whole)
        good = 0
        for number in range(1, ROOMS + 1):
            when = rng.choice(["never", "before the handshake", "before the page list", "after it", "mid-transfer"])
            side = rng.choice(["prefill", "decode"])
            senders, receivers = prefill.senders(number), decode.receivers(number, server.port)
            victims = senders if side == "prefill" else receivers
            if when == "before the handshake":
                give_up(victims, rng)
            for rank, receiver in zip(decode.ranks, receivers, strict=True):
                rank.side.woken.wait("handshake", lambda r=receiver: r.poll() != KVPoll.BOOTSTRAPPING)
            if when == "before the page list":
                give_up(victims, rng)
            for receiver in receivers:
                receiver.send_metadata(DST)
            if when == "after it":
                give_up(victims, rng)
            prefill.send(senders, SRC[:2], last=False)
            if when == "mid-transfer":
                give_up(victims, rng)
            prefill.send(senders, SRC[2:])
            settle(decode, receivers)
            settle(prefill, senders)
            assert {room.poll() for room in receivers} <= {KVPoll.SUCCESS, KVPoll.FAILED}
            if when == "never":
                good += 1
                assert {room.poll() for room in (*senders, *receivers)} == {KVPoll.SUCCESS}
                for rank in decode.ranks:
                    assert np.array_equal(rank.pool[:, DST], held(model, rank.seat, whole)[:, SRC])
        assert good > 1
        for rank in (*prefill.ranks, *decode.ranks):
            rank.side.woken.wait("quiet", lambda rank=rank: rank.side.manager.stats().rooms == 0)
            assert rank.side.manager.stats().draining == 0


def test_a_prefill_rank_that_forgot_one_of_two_decode_ranks_is_told_again_by_that_one_alone() -> None:
    """The other's page list is there already: it must not come twice."""
    model = KvModel(4, 4)
    with (
        bootstrap() as server,
        instance("prefill", model, Grid(2), server.port) as prefill,
        instance("decode", model, Grid(1)) as decode,
    ):
        forgetful = prefill.ranks[1].side.manager
        senders, receivers = prefill.senders(1), decode.receivers(1, server.port)
        decode.until(receivers, KVPoll.WAITING_FOR_INPUT)
        sessions = forgetful._sessions  # type: ignore[union-attr]
        # The decode hears that it is welcome a moment before its session is in the books.
        prefill.ranks[1].side.woken.wait("the session", lambda: forgetful.stats().peers == 1)
        forgetful.loop.call(lambda: [forgetful.lost(one, "cut by the test") for one in sessions.all()])  # type: ignore[union-attr]
        prefill.ranks[1].side.woken.wait("lost session", lambda: forgetful.stats().peers == 0)
        receivers[0].send_metadata(pages(1, 2))
        prefill.send(senders, pages(3, 4))
        decode.until(receivers, KVPoll.SUCCESS)
        prefill.until(senders, KVPoll.SUCCESS)
