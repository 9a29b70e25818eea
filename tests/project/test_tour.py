"""docs/tour.md follows four commands through the tree: each function it names is where it says."""

from __future__ import annotations

import re

from tests.cases import for_each
from tests.project.defined import ROOT, STEP, names

TOUR = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
JOURNEYS = re.split(r"(?m)^## [0-9]+\. ", TOUR)[1:]
MOST = 12  # steps a newcomer follows


@for_each("journey", JOURNEYS, ids=lambda journey: str(journey).partition("\n")[0])
def test_a_journey_is_short_and_names_a_function_at_every_step(journey: str) -> None:
    steps = re.findall(r"(?m)^(\d+)\. (.*)", journey)
    assert [int(number) for number, _ in steps] == list(range(1, len(steps) + 1))
    assert 0 < len(steps) <= MOST
    assert [words for _, words in steps if not STEP.search(words)] == []


def test_there_are_four() -> None:
    verbs = [re.match(r"`pdctl ([\w-]+) ", journey) for journey in JOURNEYS]
    assert [verb and verb[1] for verb in verbs] == ["plan", "launch", "doctor", "trace-room"]


@for_each(("file", "name"), dict.fromkeys(STEP.findall(TOUR)), ids=lambda word: str(word))
def test_every_function_named_is_there(file: str, name: str) -> None:
    path = ROOT / "pdctl" / file
    assert path.is_file(), f"docs/tour.md: there is no pdctl/{file}"
    assert name in names(path), f"docs/tour.md: {file} has no {name}"
