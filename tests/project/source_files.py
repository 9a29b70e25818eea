"""What the source files of the package import and define: each is parsed once for all tests of this folder."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).resolve().parents[2] / "pdctl"


class Import(NamedTuple):
    """`import module`, or `from module import name`; `typed`: under TYPE_CHECKING, for annotations alone."""

    module: str
    name: str
    typed: bool
    level: int  # dots of a relative import


class SourceFile(NamedTuple):
    imports: tuple[Import, ...]
    classes: tuple[str, ...]
    assigned: tuple[str, ...]  # in the body of the module, each as often as it is


def statements(node: ast.AST, typed: bool = False) -> Iterator[tuple[ast.stmt, bool]]:
    """Every statement below, those inside functions included, and whether it stands under TYPE_CHECKING."""
    for value in vars(node).values():
        for child in value if isinstance(value, list) else ():
            if isinstance(child, ast.stmt):
                yield child, typed
            if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
                under = isinstance(child, ast.If) and isinstance(child.test, ast.Name)
                yield from statements(child, typed or (under and child.test.id == "TYPE_CHECKING"))


def read(text: str) -> SourceFile:
    imports, classes = [], []
    tree = ast.parse(text)
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    assigned = [
        name.id
        for target in targets
        for name in ast.walk(target)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
    ]
    for node, typed in statements(tree):
        if isinstance(node, ast.ClassDef):
            classes.append(node.name)
        elif isinstance(node, ast.Import):
            imports += [Import(alias.name, "", typed, 0) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imports += [Import(node.module or "", alias.name, typed, node.level) for alias in node.names]
    return SourceFile(tuple(imports), tuple(classes), tuple(assigned))


@cache
def package() -> dict[Path, SourceFile]:
    return {path: read(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
