"""No module needs a module that needs it: not when it is imported, not when its functions run, not for a type alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Circles of which one side is a type, and that are still there: importer → imported. Each row taken out stays out.
TYPE_CIRCLES: frozenset[tuple[str, str]] = frozenset(
    {
        ("pdctl.engines.base", "pdctl.engines.speech"),
        ("pdctl.engines.sglang.sglang_adapter", "pdctl.engines.speech"),
    }
)


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(node: ast.AST, known: frozenset[str], types: bool) -> Iterator[str]:
    """The modules that `node` imports, late imports in functions included; with `types` those of annotations too."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            if types:
                yield from imported(child, known, types)
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names if alias.name in known)
        elif isinstance(child, ast.ImportFrom):
            for alias in child.names:
                full = f"{child.module}.{alias.name}"
                yield from {full if full in known else str(child.module)} & known
        else:
            yield from imported(child, known, types)


def graph(modules: dict[str, ast.Module], types: bool = False) -> dict[str, set[str]]:
    """Module → the modules it imports."""
    known = frozenset(modules)
    return {name: set(imported(tree, known, types)) - {name} for name, tree in modules.items()}


def parsed(texts: dict[str, str]) -> dict[str, ast.Module]:
    return {name: ast.parse(text) for name, text in texts.items()}


@pytest.fixture(scope="module")
def modules() -> dict[str, ast.Module]:
    return parsed({name_of(path): path.read_text(encoding="utf-8") for path in (ROOT / "pdctl").rglob("*.py")})


def test_there_is_none(modules: dict[str, ast.Module]) -> None:
    found = graph(modules)
    assert sum(map(len, found.values())) > 1000, "the imports were read"
    try:
        TopologicalSorter(found).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_there_is_none_of_types(modules: dict[str, ast.Module]) -> None:
    found = graph(modules, types=True)
    for importer, target in TYPE_CIRCLES:
        assert target in found[importer], f"{importer} no longer imports {target}: take the row out of TYPE_CIRCLES"
        found[importer].discard(target)
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
        TopologicalSorter(graph(parsed({"p": "", "p.a": "from p.b import y", "p.b": late}))).prepare()


def test_a_circle_of_types_is_one() -> None:
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.a import x"
    modules = parsed({"p": "", "p.a": "from p.b import y", "p.b": text})
    TopologicalSorter(graph(modules)).prepare()
    with pytest.raises(CycleError):
        TopologicalSorter(graph(modules, types=True)).prepare()
