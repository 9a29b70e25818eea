"""What is true of one engine, router or release stands in pdctl/engines; elsewhere none is asked for by name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from pdctl.engines.kinds import COMMAND_LINES, EMBEDDED, ENGINES, ROUTERS
from tests.project.source_files import PACKAGE, package

NAMES = {*ENGINES, *ROUTERS, *(line.kind for line in COMMAND_LINES), "mini_lb", "sglang_router"} - {"pdctl", "dynamo"}
# Not asked for: names of repositories, and the choices of `dialect flags`.
LISTS = {"catalogue/entry.py", "cli/dialect.py"}
# What is parsed: files where a string may be one of the names, or a name a release's constant.
QUOTED = re.compile(rf"[\"'}}](?:{'|'.join(map(re.escape, NAMES))})[\"'{{]|\bV0_")


@pytest.fixture(scope="module")
def outside() -> list[Path]:
    return [path for path in package() if path.relative_to(PACKAGE).parts[0] != "engines"]


@pytest.fixture(scope="module")
def nodes(outside: list[Path]) -> list[tuple[str, ast.AST]]:
    """Every string and name of these files, with its file."""
    texts = {str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8") for path in outside}
    return [
        (file, node)
        for file, text in texts.items()
        if QUOTED.search(text)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant | ast.Name)
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


def test_log_rows_are_imported_by_engines_alone(outside: list[Path]) -> None:
    found = [
        f"{path.relative_to(PACKAGE)}: {one.module}"
        for path in outside
        for one in package()[path].imports
        if one.module.startswith("pdctl.engines.sglang.logs")
    ]
    assert found == [], "ask a line for its signs (pdctl/engines/base.py)"
