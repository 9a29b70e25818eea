"""No module needs a module that needs it: not when it is imported, not when its functions run, not for a type alone."""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.cases import for_each
from tests.project.source_files import PACKAGE, SourceFile, package, read

# Circles of which one side is a type, and that are still there: importer → imported. Each row taken out stays out.
TYPE_CIRCLES: frozenset[tuple[str, str]] = frozenset(
    {
        ("pdctl.engines.base", "pdctl.engines.row_matching"),
        ("pdctl.engines.sglang.sglang_adapter", "pdctl.engines.row_matching"),
    }
)


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(source: SourceFile, known: frozenset[str], types: bool) -> Iterator[str]:
    """The modules that a file imports, late imports in functions included; with `types` those of annotations too."""
    for one in source.imports:
        if types or not one.typed:
            full = f"{one.module}.{one.name}"
            yield from {full if full in known else one.module} & known


def graph(modules: dict[str, SourceFile], types: bool = False) -> dict[str, set[str]]:
    """Module → the modules it imports."""
    known = frozenset(modules)
    return {name: set(imported(source, known, types)) - {name} for name, source in modules.items()}


def parsed(texts: dict[str, str]) -> dict[str, SourceFile]:
    return {name: read(text) for name, text in texts.items()}


@pytest.fixture(scope="module")
def modules() -> dict[str, SourceFile]:
    return {name_of(path): source for path, source in package().items()}


def test_there_is_none(modules: dict[str, SourceFile]) -> None:
    found = graph(modules)
    assert sum(map(len, found.values())) > 1000, "the imports were read"
    try:
        TopologicalSorter(found).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_there_is_none_of_types(modules: dict[str, SourceFile]) -> None:
    found = graph(modules, types=True)
    for importer, target in TYPE_CIRCLES:
        assert target in found[importer], f"{importer} no longer imports {target}: take the row out of TYPE_CIRCLES"
        found[importer].discard(target)
    try:
        TopologicalSorter(found).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


@for_each(
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
