"""What no order of events may break: one end per room and side, no page lost, shared or written late, ranks agree."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.engine.invariants.machine import Pair
from tests.engine.invariants.mutations import FOUND_LATER, FOUND_SOON, Patch

STEPS = 60
EXAMPLES = 20
SLICE = 10_000  # steps under one seed, so that a failure is found again soon
SLICES = max(1, int(os.environ.get("PDCTL_TEST_STEPS", "100000")) // SLICE)
FIRST = int(os.environ.get("PDCTL_TEST_SEED", "1"))


def profile(examples: int, **more: object) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        **more,  # type: ignore[arg-type]
    )


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of rooms fail here on purpose, each with its lines."""
    log = logging.getLogger("pdctl.engine")
    log.disabled = True
    yield
    log.disabled = False


def test_any_order_of_events() -> None:
    """Heavy tests take a hundred times as many steps."""
    run_state_machine_as_test(Pair, settings=profile(EXAMPLES // 2))


@pytest.mark.heavy
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("number", range(FIRST, FIRST + SLICES), ids="seed-{}".format)
def test_a_hundred_thousand_steps(number: int) -> None:
    """PDCTL_TEST_STEPS of them, in slices with seeds from PDCTL_TEST_SEED on."""
    phases = [Phase.generate, Phase.shrink]
    run_state_machine_as_test(seeded(number), settings=profile(SLICE // STEPS, phases=phases, print_blob=True))


def seeded(number: int) -> type[Pair]:
    class Seeded(Pair):
        pass

    return seed(number)(Seeded)


def find(mutation: Patch, patch: pytest.MonkeyPatch, examples: int) -> None:
    """Seed by seed, twenty examples each: releases of hypothesis draw differently from one seed."""
    mutation(patch)

    def look() -> None:
        for number in range(1, 1 + examples // EXAMPLES):
            run_state_machine_as_test(seeded(number), settings=profile(EXAMPLES, phases=[Phase.generate]))

    with pytest.raises((AssertionError, RuntimeError)):
        look()


@pytest.mark.parametrize("mutation", FOUND_SOON, ids=lambda mutation: mutation.__name__)
def test_a_broken_build_is_caught(mutation: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    find(mutation, monkeypatch, 400)


@pytest.mark.heavy
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mutation", FOUND_LATER, ids=lambda mutation: mutation.__name__)
def test_a_build_broken_in_a_rarer_place_is_caught(mutation: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    find(mutation, monkeypatch, 1500)
