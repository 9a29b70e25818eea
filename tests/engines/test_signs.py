"""Rows say what they prove, and whoever reads logs asks for that alone."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import pytest

from pdctl.engines.base import Phase, Row, Sign
from pdctl.engines.row_matching import ROWS, Speech
from tests.cases import for_each

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "dialects.md"
BEGIN, END = "<!-- signs -->\n", "<!-- /signs -->"
IDS = frozenset(row.id for row in ROWS if "-" in row.id)  # `ready` or `times` are words of everybody
READERS = ("trace", "logs", "launch", "doctor", "render", "cli")
CLAIMING = [row for row in ROWS if row.proves or row.reached or row.measures]


def test_every_sign_is_proven_by_some_row_and_asked_for_somewhere() -> None:
    proven = {sign for row in ROWS for sign in row.proves}
    files = [path for room in READERS for path in (ROOT / "pdctl" / room).rglob("*.py")]
    files.append(ROOT / "pdctl" / "engines" / "identify.py")
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    asked = {Sign[name] for name in re.findall(r"\bSign\.([A-Z_]+)\b", text)}
    assert set(Sign) - proven == set(), "no row proves these"
    assert set(Sign) - asked == set(), "nobody asks for these"


@for_each("row", CLAIMING, ids=lambda row: str(row.id))
def test_what_a_row_claims_stands_in_its_line(row: Row) -> None:
    """A sign's meaning names the values that are read with it: its example holds at least one of them."""
    said = Speech((row,)).match(row.example.encode())
    assert said is not None
    assert len(set(row.proves)) == len(row.proves)
    for sign in row.proves:
        read = re.findall(r"`(\w+)`", sign.meaning)
        assert not read or any(name in said.values for name in read), f"{sign.value} is read with {read}"
    if row.measures is not None:
        assert f"(?P<{row.measures.value}>" in row.pattern
    if row.reached is not None:
        assert row.phase in (Phase.FAILED, Phase.TIMED_OUT, Phase.ABORTED), (
            "only the end of a room is reached from a step"
        )


@pytest.mark.parametrize("room", ["trace", "logs"])
def test_no_reader_of_logs_names_a_row(room: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.value}"
        for path in sorted((ROOT / "pdctl" / room).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in IDS
    ]
    assert found == [], "ask for a sign (pdctl/engines/base.py), which the row proves"


@for_each("room", READERS)
def test_no_row_is_told_from_others_by_its_id(room: str) -> None:
    """`row.id` is for showing, counting and keeping apart: it is compared with nothing that is written down."""
    found = []
    for path in sorted((ROOT / "pdctl" / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            asked = isinstance(node, ast.Attribute) and node.attr == "startswith" and _is_id(node.value)
            compared = isinstance(node, ast.Compare) and any(map(_is_id, (node.left, *node.comparators)))
            if asked or (compared and isinstance(node, ast.Compare) and any(map(_written, node.comparators))):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == []


def _is_id(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "id" and ast.unparse(node.value).endswith("row")


def _written(node: ast.AST) -> bool:
    """A constant: in place, or by a name of capitals."""
    named = isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node).rpartition(".")[2].isupper()
    return named or isinstance(node, ast.Constant)


def test_the_page_lists_every_sign() -> None:
    """`PDCTL_UPDATE=1 pytest tests/engines/test_signs.py` writes it anew."""
    table = "| word | what follows from the line |\n|---|---|\n"
    table += "".join(f"| `{sign.value}` | {sign.meaning} |\n" for sign in Sign)
    page = PAGE.read_text(encoding="utf-8")
    head, _, rest = page.partition(BEGIN)
    said = head + BEGIN + table + END + rest.partition(END)[2]
    if os.environ.get("PDCTL_UPDATE"):
        PAGE.write_text(said, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == said
