"""Choices of a replica under a gate, against a look at all of them."""

from __future__ import annotations

from random import Random

from pdctl.simulation.replica_choice import NOBODY, LeastLoadedReplica, ReplicaInTurn, UngatedReplica
from tests.cases import for_each

COUNT = 12


@for_each("in_turn", [False, True])
@for_each("seed", range(20))
def test_the_gate_leaves_out_exactly_those_above_its_limit(seed: int, in_turn: bool) -> None:
    rng, used, loads, limit, last = Random(seed), [0] * COUNT, dict[int, int](), 50, NOBODY
    choice = UngatedReplica(
        ReplicaInTurn(COUNT) if in_turn else LeastLoadedReplica(COUNT), used, lambda one: used[one] > limit
    )
    gated, loads[COUNT - 1] = 0, 60  # one that is always there and free
    choice.put(COUNT - 1, 60)
    for _ in range(3000):
        one, what = rng.randrange(COUNT - 1), rng.random()
        if what < 0.1:
            loads.pop(one, None)
            choice.drop(one)
        elif what < 0.5:
            more = what < 0.2  # then nobody tells the choice, as where memory is charged
            used[one] = rng.randrange(used[one], 101) if more else rng.randrange(101)
            if not more or one not in loads:
                loads[one] = used[one] // 2 + rng.randrange(50)
                choice.put(one, loads[one])
        elif what < 0.6:
            limit = rng.randrange(100)
        free = [each for each in sorted(loads) if used[each] <= limit]
        gated += len(loads) - len(free)
        if in_turn:
            last = expected = next((each for each in free if each > last), free[0])
        else:
            expected = min(free, key=lambda each: loads[each])
        assert choice.choose() == expected
    assert gated
