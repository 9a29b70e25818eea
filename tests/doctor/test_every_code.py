"""Every code of the catalogue that can be seen: facts that raise it, facts that do not, a page, a text."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

from pdctl.catalogue.book import ENTRIES, entry
from pdctl.doctor.check import Facts, Skipped, Unknown
from pdctl.doctor.check_run import CHECKS
from pdctl.render.explain import anchor
from tests.cases import for_each
from tests.doctor import fixtures

PAGE = Path(__file__).resolve().parents[2] / "docs" / "codes.md"


def modules() -> list[ModuleType]:
    names = [each.name for each in pkgutil.iter_modules(fixtures.__path__)]
    found = [importlib.import_module(f"{fixtures.__name__}.{name}") for name in names]
    return [module for module in found if hasattr(module, "FIXTURES")]


CASES = [(code, module) for module in modules() for code in module.FIXTURES]
SEEN = [each for each in ENTRIES if not each.unseen]


def codes(case: object, module: ModuleType) -> set[str]:
    """What a case comes to: the module's own judgement, or that of every check whose facts were asked for."""
    if hasattr(module, "codes"):
        return set(module.codes(case))
    assert isinstance(case, Facts)
    found: set[str] = set()
    for check in CHECKS:
        verdict = check.judge(case) if set(check.needs) <= set(case.asked) else Skipped("not asked for")
        if not isinstance(verdict, (Skipped, Unknown)):
            found |= {finding.code for finding in verdict}
    return found


@for_each(("code", "module"), CASES, ids=[f"{code}-{module.__name__.rpartition('.')[2]}" for code, module in CASES])
def test_one_case_raises_the_code_and_one_does_not(code: str, module: ModuleType) -> None:
    raising, clean = module.FIXTURES[code]
    assert code in codes(raising(), module)
    assert code not in codes(clean(), module)


def test_every_code_that_can_be_seen_has_its_cases() -> None:
    missing = {each.code for each in SEEN} - {code for code, _ in CASES}
    assert not missing, f"no fixture for {sorted(missing)}"


@for_each("code", [each.code for each in ENTRIES])
def test_every_code_has_a_page_and_a_text(code: str) -> None:
    said = entry(code)
    assert f"### {said.code} {said.slug}\n" in PAGE.read_text(encoding="utf-8")
    assert f"(#{anchor(said)})" in PAGE.read_text(encoding="utf-8")
    assert len(said.explain.split()) >= 30
    assert " Next: " in said.explain
