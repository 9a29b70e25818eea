"""docs/simulate.md has the tables of the code. Rewrite: `PDCTL_UPDATE=1 pytest -n0 tests/simulation/test_page.py`."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from pdctl.json_records import REQUIRED, figures
from pdctl.layout.cost_profile import CostProfile
from pdctl.simulation.statistics import FIGURES

PAGE = Path(__file__).parents[2] / "docs" / "simulate.md"


def profile() -> str:
    text = "| figure | is | takes | if left out |\n|---|---|---|---|\n"
    known = figures(CostProfile)
    for one in dataclasses.fields(CostProfile):
        default = "required" if one.default is REQUIRED else f"{one.default:,}"
        text += f"| `{one.name}` | {known[one.name].meaning} | {known[one.name].wanted} | {default} |\n"
    return text


def document() -> str:
    rows = "".join(f"| `{one.name}` | {one.meaning} |\n" for one in FIGURES)
    return f"| figure | is |\n|---|---|\n{rows}"


def test_the_tables_are_those_of_the_code() -> None:
    written = page = PAGE.read_text(encoding="utf-8")
    tables = (("profile", profile()), ("figures", document()))
    for name, table in tables:
        head, tail = f"<!-- {name}: begin (tests/simulation/test_page.py) -->\n", f"<!-- {name}: end -->"
        assert page.count(head) == page.count(tail) == 1
        before, rest = written.split(head)
        written = f"{before}{head}{table}{tail}{rest.partition(tail)[2]}"
    if os.environ.get("PDCTL_UPDATE"):
        PAGE.write_text(written, encoding="utf-8")
        return
    assert page == written
