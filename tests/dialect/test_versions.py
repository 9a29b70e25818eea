from __future__ import annotations

import pytest

from pdctl.dialect.versions import NEWEST, SGLANG, Span, resolve, spell
from pdctl.errors import UsageError


@pytest.mark.parametrize("version", SGLANG, ids=spell)
def test_known_releases_answer_for_themselves(version: tuple[int, int, int]) -> None:
    release = resolve(spell(version))
    assert (release.known, release.note) == (version, "")


@pytest.mark.parametrize(
    ("asked", "known"),
    [("v0.5.18", (0, 5, 18)), ("0.5.18.post1", (0, 5, 18)), ("0.5.13rc2", (0, 5, 13)), (None, NEWEST)],
)
def test_spellings(asked: str | None, known: tuple[int, int, int]) -> None:
    assert resolve(asked).known == known


def test_a_release_between_two_uses_the_older_and_says_so() -> None:
    release = resolve("0.5.20")
    assert release.known == (0, 5, 18)
    assert release.note == "sglang 0.5.20 is between two releases pdctl knows: the rules of 0.5.18 are used"


def test_a_newer_release_uses_the_newest_and_says_so() -> None:
    release = resolve("0.6.0")
    assert release.known == NEWEST
    assert "newer than any release" in release.note


@pytest.mark.parametrize("asked", ["0.5.2", "0.4.9.post6", "0.0.1"])
def test_an_older_release_is_refused(asked: str) -> None:
    with pytest.raises(UsageError, match=r"older than 0\.5\.3") as caught:
        resolve(asked)
    assert "0.5.23" in caught.value.fix


@pytest.mark.parametrize("asked", ["latest", "0.5", "", "0.5.x"])
def test_no_version_at_all(asked: str) -> None:
    with pytest.raises(UsageError, match="is not an sglang version"):
        resolve(asked)


def test_span_ends_before_until() -> None:
    span = Span((0, 5, 8), (0, 5, 18))
    assert [span.holds(version) for version in SGLANG] == [False, True, True, False, False]
