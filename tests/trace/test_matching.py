from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from pdctl.trace.joins import Assignments


def possible(rooms: dict[int, list[int]]) -> dict[int, frozenset[int]]:
    assignments = Assignments(rooms)
    return {room: assignments.choices(room) for room in rooms}


def test_one_room_keeps_all_its_choices() -> None:
    assert possible({1: [10, 11]}) == {1: frozenset({10, 11})}


def test_a_room_with_one_choice_takes_it_from_the_others() -> None:
    assert possible({1: [10], 2: [10, 11]}) == {1: frozenset({10}), 2: frozenset({11})}


def test_a_chain_of_forced_choices() -> None:
    assert possible({3: [11, 12], 2: [10, 11], 1: [10]}) == {1: frozenset({10}), 2: frozenset({11}), 3: frozenset({12})}


def test_a_group_that_cannot_be_served_knows_nothing_and_others_are_not_hurt() -> None:
    assert possible({1: [10], 2: [10], 3: [12]}) == {1: frozenset(), 2: frozenset(), 3: frozenset({12})}


def test_a_room_without_any_choice() -> None:
    assert possible({1: [], 2: [5]}) == {1: frozenset(), 2: frozenset({5})}


def test_a_long_chain_needs_no_deep_stack() -> None:
    rooms = {at: [at, at + 1] for at in reversed(range(3000))} | {3000: [3000]}
    assert Assignments(rooms).choices(0) == frozenset({0})


@given(st.dictionaries(st.integers(0, 5), st.lists(st.integers(0, 5), unique=True, max_size=4), max_size=5))
def test_agrees_with_trying_every_assignment(rooms: dict[int, list[int]]) -> None:
    found = possible(rooms)
    names = list(rooms)
    whole = [choice for choice in product(*(rooms[name] for name in names)) if len(set(choice)) == len(choice)]
    for at, name in enumerate(names):
        if whole:
            assert found[name] == {choice[at] for choice in whole}
        else:
            assert found[name] == frozenset() or set(found[name]) <= set(rooms[name])
