"""The table of transitions against BlitzScale's, written down by hand, against the table of states, and `advance`."""

from __future__ import annotations

import itertools

import pytest

from pdctl.replica.states import STATES, CountsAs, IngressLock, ReplicaState, Weights
from pdctl.replica.transitions import (
    COMMANDS,
    TRANSITIONS,
    GuardFacts,
    GuardRefused,
    IllegalTransition,
    LockEffect,
    ReplicaEvent,
    Transition,
    Trigger,
    advance,
    transitions_from,
)
from tests.cases import for_each

# The arrows of blitz-serving/blitz-scale at 594e911, automatic and manual mode together, as read from its source.
THERE = {
    ("inactive", "loadingprefill"),
    ("loadingprefill", "prefill"),
    ("inactive", "loadingdecode"),
    ("loadingdecode", "ausdecode"),
    ("loadingdecode", "mutatingtodecode"),
    ("ausdecode", "decode"),
    ("ausprefill", "prefill"),
    ("inactive", "newprefill"),
    ("inactive", "prefill"),
    ("inactive", "mutatingtodecode"),
    ("prefill", "oldprefill"),
    ("newprefill", "refractoryprefill"),
    ("refractoryprefill", "prefill"),
    ("oldprefill", "prefill"),
    ("prefill", "mutatingtodecode"),
    ("mutatingtodecode", "decode"),
    ("prefill", "shuttingprefill"),
    ("shuttingprefill", "shuttingnull"),
    ("decode", "shuttingdecode"),
    ("shuttingdecode", "shuttingnull"),
    ("decode", "shuttingnull"),
    ("shuttingprefill", "prefill"),
    ("shuttingdecode", "ausdecode"),
    ("shuttingnull", "prefill"),
    ("shuttingnull", "decode"),
    ("shuttingnull", "ausdecode"),
    ("shuttingnull", "inactive"),
}
NOT_OURS = {
    ("loadingdecode", "mutatingtodecode"),  # its flush has nothing to give back
    ("inactive", "prefill"),  # without weights nobody serves
    ("inactive", "mutatingtodecode"),
    ("shuttingprefill", "prefill"),  # through ausprefill, where the replica itself comes back
    ("shuttingnull", "prefill"),
    ("shuttingnull", "decode"),  # through ausdecode: a parked replica holds its lock
}
OURS = {
    ("shuttingprefill", "ausprefill"),
    ("shuttingnull", "ausprefill"),
    ("decode", "mutatingtoprefill"),
    ("mutatingtoprefill", "prefill"),
    ("mutatingtoprefill", "ausdecode"),
    ("loadingprefill", "loadingprefill"),  # the source is lost, another one goes on
    ("loadingdecode", "loadingdecode"),
    ("newprefill", "newprefill"),
    ("failed", "inactive"),
    *((state.value, "failed") for state in ReplicaState if state is not ReplicaState.FAILED),
}

# What makes each guard hold.
HOLDS = GuardFacts(
    lock_held=True,
    layers_loaded=True,
    source_available=True,
    relay_empty=True,
    unpaired_loads=1,
    credit=1,
    normal_peers=1,
)
# One fact that is otherwise, for each guard that reads it.
WRONG = {
    "running_rooms": 1,
    "inbox": 1,
    "unfinished_migrations": 1,
    "used_blocks": 1,
    "parked_batches": 1,
    "lock_held": False,
    "lock_pending": True,
    "lock_with_sender": True,
    "layers_loaded": False,
    "source_available": False,
    "sending_parameters": True,
    "relay_empty": False,
    "unpaired_loads": 0,
    "credit": 0,
    "normal_peers": 0,
    "decode_scarce": True,
}


def name(row: Transition) -> str:
    return f"{row.source.value}, {row.event.value}"


def test_what_is_legal_is_what_blitzscale_does_but_for_what_is_said() -> None:
    ours = {(row.source.value, row.target.value) for row in TRANSITIONS}
    assert ours == (THERE - NOT_OURS) | OURS
    assert THERE >= NOT_OURS
    assert not THERE & OURS


@for_each("row", TRANSITIONS, ids=name)
def test_a_row_that_is_not_as_there_says_so(row: Transition) -> None:
    pair = (row.source.value, row.target.value)
    if row.known_from == "ours":
        assert pair in OURS
    elif pair in OURS:
        assert row.differs, "it takes the place of an arrow there"
    else:
        assert pair in THERE


@for_each("row", TRANSITIONS, ids=name)
def test_every_row_is_reached(row: Transition) -> None:
    assert advance(row.source, row.event, HOLDS) is row


@for_each("state, event", itertools.product(ReplicaState, ReplicaEvent))
def test_every_pair_that_is_not_in_the_table_is_refused(state: ReplicaState, event: ReplicaEvent) -> None:
    rows = [row for row in TRANSITIONS if (row.source, row.event) == (state, event)]
    assert len(rows) < 2, "an event leads to one state"
    if not rows:
        with pytest.raises(IllegalTransition) as told:
            advance(state, event, HOLDS)
        assert f"a replica in state {state.value} cannot take '{event.value}'" in told.value.message
        for row in TRANSITIONS:
            assert row.event is not event or row.source.value in told.value.message
            assert row.source is not state or f"{row.event.value} (to {row.target.value})" in told.value.fix


