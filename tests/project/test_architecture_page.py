"""docs/architecture.md, "Where is …?": every file it names is there, and holds the name behind it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
NAMED = re.compile(r"`([\w/]+\.py)(?: (\w+))?`")


def test_every_answer_of_where_is_names_a_file_that_is_there() -> None:
    table = PAGE.read_text(encoding="utf-8").split("## Where is …?")[1].split("\n## ")[0]
    named = NAMED.findall(table)
    assert len(named) > 20
    for path, name in named:
        found = [*(ROOT / "pdctl").glob(f"**/{path}")]
        assert found, path
        assert not name or any(re.search(rf"\b{name}\b", each.read_text(encoding="utf-8")) for each in found), name
