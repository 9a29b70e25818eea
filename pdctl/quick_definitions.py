"""Named tuples and regular expressions that cost next to nothing to define: a command defines hundreds at each start.

`typing.NamedTuple` compiles each annotation and evaluates each constructor, and makes five functions anew for every
class. Here annotations stay text, methods are inherited, and all constructors of as many fields share one code.

Compiling a pattern takes as long as matching a thousand lines, and one question meets a few of the three hundred that
a command loads. Here each is compiled when it is first used.
"""

from __future__ import annotations

import re
from collections import _tuplegetter  # type: ignore[attr-defined] # what reads a field of collections.namedtuple
from functools import lru_cache
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, AnyStr, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class _Values(tuple[Any, ...]):
    __slots__ = ()
    _fields = tuple[str, ...]()  # without an annotation, which would look like a field

    @classmethod
    def _make(cls, values: Iterable[object]) -> _Values:
        made = tuple.__new__(cls, values)
        if len(made) != len(cls._fields):
            raise TypeError(f"{cls.__name__} has {len(cls._fields)} fields, got {len(made)} values")
        return made

    def _replace(self, /, **values: object) -> _Values:
        made = tuple.__new__(type(self), map(values.pop, self._fields, self))
        if values:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(values)}")
        return made

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))

    def __repr__(self) -> str:
        pairs = zip(self._fields, self, strict=True)
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in pairs)})"

    def __getnewargs__(self) -> tuple[Any, ...]:  # for copy and pickle
        return tuple(self)


class _Definition(type):
    """What `class Name(NamedTuple)` calls: makes a subclass of `_Values` whose fields are the annotated names."""

    def __new__(cls, name: str, bases: tuple[type, ...], members: dict[str, Any]) -> type:
        fields = tuple(members.get("__annotations__", ()))
        defaults = tuple(members[field] for field in fields if field in members)
        without = len(fields) - len(defaults)
        if any(field in members for field in fields[:without]):
            raise TypeError(f"{name}: a field without a default follows one that has one")
        code = _constructor(len(fields)).replace(co_varnames=("_cls", *fields))
        new = FunctionType(code, _GLOBALS, "__new__", defaults or None)
        new.__qualname__ = f"{name}.__new__"  # errors name it
        members.update(zip(fields, map(_getter, range(len(fields))), strict=True))
        members |= {"__slots__": (), "__new__": new, "_fields": fields, "__match_args__": fields}
        return type.__new__(type, name, (_Values,), members)


_GLOBALS = {"_new": tuple.__new__, "__builtins__": {}}


@lru_cache
def _getter(at: int) -> object:
    return _tuplegetter(at, f"Alias for field number {at}")


@lru_cache
def _constructor(count: int) -> CodeType:
    values = "".join(f"_{at}, " for at in range(count))
    made: FunctionType = eval(f"lambda _cls, {values}: _new(_cls, ({values}))")
    return made.__code__


if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple  # noqa: TID251
else:
    NamedTuple = type.__new__(_Definition, "NamedTuple", (), {})


_MEMBERS = frozenset(
    {"match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"}
    | {"pattern", "flags", "groups", "groupindex"}
)


class _LatePattern:
    def __init__(self, compiled: Callable[[], object]) -> None:
        self._compiled = compiled

    def __getattr__(self, name: str) -> object:
        """Compile, and keep the compiled pattern's own methods, so that later uses cost what its own cost."""
        if name not in _MEMBERS:
            raise AttributeError(f"a pattern has no {name}")
        compiled = self._compiled()
        vars(self).update({each: getattr(compiled, each) for each in _MEMBERS})
        return vars(self)[name]


def compile_late(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """What `re.compile` returns, but for `Match.re`, which is the compiled pattern, and the functions of `re`."""
    return cast("re.Pattern[AnyStr]", _LatePattern(lambda: re.compile(pattern, flags)))
