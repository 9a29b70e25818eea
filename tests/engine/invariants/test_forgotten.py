"""Several ranks of a prefill have dropped a decode that does not know: one more try with each of them is enough."""

from __future__ import annotations

import pytest

from pdctl.engine.prefill.prefill_manager import PrefillManager
from tests.engine.invariants.instance import Size
from tests.engine.invariants.net import simulated
from tests.engine.invariants.world import Shape, World


@pytest.mark.parametrize("forgetful", [1, 2])
@pytest.mark.parametrize("attempts", [0, 1])
def test_a_room_registers_again_with_every_rank_that_has_forgotten_its_decode(forgetful: int, attempts: int) -> None:
    world = World(Shape((Size("prefill", 2, attempts=attempts),), (Size("decode", 1),)))
    with simulated(world.net):
        world.start()
        world.serves()
        for rank in world.prefills[0].ranks[:forgetful]:
            manager = rank.manager
            assert isinstance(manager, PrefillManager)
            for session in [one.id for one in manager._sessions.all()]:
                manager._unregister(session)
        world.serves()
        world.finish()
        world.close()
