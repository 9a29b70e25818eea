"""A few cases of every target, chosen and shrunk by hypothesis; the same ones in every run (docs/fuzzing.md)."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cases import for_each
from tests.fuzz import edits
from tests.fuzz.edits import Edit
from tests.fuzz.judge import Target, judge
from tests.fuzz.targets import TARGETS

CHEAP = settings(max_examples=40, deadline=None, derandomize=True, database=None)
DEAR = settings(CHEAP, max_examples=12, suppress_health_check=[HealthCheck.too_slow])
EDITS = st.lists(
    st.builds(Edit, st.integers(0, 255), st.integers(0, 1 << 24), st.integers(0, 63), st.integers(0, 1 << 16)),
    max_size=4,
)


def broken(target: Target) -> st.SearchStrategy[bytes]:
    """Real inputs after a few edits, and now and then bytes out of nothing."""
    seeds = target.seeds()
    real = st.builds(lambda seed, done: edits.apply(seed, done, seeds), st.sampled_from(seeds), EDITS)
    return st.one_of(real, real, real, st.binary(max_size=300))


@for_each("name", [name for name, target in TARGETS.items() if target.cheap])
def test_any_bytes(name: str) -> None:
    CHEAP(given(broken(TARGETS[name]))(lambda data: _judge(name, data)))()


@for_each("name", [name for name, target in TARGETS.items() if not target.cheap])
def test_any_bytes_through_much_code(name: str) -> None:
    DEAR(given(broken(TARGETS[name]))(lambda data: _judge(name, data)))()


def _judge(name: str, data: bytes) -> None:
    judge(TARGETS[name], data)


@for_each("name", TARGETS)
def test_what_targets_begin_with_is_read(name: str) -> None:
    """A target whose seeds break, or take no time, tests nothing."""
    target = TARGETS[name]
    seeds = target.seeds()
    assert len(seeds) > 1
    for data in seeds[:: max(1, len(seeds) // 5)]:
        judge(target, data)
