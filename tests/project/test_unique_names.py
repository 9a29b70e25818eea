"""One name, one thing: no class name stands for two classes of pdctl, no file name for two files.

A name with two meanings sends whoever looks it up to the wrong place half of the time.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "pdctl"

# Every package may have these: Python gives them their meaning.
PYTHONS_OWN = frozenset({"__init__.py", "__main__.py"})

# A file of cli/ is called as the verb it is, also where the verb's subject has a file of that name.
NAMED_AS_VERB = frozenset(
    {
        "diagnose.py",
        "dialect.py",
        "explain.py",
        "logs.py",
        "plan.py",
        "role_switch.py",
        "rooms.py",
    }
)


def class_names() -> Counter[str]:
    return Counter(
        node.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )


def file_names() -> Counter[str]:
    verbs = PACKAGE / "cli"
    return Counter(
        path.name
        for path in PACKAGE.rglob("*.py")
        if path.name not in PYTHONS_OWN and not (path.parent == verbs and path.name in NAMED_AS_VERB)
    )


def double(names: Counter[str]) -> set[str]:
    return {name for name, count in names.items() if count > 1}


def test_a_class_name_stands_for_one_class() -> None:
    found = class_names()
    assert len(found) > 500, "the classes were read"
    assert not double(found), f"choose a name of its own for each: {sorted(double(found))}"


def test_a_file_name_stands_for_one_file() -> None:
    found = file_names()
    assert len(found) > 200, "the files were found"
    assert not double(found), f"choose a name of its own for each: {sorted(double(found))}"
