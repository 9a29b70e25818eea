from __future__ import annotations

import re
from pathlib import Path

import pytest

import pdctl
from pdctl.engines.versions import NEWEST, SGLANG, Span, parse, resolve, sources, spell
from pdctl.errors import UsageError
from tests.cases import for_each


@for_each("version", SGLANG, ids=spell)
def test_known_releases_answer_for_themselves(version: tuple[int, ...]) -> None:
    release = resolve(spell(version))
    assert (release.known, release.note) == (version, "")


@for_each(
    ("asked", "known"),
    [
        ("v0.5.18", (0, 5, 18)),
        ("0.5.18.post1", (0, 5, 18)),
        ("0.5.10.post1", (0, 5, 10, 1)),
        ("0.5.10-post1", (0, 5, 10, 1)),
        ("0.5.13rc2", (0, 5, 13)),
        (None, NEWEST),
    ],
)
def test_spellings(asked: str | None, known: tuple[int, ...]) -> None:
    assert resolve(asked).known == known


def test_post_releases_stand_in_order() -> None:
    assert list(SGLANG) == sorted(SGLANG)
    assert parse("0.5.10") < parse("0.5.10.post1") < parse("0.5.11")
    assert [spell(parse(text)) for text in ("0.5.10.post1", "v0.5.9rc1")] == ["0.5.10.post1", "0.5.9"]


def test_every_release_names_the_wheel_it_was_read_from() -> None:
    assert len(sources()) >= 37
    for source in sources():
        assert source.wheel.startswith(f"sglang-{source.version}-")
        assert len(source.sha256) == 64


def test_a_release_between_two_uses_the_older_and_says_so() -> None:
    release = resolve("0.5.20.post1")
    assert release.known == (0, 5, 20)
    assert release.note == (
        "sglang 0.5.20.post1 is not among the releases pdctl has read (it lies between 0.5.20 and 0.5.21): "
        "the rules of 0.5.20 are used"
    )


def test_a_newer_release_uses_the_newest_and_says_so() -> None:
    release = resolve("0.6.0")
    assert release.known == NEWEST
    assert release.note.startswith(f"sglang 0.6.0 is newer than the newest release pdctl has read ({spell(NEWEST)})")


@for_each("asked", ["0.5.2", "0.4.9.post6", "0.0.1"])
def test_an_older_release_is_refused(asked: str) -> None:
    with pytest.raises(UsageError, match=r"older than 0\.5\.3") as caught:
        resolve(asked)
    assert spell(NEWEST) in caught.value.fix


@for_each("asked", ["latest", "0.5", "", "0.5.x"])
def test_no_version_at_all(asked: str) -> None:
    with pytest.raises(UsageError, match="is not an sglang version"):
        resolve(asked)


def test_span_ends_before_until() -> None:
    span = Span((0, 5, 8), (0, 5, 18))
    held = [version for version in SGLANG if span.holds(version)]
    assert (held[0], held[-1]) == ((0, 5, 8), (0, 5, 17))


def test_releases_are_named_in_the_dialect_alone() -> None:
    """A comparison with a release elsewhere is a fact about SGLang outside its tables."""
    package = Path(pdctl.__file__).parent
    outside = [path for path in package.rglob("*.py") if package / "engines" not in path.parents]
    assert [str(path) for path in outside if re.search(r"\bV0_\d", path.read_text(encoding="utf-8"))] == []
