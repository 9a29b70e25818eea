"""One name, one thing: no class name stands for two classes of pdctl, no file name for two files.

A name with two meanings sends whoever looks it up to the wrong place half of the time.
"""

from __future__ import annotations

from collections import Counter

from tests.project.source_files import PACKAGE, package

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
    return Counter(name for source in package().values() for name in source.classes)


def file_names() -> Counter[str]:
    verbs = PACKAGE / "cli"
    return Counter(
        path.name
        for path in package()
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


def test_a_constant_of_a_module_has_one_value() -> None:
    """The second of two would silently change what the first is used for."""
    found = {str(path.relative_to(PACKAGE)): double(Counter(source.assigned)) for path, source in package().items()}
    assert {path: names for path, names in found.items() if names} == {}
