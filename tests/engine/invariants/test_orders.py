"""Orders of events that hypothesis needs long to come upon: no build breaks on them but those they are there for."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.engine.invariants.instance import Size
from tests.engine.invariants.mutations import (
    Patch,
    abort_is_acknowledged_too_early,
    decode_frees_without_waiting,
    prefill_frees_without_waiting,
)
from tests.engine.invariants.net import simulated
from tests.engine.invariants.transport import LateWriteError
from tests.engine.invariants.world import Shape, World

ROUNDS = 6  # of everybody's turn: an abort has gone to the other side by then, and its answer has come back


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    log = logging.getLogger("pdctl.engine")
    log.disabled = True
    yield
    log.disabled = False


def abort_while_its_pages_are_written(side: str) -> None:
    """`side` gives a request up while a write into its pages is under way; the write lands when both have heard."""
    world = World(Shape((Size("prefill", 1, cached=False),), (Size("decode", 1, cached=False),)))
    with simulated(world.net):
        world.start()
        world.submit(world.prefills[0], world.decodes[0], list(range(5, 25)), 4)
        while not world.fabric.writes:
            world.settle(1)
        (write,) = world.fabric.writes
        write.stuck = True
        (given_up,) = [one for one in world.open if one.where.size.role == side]
        world.abort(given_up)
        for _ in range(ROUNDS):
            world.settle(1)
        assert world.fabric.writes == [write], "it is still under way"
        world.fabric.land(write)
        world.finish()
        world.serves()
        world.close()


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_a_write_of_a_request_that_was_given_up_lands_in_its_own_pages(side: str) -> None:
    abort_while_its_pages_are_written(side)


@pytest.mark.parametrize(
    ("side", "mutation"),
    [
        ("decode", abort_is_acknowledged_too_early),
        ("decode", decode_frees_without_waiting),
        ("prefill", prefill_frees_without_waiting),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_broken_build_is_caught_by_it(side: str, mutation: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation(monkeypatch)
    with pytest.raises(LateWriteError):
        abort_while_its_pages_are_written(side)
