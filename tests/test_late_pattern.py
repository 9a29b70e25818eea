"""Patterns that are compiled at their first use: each of the package compiles, and answers as a compiled one."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator

import pytest

from pdctl.late_pattern import compile_late
from tests.project.source_files import PACKAGE, package


def late_patterns() -> Iterator[tuple[str, re.Pattern[str] | re.Pattern[bytes]]]:
    """Every late pattern that is a value of a module, or stands in a tuple of one."""
    kind = type(compile_late(""))
    for path in package():
        if "= compile_late(" not in path.read_text() and "(compile_late(" not in path.read_text():
            continue
        module = importlib.import_module(".".join(("pdctl", *path.relative_to(PACKAGE).with_suffix("").parts)))
        for name, value in vars(module).items():
            for each in _flat(value):
                if isinstance(each, kind):
                    yield f"{module.__name__}.{name}", each  # type: ignore[misc]


def _flat(value: object) -> Iterator[object]:
    if isinstance(value, tuple):
        for each in value:
            yield from _flat(each)
    else:
        yield value


def test_every_pattern_of_the_package_compiles() -> None:
    found = dict(late_patterns())
    assert "pdctl.logs.event._SECOND" in found
    for name, pattern in found.items():
        try:
            assert pattern.groups >= 0
        except re.error as error:
            pytest.fail(f"{name}: {error}")


def test_it_is_compiled_at_its_first_use_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    original = re.compile
    monkeypatch.setattr(re, "compile", lambda *args: compiled.append(args) or original(*args))  # type: ignore[func-returns-value]
    late = compile_late(r"room=(?P<room>\d+)", re.IGNORECASE)
    assert compiled == []
    found = late.search("ROOM=17")
    assert found is not None
    assert found["room"] == "17"
    assert late.fullmatch("room=x") is None
    assert compiled == [(r"room=(?P<room>\d+)", re.IGNORECASE)]


def test_it_answers_as_a_compiled_one() -> None:
    text, late, compiled = b"a1 b22 c333", compile_late(rb"([a-z])(\d+)"), re.compile(rb"([a-z])(\d+)")
    assert late.findall(text) == compiled.findall(text)
    assert [found.span() for found in late.finditer(text, 3)] == [found.span() for found in compiled.finditer(text, 3)]
    assert late.sub(rb"\2", text) == compiled.sub(rb"\2", text)
    assert late.subn(b"", text, 1) == compiled.subn(b"", text, 1)
    assert late.split(text) == compiled.split(text)
    assert late.match(text, 1) is None
    assert (late.pattern, late.flags, late.groups) == (compiled.pattern, compiled.flags, compiled.groups)
    assert dict(late.groupindex) == dict(compiled.groupindex)


def test_a_mistake_in_a_pattern_or_a_method_is_raised() -> None:
    late = compile_late("(")
    with pytest.raises(re.error):
        late.match("x")
    with pytest.raises(AttributeError, match="a pattern has no matches"):
        _ = compile_late("a").matches  # type: ignore[attr-defined]
