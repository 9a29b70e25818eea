"""docs/autoscale.md has the tables of the code. Rewrite them: `PDCTL_UPDATE=1 pytest -n0 tests/policy/test_page.py`."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path

from pdctl.json_records import REQUIRED, figures
from pdctl.policy import POLICIES
from pdctl.policy.constraints import Limits
from pdctl.policy.observation import Arrival, MeasuredTraffic, Observation, QueueDepths, ReplicaLoad

PAGE = Path(__file__).parents[2] / "docs" / "autoscale.md"


def rows(of: type, before: str = "") -> str:
    known = figures(of)
    return "".join(
        f"| `{before}{one.name}` | {known[one.name].meaning} | {known[one.name].wanted} | {default(one.default)} |\n"
        for one in dataclasses.fields(of)
        if one.name in known
    )


def default(value: object) -> str:
    if value is REQUIRED:
        return "required"
    if value is None or value == () or dataclasses.is_dataclass(value):
        return "–"
    return f"`{json.dumps(value)}`"


def members() -> str:
    nested = (("measured.", MeasuredTraffic), ("replicas[].", ReplicaLoad), ("replicas[].queues.", QueueDepths))
    text = "| member | is | takes | if left out |\n|---|---|---|---|\n" + rows(Observation)
    text += "".join(rows(of, before) for before, of in nested)
    return text + rows(Arrival, "arrivals_ahead[].")


def policies() -> str:
    text = "| policy | setting | is | default |\n|---|---|---|---|\n"
    for name, policy in POLICIES.items():
        text += f"| `{name.value}` | | **{policy.meaning}** | |\n"
        known = figures(policy.settings)
        for one in dataclasses.fields(policy.settings):
            place = f"bounds.{one.name}" if name.value == "blitz" else one.name
            text += f"| | `{place}` | {known[one.name].meaning} | {default(one.default)} |\n"
    return text


def limits() -> str:
    return "| member | is | takes | if left out |\n|---|---|---|---|\n" + rows(Limits)


def test_the_tables_are_those_of_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    written = page
    for name, table in (("members", members()), ("policies", policies()), ("limits", limits())):
        begin, end = f"<!-- {name}: begin (tests/policy/test_page.py) -->\n", f"<!-- {name}: end -->"
        written, found = re.subn(
            f"{re.escape(begin)}.*?{re.escape(end)}",
            lambda _, t=table, b=begin, e=end: f"{b}{t}{e}",
            written,
            flags=re.S,
        )
        assert found == 1, f"the page has no place for the table of {name}"
    if os.environ.get("PDCTL_UPDATE"):
        PAGE.write_text(written, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == written
