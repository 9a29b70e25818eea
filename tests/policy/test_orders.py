"""The orders that carry a decision out: the nine cases, the choice of victims, and that every guard holds."""

from __future__ import annotations

import random

from pdctl.policy.decision import Decision
from pdctl.policy.orders import FleetView, ReplicaOrder, ReplicaView, plan_orders
from pdctl.replica.states import STATES, CountsAs, ReplicaState
from pdctl.replica.transitions import ReplicaEvent, Trigger, advance
from tests.cases import for_each
from tests.replica.fleet import Fleet

E = ReplicaEvent
EVERYTHING = {  # one of each that can be ordered about, three plain ones of each role
    "prefill": (0, 1, 2),
    "decode": (3, 4, 5),
    "shuttingprefill": (6,),
    "shuttingdecode": (7,),
    "shuttingnull": (8, 9),
    "inactive": (10, 11, 12, 13, 14),
}


def decision(prefills: int, decodes: int) -> Decision:
    return Decision("static", prefills, decodes, ())


def view(replicas: dict[str, tuple[int, ...]], **members: object) -> FleetView:
    """Each replica with its number of used blocks, those that are parked with as many seconds."""
    rows = {
        ReplicaState(state): tuple(
            ReplicaView(one, parked_s=one / 100)
            if state == "shuttingnull"
            else ReplicaView(one, one, beside_weights=one % 2 == 1)
            for one in numbers
        )
        for state, numbers in replicas.items()
    }
    return FleetView(rows, **members)  # type: ignore[arg-type]


def planned(prefills: int, decodes: int, seen: FleetView) -> list[tuple[int, str]]:
    return [(one.replica, one.event.value) for one in plan_orders(decision(prefills, decodes), seen)]


NINE = {
    (3, 3): [
        *((7, "cancel drain"), (6, "cancel drain"), (8, "re-use as decode"), (9, "re-use as prefill")),
        *((11, "load decode"), (13, "load prefill")),
    ],
    (3, 0): [(6, "cancel drain"), (8, "re-use as prefill"), (9, "re-use as prefill")],
    (0, 4): [(7, "cancel drain"), (8, "re-use as decode"), (9, "re-use as decode"), (11, "load decode")],
    (4, -1): [(6, "cancel drain"), (8, "re-use as prefill"), (9, "re-use as prefill"), (3, "mutate to prefill")],
    (-1, 4): [(7, "cancel drain"), (8, "re-use as decode"), (9, "re-use as decode"), (0, "mutate to decode")],
    (0, 0): [],
    (0, -1): [(3, "drain")],
    (-1, 0): [(0, "drain")],
    (-1, -1): [(3, "drain"), (0, "drain")],
}


@for_each("case", list(NINE.items()), ids=str)
def test_the_nine_cases(case: tuple[tuple[int, int], list[tuple[int, str]]]) -> None:
    (prefills, decodes), expected = case
    assert planned(prefills, decodes, view(EVERYTHING)) == expected


def test_what_is_parked_too_long_is_unloaded_once_it_is_not_wanted() -> None:
    parked = {"prefill": (0,), "decode": (1,), "shuttingnull": (40, 50)}  # for 0.4 and 0.5 s
    assert planned(0, 0, view(parked)) == [(40, "unload"), (50, "unload")]
    assert planned(1, 0, view(parked)) == [(40, "re-use as prefill"), (50, "unload")]
    assert planned(0, 0, view(parked, park_s=0.45)) == [(50, "unload")]


def test_a_source_is_neither_unloaded_nor_the_first_to_leave() -> None:
    seen = FleetView(
        {
            ReplicaState.SHUTTING_NULL: (ReplicaView(1, parked_s=9, sending=True), ReplicaView(2, parked_s=8)),
            ReplicaState.DECODE: (ReplicaView(3, 1, sending=True), ReplicaView(4, 500), ReplicaView(5, 400)),
        }
    )
    assert planned(0, -1, seen) == [(5, "drain"), (2, "unload")]


def test_idle_decodes_are_parked_at_once_but_for_the_last_and_not_where_decodes_are_scarce() -> None:
    rows = {ReplicaState.DECODE: (ReplicaView(1, 7), *(ReplicaView(one, idle=True) for one in (2, 3, 4)))}
    assert planned(0, -2, FleetView(rows)) == [(2, "park"), (3, "park")]
    assert planned(0, -9, FleetView(rows)) == [(2, "park"), (3, "park"), (4, "park")]
    assert planned(0, -2, FleetView(rows, decode_scarce=True)) == [(2, "drain")]


