"""No module needs at run time a module that needs it: not when it is imported, and not when its functions run.

Names in annotations alone do not count: objects that work for each other may name each other's types.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(node: ast.AST, known: frozenset[str]) -> Iterator[str]:
    """The modules that `node` imports when it runs, late imports in functions included."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names if alias.name in known)
        elif isinstance(child, ast.ImportFrom):
            for alias in child.names:
                full = f"{child.module}.{alias.name}"
                yield from {full if full in known else str(child.module)} & known
        else:
            yield from imported(child, known)


def graph(sources: dict[str, str]) -> dict[str, set[str]]:
    """Module → the modules it imports; `sources`: module → its text."""
    known = frozenset(sources)
    return {name: set(imported(ast.parse(text), known)) - {name} for name, text in sources.items()}


def test_there_is_none() -> None:
    sources = {name_of(path): path.read_text(encoding="utf-8") for path in (ROOT / "pdctl").rglob("*.py")}
    found = graph(sources)
    assert sum(map(len, found.values())) > 1000, "the imports were read"
    try:
        TopologicalSorter(found).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


@pytest.mark.parametrize(
    "late",
    ["from p import a", "import p.a", "def f():\n    from p.a import x", "try:\n    import p.a\nfinally:\n    pass"],
)
def test_a_circle_is_found_however_it_is_written(late: str) -> None:
    with pytest.raises(CycleError):
        TopologicalSorter(graph({"p": "", "p.a": "from p.b import y", "p.b": late})).prepare()


def test_annotations_make_none() -> None:
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.a import x"
    TopologicalSorter(graph({"p": "", "p.a": "from p.b import y", "p.b": text})).prepare()
