"""A million cases for each target that is fast enough, a few thousand for the others: minutes each, so not in CI."""

from __future__ import annotations

import pytest

from tests.fuzz.judge import survive
from tests.fuzz.targets import TARGETS

MILLION, FEW = 1_000_000, 5_000

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(4 * 3600)]


@pytest.mark.parametrize("name", TARGETS)
def test_a_million_cases(name: str) -> None:
    target = TARGETS[name]
    found = survive(target, MILLION if target.cheap else FEW, seed=2026)
    assert not found.broken, found.broken[0]
    assert found.cases in (MILLION, FEW)