def test_the_last_of_a_role_stays() -> None:
    assert planned(-1, -1, view({"prefill": (0,), "decode": (1,)})) == []
    assert planned(-1, 1, view({"prefill": (0,), "decode": (1,)})) == []
    assert planned(1, -1, view({"prefill": (0,), "decode": (1,), "inactive": (2,)})) == [(2, "load prefill")]


def test_each_live_load_gets_the_least_loaded_prefill_as_its_old_one() -> None:
    seen = view({"prefill": (3, 1), "decode": (0,), "inactive": (10, 11, 12)}, live=True)
    expected = [(11, "load live"), (1, "pair as old"), (10, "load live"), (3, "pair as old"), (12, "load prefill")]
    assert planned(3, 0, seen) == expected
    assert [event for _, event in planned(0, 2, seen)] == ["load decode"] * 2, "a decode cannot serve without layers"


def test_a_change_of_role_under_way_is_cancelled_before_another_begins() -> None:
    seen = view({"prefill": (0, 1), "decode": (2, 3), "mutatingtoprefill": (4,)})
    assert planned(-1, 1, seen) == [(4, "cancel drain")]
    assert planned(0, 1, seen) == [], "as a prefill it is wanted"


def test_nothing_is_loaded_without_a_source() -> None:
    assert planned(2, 2, view({"prefill": (0,), "decode": (1,), "inactive": (2, 3)}, weights_available=False)) == []


def test_a_failed_replica_is_reset_when_nothing_of_it_is_left() -> None:
    rows = {ReplicaState.FAILED: (ReplicaView(0, idle=True), ReplicaView(1, 5))}
    assert plan_orders(decision(0, 0), FleetView(rows)) == (ReplicaOrder(0, E.RESET),)


def look(fleet: Fleet, live: bool) -> FleetView:
    """The random fleet of tests/replica, as a planner sees it."""
    rows: dict[ReplicaState, list[ReplicaView]] = {}
    for one in fleet.replicas:
        facts = fleet.facts(one)
        empty = not (facts.running_rooms or facts.inbox or facts.unfinished_migrations or facts.parked_batches)
        cleared = facts.lock_held if one.state is ReplicaState.FAILED else not facts.lock_with_sender
        idle = empty and cleared
        seen = ReplicaView(one.name, one.blocks, idle, facts.sending_parameters, one.name % 3 == 0, fleet.rng.random())
        rows.setdefault(one.state, []).append(seen)
    return FleetView(rows, live=live, decode_scarce=fleet.scarce)


def counted(fleet: Fleet, role: CountsAs) -> int:
    return sum(STATES[one.state].counts_as is role for one in fleet.replicas)


@for_each("size", [3, 5, 9])
def test_every_order_is_legal_after_those_before_it_in_any_fleet(size: int) -> None:
    fleet = Fleet(size, random.Random(size))
    given: set[ReplicaEvent] = set()
    for turn in range(6000):
        fleet.step()
        if turn % 4:
            continue
        wanted = {role: fleet.rng.randint(-3, 4) for role in (CountsAs.PREFILL, CountsAs.DECODE)}
        before = {role: counted(fleet, role) for role in wanted}
        orders = plan_orders(decision(*wanted.values()), look(fleet, live=fleet.rng.random() < 0.5))
        for one in orders:
            replica = fleet.replicas[one.replica]
            assert one.event.trigger is Trigger.PLANNER
            advance(replica.state, one.event, fleet.facts(replica))  # raises where it is illegal or refused
            assert fleet.order(one.replica, one.event)
            given.add(one.event)
        for role, delta in wanted.items():
            moved = counted(fleet, role) - before[role]
            assert min(0, delta) <= moved <= max(0, delta), (wanted, orders)
    assert given == {event for event in ReplicaEvent if event.trigger is Trigger.PLANNER}


def test_without_flips_a_replica_leaves_its_role_before_another_takes_its_place() -> None:
    replicas = {"prefill": (0, 1), "decode": (3, 4), "inactive": (10,)}
    assert planned(1, -1, view(replicas)) == [(3, "mutate to prefill")]
    assert planned(1, -1, view(replicas, flips=False)) == [(10, "load prefill"), (3, "drain")]
