"""A room for which a decode has no pages or slot ends at its deadline, however long the rooms before it run."""

from __future__ import annotations

import pytest

from tests.engine.invariants.instance import CONTEXT, Size
from tests.engine.invariants.net import simulated
from tests.engine.invariants.world import STALL, Shape, World

LIMIT = 300.0  # DisaggConfig.waiting_timeout
HANDSHAKE = 6  # rounds that it takes


@pytest.mark.parametrize(("slots", "prompt"), [(1, 4), (6, CONTEXT // 2)], ids=["slot", "pages"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_room_that_gets_no_pages_ends_at_its_deadline_and_is_told_why(ranks: int, slots: int, prompt: int) -> None:
    world = World(Shape((Size("prefill", 1),), (Size("decode", ranks, running=slots),)))
    with simulated(world.net):
        world.start()
        (prefill,), (decode,) = world.prefills, world.decodes
        first = world.submit(prefill, decode, list(range(5, 9)), CONTEXT - 8)  # a token each STALL seconds
        world.settle(HANDSHAKE)
        second = world.submit(prefill, decode, list(range(5, 5 + prompt)), 4)
        world.settle(HANDSHAKE)
        runs, waits = (
            next(one for one in world.asked.values() if one.room == room and one.where is decode)
            for room in (first, second)
        )
        world.advance(LIMIT - 2 * STALL)
        assert not waits.ends
        world.advance(6 * STALL)
        assert (waits.ends, waits.why, runs.ends) == (1, "abort", 0)
        assert f"in KVPoll.WaitingForInput (limit {LIMIT:.1f}s): no pages or slot on this decode: " in waits.reason
        assert f"1 of {slots} slots taken, 0 rooms come before it" in waits.reason
        world.finish()
        assert runs.why == "length"
        world.serves()
        world.close()
