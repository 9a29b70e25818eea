"""pdctl's NamedTuple beside typing's: what one does, the other does."""

from __future__ import annotations

import copy
import pickle
import typing
from collections.abc import Callable
from functools import partial

import pytest

from pdctl.named_tuple import NamedTuple
from tests.cases import for_each


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
