"""pdctl's NamedTuple beside typing's, and a pattern compiled late beside one compiled at once: both do the same."""

from __future__ import annotations

import copy
import importlib
import pickle
import re
import typing
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from pdctl.quick_definitions import NamedTuple, compile_late
from tests.cases import for_each
from tests.project.source_files import PACKAGE, package


class Ours(NamedTuple):
    """A port."""

    name: str
    number: int | None = None
    words: tuple[str, ...] = ()

    @property
    def told(self) -> str:
        return f"{self.name}:{self.number}"


class Theirs(typing.NamedTuple):
    """A port."""

    name: str
    number: int | None = None
    words: tuple[str, ...] = ()

    @property
    def told(self) -> str:
        return f"{self.name}:{self.number}"


class Nothing(NamedTuple):
    pass


class Wide(NamedTuple):
    a: int
    b: int
    c: int
    d: int
    e: int
    f: int
    g: int = 7


class SameFields(NamedTuple):
    name: str
    number: int = 5
    words: tuple[str, ...] = ("x",)


QUESTIONS: dict[str, Callable[[type[Ours] | type[Theirs]], object]] = {
    "by position": lambda kind: tuple(kind("http", 30000, ("a",))),
    "by name": lambda kind: tuple(kind(words=("a",), name="http")),
    "attributes": lambda kind: (kind("http", 1).name, kind("http", 1).number, kind("http").words),
    "property": lambda kind: kind("http", 1).told,
    "text": lambda kind: repr(kind("a'b", None)).replace(kind.__name__, ""),
    "fields": lambda kind: (kind._fields, kind.__match_args__),
    "as a dictionary": lambda kind: list(kind("http", 1)._asdict().items()),
    "another value": lambda kind: tuple(kind("http", 1)._replace(number=2)),
    "from values": lambda kind: tuple(kind._make(["http", 1, ()])),
    "equal": lambda kind: (kind("a") == kind("a"), kind("a") == ("a", None, ()), kind("a") < kind("b")),
    "hashed": lambda kind: hash(kind("a")),
    "a tuple": lambda kind: isinstance(kind("a"), tuple),
    "docstring": lambda kind: (kind.__doc__, kind.__module__, kind.__slots__),
    "unpacked": lambda kind: (lambda name, number, words: (words, number, name))(*kind("a")),
    "pickled": lambda kind: (again := pickle.loads(pickle.dumps(kind("a", 2)))) == kind("a", 2) and type(again) is kind,
    "copied": lambda kind: type(copy.deepcopy(kind("a", words=("b",)))) is kind,
    "annotations": lambda kind: typing.get_type_hints(kind),
}  # fmt: skip


@for_each("question", [*QUESTIONS], ids=str)
def test_it_answers_as_that_of_typing(question: str) -> None:
    assert QUESTIONS[question](Ours) == QUESTIONS[question](Theirs)


MISTAKES: dict[str, Callable[[type[Ours] | type[Theirs]], object]] = {
    "a value is missing": lambda kind: kind(),  # type: ignore[call-arg]
    "a name is unknown": lambda kind: kind("a", port=1),  # type: ignore[call-arg]
    "a value is given twice": lambda kind: kind("a", name="b"),  # type: ignore[misc]
    "a value too many": lambda kind: kind("a", 1, (), 2),  # type: ignore[call-arg]
    "too few values to make one of": lambda kind: kind._make(["a"]),
    "an attribute is set": lambda kind: setattr(kind("a"), "name", "b"),
    "an unknown attribute is set": lambda kind: setattr(kind("a"), "port", 1),
}


@for_each("mistake", [*MISTAKES], ids=str)
def test_it_refuses_what_that_of_typing_refuses(mistake: str) -> None:
    errors = []
    for kind in (Ours, Theirs):
        with pytest.raises((TypeError, AttributeError)) as raised:
            MISTAKES[mistake](kind)
        errors.append(raised)
    assert errors[0].type is errors[1].type


def test_an_error_names_the_class_and_the_field() -> None:
    with pytest.raises(TypeError, match=r"^Ours\.__new__\(\) missing 1 required positional argument: 'name'$"):
        partial(Ours)()
    with pytest.raises(TypeError, match=r"^Ours has 3 fields, got 1 values$"):
        Ours._make(["a"])
    with pytest.raises(TypeError, match=r"^Ours has no field port$"):
        Ours("a")._replace(port=1)  # type: ignore[call-arg]


def test_classes_of_as_many_fields_keep_their_own_names_and_defaults() -> None:
    assert SameFields("a").number == 5
    assert Ours("a").number is None
    assert Nothing() == ()
    assert Wide(1, 2, 3, 4, 5, f=6) == (1, 2, 3, 4, 5, 6, 7)


def test_a_field_without_a_default_behind_one_with_a_default_is_refused() -> None:
    with pytest.raises(TypeError, match="a field without a default follows one that has one"):
        type(NamedTuple)("Mixed", (NamedTuple,), {"__annotations__": {"a": "int", "b": "int"}, "a": 1})


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
