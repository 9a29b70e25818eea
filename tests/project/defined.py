"""What a file of the package defines, and where a page of the docs names it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# `scheduler/loop.py Scheduler.run`
STEP = re.compile(r"`([a-z_]+(?:/[a-z_]+)*\.py) ([A-Za-z_][A-Za-z_0-9.]*)`")


@cache
def names(path: Path) -> frozenset[str]:
    found: set[str] = set()

    def walk(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    walk(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(prefix + node.target.id)
            elif isinstance(node, ast.Assign):
                found.update(prefix + target.id for target in node.targets if isinstance(target, ast.Name))

    walk(ast.parse(path.read_text(encoding="utf-8")).body, "")
    return frozenset(found)
