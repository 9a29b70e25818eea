"""Frozen dataclasses to JSON and back: unknown keys are ignored, missing ones defaulted, so that versions can meet."""

from __future__ import annotations

import dataclasses
import types
import typing
from enum import Enum
from functools import lru_cache
from typing import TypeVar, cast

T = TypeVar("T")
UNWRITTEN = types.MappingProxyType({"written": False})  # metadata of a field that stays out of the JSON


def encode(value: object) -> object:
    """Dataclasses to dicts, tuples to lists, enums to their values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        written = [field for field in dataclasses.fields(value) if field.metadata.get("written", True)]
        return {field.name: encode(getattr(value, field.name)) for field in written}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    return value


def decode(kind: type[T], value: object) -> T:
    """`value` (from json.loads) as a `kind`. Raises ValueError naming the field that does not fit."""
    return cast("T", _decode(kind, value, kind.__name__))


def _decode(kind: object, value: object, where: str) -> object:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _dataclass(kind, value, where)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        inner = next(argument for argument in arguments if argument is not type(None))
        return _decode(inner, value, where)
    if origin is tuple:
        return _tuple(arguments, value, where)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if kind is float and isinstance(value, int):
        return float(value)
    if not isinstance(kind, type) or not isinstance(value, kind):
        raise ValueError(f"{where}: expected {getattr(kind, '__name__', kind)}, found {value!r:.60}")
    return value


def _dataclass(kind: type, value: object, where: str) -> object:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected an object, found {value!r:.60}")
    known = {name: hint for name, hint in _fields(kind).items() if name in value}
    try:
        return kind(**{name: _decode(hint, value[name], f"{where}.{name}") for name, hint in known.items()})
    except TypeError as error:  # a field without a default is missing
        raise ValueError(f"{where}: {error}") from None


@lru_cache
def _fields(kind: type) -> dict[str, object]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _tuple(arguments: tuple[object, ...], value: object, where: str) -> tuple[object, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{where}: expected a list, found {value!r:.60}")
    if arguments[-1] is Ellipsis:
        return tuple(_decode(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    pairs = zip(arguments, value, strict=True)
    return tuple(_decode(kind, item, f"{where}[{index}]") for index, (kind, item) in enumerate(pairs))