def test_an_illegal_event_names_where_it_is_legal_and_what_else_would_be() -> None:
    with pytest.raises(IllegalTransition) as told:
        advance(ReplicaState.SHUTTING_NULL, ReplicaEvent.DRAIN, HOLDS)
    assert told.value.message == (
        "a replica in state shuttingnull cannot take 'drain', which leads to shuttingprefill from prefill; "
        "to shuttingdecode from decode"
    )
    assert told.value.fix == (
        "from shuttingnull these are legal: re-use as prefill (to ausprefill), re-use as decode (to ausdecode), "
        "unload (to inactive), died (to failed)"
    )


@for_each("row", TRANSITIONS, ids=name)
def test_a_guard_looks_at_what_it_says_and_names_it_when_it_refuses(row: Transition) -> None:
    seen: set[str] = set()

    class Watched:
        def __getattr__(self, fact: str) -> object:
            seen.add(fact)
            return getattr(HOLDS, fact)

    assert row.guard.holds(Watched())  # type: ignore[arg-type]  # it looks like one
    assert seen == set(row.guard.reads)
    for fact in row.guard.reads:
        facts = HOLDS._replace(**{fact: WRONG[fact]})
        with pytest.raises(GuardRefused) as told:
            advance(row.source, row.event, facts)
        assert row.guard.sentence in told.value.message
        assert f"{fact}={WRONG[fact]}" in told.value.message
        assert f"from {row.source.value} to {row.target.value}" in told.value.message


def test_every_fact_is_read_by_a_guard() -> None:
    assert {fact for row in TRANSITIONS for fact in row.guard.reads} == set(GuardFacts._fields) == set(WRONG)


# Who may have the lock in each column of the table of states: the replica, one that lets it wait as the next, or nobody
# (then a sender may have it).
MAY_BE = {
    IngressLock.HELD: {"held"},
    IngressLock.FREE: {"free"},
    IngressLock.BEING_TAKEN: {"held", "pending"},
    IngressLock.BEING_RELEASED: {"held", "pending"},
}
BECOMES = {
    LockEffect.KEEP: {"held": {"held"}, "pending": {"pending"}, "free": {"free"}},
    LockEffect.TAKE: {"free": {"held"}},
    LockEffect.TAKE_WHEN_FREE: {"held": {"held"}, "pending": {"pending"}, "free": {"held", "pending"}},
    LockEffect.RELEASE: {"held": {"free"}, "pending": {"free"}},
}


@for_each("row", TRANSITIONS, ids=name)
def test_the_lock_agrees_with_the_states_on_both_sides(row: Transition) -> None:
    before = MAY_BE[STATES[row.source].ingress_lock]
    if "lock_held" in row.guard.reads:
        before = before & {"held"}
    assert before
    after = {status for one in before for status in BECOMES[row.lock][one]}
    assert after <= MAY_BE[STATES[row.target].ingress_lock]


@for_each("row", TRANSITIONS, ids=name)
def test_weights_come_and_go_only_where_somebody_loads_or_frees_them(row: Transition) -> None:
    before, after = STATES[row.source].weights, STATES[row.target].weights
    if before is Weights.NONE and after is not Weights.NONE:
        assert (before, after) == (Weights.NONE, Weights.LOADING)
        assert "source_available" in row.guard.reads
    elif before is Weights.LOADING and after is Weights.RESIDENT:
        assert row.event is ReplicaEvent.LOADED
    elif after is Weights.NONE and before is not Weights.NONE:
        assert row.event is ReplicaEvent.UNLOAD or row.event.trigger is Trigger.FAULT
    else:
        assert before is after


@for_each("row", TRANSITIONS, ids=name)
def test_an_order_that_takes_a_serving_replica_away_looks_at_its_peers(row: Transition) -> None:
    leaves = STATES[row.source].serves and not STATES[row.target].serves
    if leaves and row.event.trigger is Trigger.PLANNER:
        assert "normal_peers" in row.guard.reads
    if STATES[row.source].counts_as != STATES[row.target].counts_as:
        assert row.event.trigger is not Trigger.REPLICA or STATES[row.target].counts_as is CountsAs.NEITHER, (
            "a replica does not change by itself what a planner counts it as"
        )


def reached(start: ReplicaState, events: set[ReplicaEvent]) -> set[ReplicaState]:
    found, open_ = {start}, [start]
    while open_:
        for row in transitions_from(open_.pop()):
            if row.event in events and row.target not in found:
                found.add(row.target)
                open_.append(row.target)
    return found


@for_each("state", ReplicaState)
def test_every_state_has_a_way_from_and_to_inactive(state: ReplicaState) -> None:
    assert state in reached(ReplicaState.INACTIVE, set(ReplicaEvent))
    usual = {event for event in ReplicaEvent if event.trigger is not Trigger.FAULT}
    assert ReplicaState.INACTIVE in reached(state, usual), "no way out but a fault"
    assert any(row.target is not state for row in transitions_from(state) if row.event in usual)


def test_commands_are_what_a_planner_orders() -> None:
    assert list(COMMANDS) == [event for event in ReplicaEvent if event.trigger is Trigger.PLANNER]
    assert {row.event for row in TRANSITIONS} == set(ReplicaEvent), "each event leads somewhere"
    there = {"TransToNewPrefill", "TransToOldPrefill", "TransToDecode", "Deactivate", "TransToPrefill"}
    assert set(COMMANDS.values()) == there | {""}
