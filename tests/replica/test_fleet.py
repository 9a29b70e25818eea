"""A fleet under random orders, faults and load keeps the invariants, and left in peace it ends every batch once."""

from __future__ import annotations

import random

import pytest

from pdctl.replica import transitions
from pdctl.replica.states import STATES, CountsAs, ReplicaState
from pdctl.replica.transitions import ALWAYS, TRANSITIONS, ReplicaEvent, TransitionGuard
from tests.cases import for_each
from tests.replica.fleet import Fleet

EVENTS = 30_000
PATIENCE = 1000  # rounds in which no batch ends
GUARDS = {row.guard.name: row.guard for row in TRANSITIONS}.values()


@pytest.mark.parametrize(
    ("size", "events"),
    [(3, 3 * EVENTS), (8, EVENTS), pytest.param(8, 4 * EVENTS, marks=pytest.mark.heavy)],
)
def test_a_random_walk_keeps_the_invariants(size: int, events: int) -> None:
    fleet = Fleet(size, random.Random(size))
    walk(fleet, events)
    assert {(row.source, row.event) for row in TRANSITIONS} == set(fleet.taken), "every row was gone through"
    assert fleet.refused["GuardRefused"] > events // 100
    assert fleet.refused["IllegalTransition"] > events // 100
    settle(fleet)
    assert fleet.ended == dict.fromkeys(range(fleet.submitted), 1), "every batch ended once"
    assert [one for one in fleet.replicas if one.blocks] == [], "at rest no block is used"


# The model always has a source of weights and a partner, and comes back to prefill only with the lock in hand.
SHOWN = [
    guard for guard in GUARDS if guard.name not in ("always", "source available", "source and partner", "lock held")
]


@for_each("guard", SHOWN, ids=lambda guard: guard.name)
def test_without_one_of_the_guards_an_invariant_breaks(guard: TransitionGuard) -> None:
    rows = {key: row._replace(guard=ALWAYS) for key, row in transitions._ROWS.items() if row.guard is guard}
    with pytest.MonkeyPatch.context() as patch:
        for key, row in rows.items():
            patch.setitem(transitions._ROWS, key, row)
        with pytest.raises((AssertionError, IndexError)):
            walk(Fleet(8, random.Random(1)), EVENTS)


def walk(fleet: Fleet, events: int) -> None:
    for _ in range(events):
        fleet.step()


def settle(fleet: Fleet) -> None:
    """Turn after turn, with one of each role at work, until all batches have ended."""
    quiet, ended = 0, -1
    while quiet < PATIENCE:
        for replica in fleet.replicas:
            if (event := wanted(fleet, replica.state)) is not None:
                fleet.order(replica.name, event)
            fleet.turn(replica)
        before, ended = ended, sum(fleet.ended.values())
        quiet = quiet + 1 if ended == before else 0
        if ended == fleet.submitted:
            return
    left = [(one.state.value, one.blocks) for one in fleet.replicas]
    raise AssertionError(f"{fleet.submitted - ended} batches did not end: {left}")


def wanted(fleet: Fleet, state: ReplicaState) -> ReplicaEvent | None:
    counted = {STATES[one.state].counts_as for one in fleet.replicas}
    if state is ReplicaState.FAILED:
        return ReplicaEvent.RESET
    if state is ReplicaState.SHUTTING_NULL:
        return ReplicaEvent.UNLOAD
    if state is ReplicaState.INACTIVE and CountsAs.PREFILL not in counted:
        return ReplicaEvent.LOAD_PREFILL
    if state is ReplicaState.INACTIVE and CountsAs.DECODE not in counted:
        return ReplicaEvent.LOAD_DECODE
    return None
