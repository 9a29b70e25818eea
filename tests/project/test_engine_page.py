"""docs/engine.md names a function for every step: each of them exists where the page says."""

from __future__ import annotations

import re

from tests.cases import for_each
from tests.project.defined import ROOT, STEP, names

PAGE = ROOT / "docs" / "engine.md"


def steps() -> list[tuple[str, str]]:
    return list(dict.fromkeys(STEP.findall(PAGE.read_text(encoding="utf-8"))))


def pages() -> list[str]:
    """Each mechanism: its title, a diagram with numbered steps, and below it what does each of them."""
    return re.split(r"(?m)^## [0-9]+\. ", PAGE.read_text(encoding="utf-8"))[1:]


def test_the_page_names_many() -> None:
    assert len(steps()) > 80
    assert len(pages()) > 12


@for_each("page", pages(), ids=lambda page: page.partition("\n")[0])
def test_every_numbered_step_stands_in_the_diagram_and_names_its_function(page: str) -> None:
    diagrams = "\n".join(re.findall(r"(?ms)^```\n(.*?)^```", page))
    items = re.findall(r"(?m)^ ?(\d+)\. (.*(?:\n    ? ?\S.*)*)", page)
    assert [int(number) for number, _ in items] == list(range(1, len(items) + 1))
    assert items
    for number, words in items:
        assert STEP.search(words), f"step {number} names no function: {words}"
        assert re.search(rf"(?<![\w.-]){number}(?![\w.])", diagrams), f"step {number} is not in the diagram"
    assert max(map(len, diagrams.splitlines())) <= 100


@for_each(("file", "name"), steps(), ids=lambda word: word)
def test_every_function_named_is_there(file: str, name: str) -> None:
    homes = [base / file for base in (ROOT / "pdctl" / "engine", ROOT / "pdctl") if (base / file).is_file()]
    assert homes, f"docs/engine.md: there is no pdctl/engine/{file}"
    assert name in names(homes[0]), f"docs/engine.md: {file} has no {name}"
