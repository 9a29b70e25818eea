"""What stands for many tests fails like each of them."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from tests import cases
from tests.cases import for_each


@pytest.fixture(autouse=True)
def together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "SEPARATE", False)


def test_every_case_is_tried_and_each_that_fails_is_named() -> None:
    tried = []

    @for_each(("left", "right"), [(1, 2), pytest.param(2, 2, id="same"), (4, 3), (6, 5)])
    @for_each("what", ["a", "b"], ids=str.upper)
    def less(left: int, right: int, what: str) -> None:
        tried.append((left, right, what))
        if right == 5:
            raise KeyError(what)
        assert left < right, what

    with pytest.raises(AssertionError) as caught:
        less()
    said = str(caught.value)
    assert len(tried) == 8, "a failure ends its own case alone"
    assert said.startswith("3 of 4 cases failed\n"), said
    for name in ("[1: same]", "[2: 4-3]", "[3: 6-5]", "[0: A] AssertionError: a", "[1: B] KeyError: 'b'"):
        assert name in said, name
    assert "1-2" not in said, "a case that passed is not named"


def test_what_passes_passes_with_its_fixtures(tmp_path: Path) -> None:
    @for_each("value", [1, 2])
    def writes(value: int, tmp_path: Path) -> None:
        (tmp_path / str(value)).touch()

    assert list(inspect.signature(writes).parameters) == ["tmp_path"], "pytest gives the fixtures alone"
    writes(tmp_path=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]


def test_no_case_is_a_failure_and_a_wrong_name_an_error() -> None:
    with pytest.raises(AssertionError, match="there is no case"):
        for_each("value", [])(lambda value: None)()
    with pytest.raises(AssertionError, match="does not take other"):
        for_each("other", [1])(lambda value: None)
    with pytest.raises(AssertionError, match="case 0 has 1 values for left, right"):
        for_each("left, right", [(1,)])(lambda left, right: None)


def test_cases_with_marks_and_asked_for_alone_are_tests_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def one(value: int) -> None: ...

    skipped = pytest.param(1, marks=pytest.mark.skip)
    assert for_each("value", [skipped, 2])(one).pytestmark[0].name == "parametrize"  # type: ignore[attr-defined]
    monkeypatch.setattr(cases, "SEPARATE", True)
    assert for_each("value", [1, 2])(one).pytestmark[-1].name == "parametrize"  # type: ignore[attr-defined]
