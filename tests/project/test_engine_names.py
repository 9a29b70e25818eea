"""What is true of one engine, router or release stands in pdctl/engines; elsewhere none is asked for by name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from pdctl.engines.kinds import COMMAND_LINES, EMBEDDED, ENGINES, ROUTERS

PDCTL = Path(__file__).parents[2] / "pdctl"
NAMES = {*ENGINES, *ROUTERS, *(line.kind for line in COMMAND_LINES), "mini_lb", "sglang_router"} - {"pdctl", "dynamo"}
# Not asked for: names of repositories, and the choices of `dialect flags`.
LISTS = {"catalogue/entry.py", "cli/dialect.py"}
OUTSIDE = [path for path in sorted(PDCTL.rglob("*.py")) if path.relative_to(PDCTL).parts[0] != "engines"]


@pytest.fixture(scope="module")
def nodes() -> list[tuple[str, ast.AST]]:
    """Every node these tests ask about, with its file: each file is parsed once."""
    return [
        (str(path.relative_to(PDCTL)), node)
        for path in OUTSIDE
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant | ast.Name | ast.ImportFrom)
    ]


def test_no_engine_or_router_is_asked_for_by_name(nodes: list[tuple[str, ast.AST]]) -> None:
    assert EMBEDDED in NAMES
    assert "sglang-router" in NAMES
    found = [
        f"{file}:{node.lineno}: {node.value!r}"
        for file, node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in NAMES and file not in LISTS
    ]
    assert found == [], "say what is true of it in pdctl/engines/kinds.py, and ask for that"


def test_no_release_is_named_by_its_constant(nodes: list[tuple[str, ast.AST]]) -> None:
    found = [
        f"{file}:{node.lineno}: {node.id}"
        for file, node in nodes
        if isinstance(node, ast.Name) and node.id.startswith("V0_")
    ]
    assert found == [], "put the span into pdctl/engines/sglang/behaviour.py, and ask whether it holds a version"


def test_log_rows_are_imported_by_engines_alone(nodes: list[tuple[str, ast.AST]]) -> None:
    found = [
        f"{file}:{node.lineno}: {node.module}"
        for file, node in nodes
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pdctl.engines.sglang.logs")
    ]
    assert found == [], "ask a line for its signs (pdctl/engines/base.py)"
