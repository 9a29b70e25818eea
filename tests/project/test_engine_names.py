"""What is true of one engine, router or release stands in pdctl/engines; elsewhere none is asked for by name."""

from __future__ import annotations

import ast
from pathlib import Path

from pdctl.engines.kinds import COMMAND_LINES, EMBEDDED, ENGINES, ROUTERS

PDCTL = Path(__file__).parents[2] / "pdctl"
NAMES = {*ENGINES, *ROUTERS, *(line.kind for line in COMMAND_LINES), "mini_lb", "sglang_router"} - {"pdctl", "dynamo"}
# Not asked for: names of repositories, and the choices of `dialect flags`.
LISTS = {"catalogue/entry.py", "cli/dialect.py"}
OUTSIDE = [path for path in sorted(PDCTL.rglob("*.py")) if path.relative_to(PDCTL).parts[0] != "engines"]


def test_no_engine_or_router_is_asked_for_by_name() -> None:
    assert EMBEDDED in NAMES
    assert "sglang-router" in NAMES
    found = [
        f"{path.relative_to(PDCTL)}:{node.lineno}: {node.value!r}"
        for path in OUTSIDE
        if str(path.relative_to(PDCTL)) not in LISTS
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in NAMES
    ]
    assert found == [], "say what is true of it in pdctl/engines/kinds.py, and ask for that"


def test_no_release_is_named_by_its_constant() -> None:
    found = [
        f"{path.relative_to(PDCTL)}:{node.lineno}: {node.id}"
        for path in OUTSIDE
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Name) and node.id.startswith("V0_")
    ]
    assert found == [], "put the span into pdctl/engines/sglang/behaviour.py, and ask whether it holds a version"


def test_log_rows_are_imported_by_engines_alone() -> None:
    found = [
        f"{path.relative_to(PDCTL)}:{node.lineno}: {node.module}"
        for path in OUTSIDE
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pdctl.engines.sglang.logs")
    ]
    assert found == [], "ask a line for its signs (pdctl/engines/sign.py)"
