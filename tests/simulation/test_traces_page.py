"""docs/simulate.md has the traces of the code; with PDCTL_UPDATE=1 this test writes their tables."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl.simulation.synthetic import EVERY_TRACE, PARAMETERS, TRACES, wanted
from pdctl.simulation.trace_files import CLOCKS, CSV_FORMATS, JSON_FORMATS, TraceFormat

if TYPE_CHECKING:
    from pdctl.simulation.synthetic import Values

PAGE = Path(__file__).parents[2] / "docs" / "simulate.md"


def settings(values: Values) -> str:
    return ", ".join(f"`{name}={value:g}`" for name, value in values.items())


def synthetic_traces() -> str:
    rows = [f"| `{name}` | {one.meaning} | {settings(one.defaults)} |" for name, one in TRACES.items()]
    return "\n".join(["| trace | is | sets, beside those of every trace |", "|---|---|---|", *rows, ""])


def parameters() -> str:
    rows = []
    for name, known in PARAMETERS.items():
        takers = [f"`{trace}`" for trace, one in TRACES.items() if name in one.defaults]
        who = f"every trace: `{EVERY_TRACE[name]:g}`" if name in EVERY_TRACE else ", ".join(takers)
        rows.append(f"| `{name}` | {known.meaning} | {wanted(known)} | {who} |")
    return "\n".join(["| parameter | is | takes | of |", "|---|---|---|---|", *rows, ""])


def columns(one: TraceFormat) -> str:
    names = (" or ".join(f"`{name}`" for name in one.time), f"`{one.prompt}`", f"`{one.answer}`")
    return ", ".join((*names, *(f"`{name}`" for name in (one.blocks, one.marker) if name)))


def formats() -> str:
    rows = [
        f"| {one.name} | {kind} | {columns(one)} | {CLOCKS[one.clock].wanted} | {one.source} |"
        for kind, known in (("CSV", CSV_FORMATS), ("JSON lines", JSON_FORMATS))
        for one in known
    ]
    return "\n".join(["| format | is | has | time | of |", "|---|---|---|---|---|", *rows, ""])


def test_the_tables_of_traces_are_those_of_the_code() -> None:
    written = page = PAGE.read_text(encoding="utf-8")
    tables = {"synthetic traces": synthetic_traces(), "parameters": parameters(), "formats": formats()}
    for name, table in tables.items():
        begin, end = f"<!-- {name}: begin (tests/simulation/test_traces_page.py) -->\n", f"<!-- {name}: end -->"
        place = f"(?<={re.escape(begin)}).*?(?={re.escape(end)})"
        written, found = re.subn(place, lambda _, table=table: table, written, flags=re.S)
        assert found == 1, f"the page has no place for the table of {name}"
    if os.environ.get("PDCTL_UPDATE"):
        PAGE.write_text(written, encoding="utf-8")
        return
    assert page == written
