"""Records that a JSON object or a map of a YAML file describes: what each member may be, and exact words if it is not.

A record is a frozen dataclass. Each field's `Figure` says what the member of that name means and which values it takes.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pdctl.errors import UsageError
from pdctl.quick_definitions import NamedTuple
from pdctl.suggestions import hint

if TYPE_CHECKING:
    from collections.abc import Sequence

SMALLEST = 1e-6  # of a number that is above 0: quotients stay within what a float can be
LARGEST = 10**15  # of any count of tokens or blocks, and of any rate or time: more than a fleet of 10⁶ replicas has
QUOTED = 40  # characters of a wrong value that an error repeats

Record = TypeVar("Record")


class Figure(NamedTuple):
    """What a member is. `of`: the record of an object or of a list's entries."""

    kind: str  # whole, number, flag, text, choice, range, whole range, object, list
    meaning: str
    least: float = 0
    most: float = LARGEST
    of: type[Any] | None = None

    @property
    def wanted(self) -> str:
        bounds = f"from {'0.000001' if self.least == SMALLEST else f'{self.least:,}'} to {self.most:,}"
        return {
            "whole": f"a whole number {bounds}",
            "number": f"a number {bounds}",
            "flag": "true or false",
            "text": "a non-empty text",
            "choice": "a state",
            "range": f"a list of two numbers {bounds}, the lower one first",
            "whole range": f"a list of two whole numbers {bounds}, the lower one first",
            "object": "an object",
            "list": "a list of objects",
        }[self.kind]


REQUIRED: Any = dataclasses.MISSING


def whole(meaning: str, default: Any = REQUIRED, least: int = 0, most: int = LARGEST) -> Any:  # noqa: ANN401 - a field
    return figure_field(default, Figure("whole", meaning, least, most))


def number(meaning: str, default: Any = REQUIRED, most: float = LARGEST, *, above: bool = True) -> Any:  # noqa: ANN401
    return figure_field(default, Figure("number", meaning, SMALLEST if above else 0, most))


def span(meaning: str, default: Any, most: float) -> Any:  # noqa: ANN401
    return figure_field(default, Figure("range", meaning, SMALLEST, most))


def whole_span(meaning: str, default: Any, least: int, most: int) -> Any:  # noqa: ANN401
    return figure_field(default, Figure("whole range", meaning, least, most))


def record(meaning: str, of: type[Any], default: Any = REQUIRED) -> Any:  # noqa: ANN401
    return figure_field(default, Figure("object", meaning, of=of))


def records(meaning: str, of: type[Any]) -> Any:  # noqa: ANN401
    return figure_field((), Figure("list", meaning, of=of))


def figure_field(default: object, figure: Figure) -> Any:  # noqa: ANN401
    return dataclasses.field(default=default, metadata={"figure": figure})


class JsonPlace(NamedTuple):
    """A file, or what it was read from, and the path of a value in it: `replicas[3].name`; "" for all of it."""

    file: str
    path: str = ""

    def member(self, name: str) -> JsonPlace:
        return JsonPlace(self.file, f"{self.path}.{name}" if self.path else name)

    def entry(self, at: int) -> JsonPlace:
        return JsonPlace(self.file, f"{self.path}[{at}]")

    def __str__(self) -> str:
        return f"{self.file}: `{self.path}`" if self.path else self.file


def parse_object(data: bytes, file: str, shape: str) -> dict[str, object]:
    """The JSON object that the file is. Raise UsageError, whose fix is `shape` where the file is something else."""

    def members(pairs: list[tuple[str, object]]) -> dict[str, object]:
        twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
        if twice:
            raise UsageError(f"{file}: `{twice[0][:QUOTED]}` stands twice in one object", "keep one of them")
        return dict(pairs)

    try:
        text = data.decode("utf-8-sig")
        value = json.loads(text, object_pairs_hook=members, parse_int=_whole)
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: byte {error.start + 1} is not UTF-8", "save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        if not text.strip():
            raise UsageError(f"{file} is empty", shape) from None
        words = error.msg[:1].lower() + error.msg[1:]
        raise UsageError(f"{file}:{error.lineno}:{error.colno}: not JSON: {words}", "mend the file there") from None
    except RecursionError:
        raise UsageError(f"{file}: nested too deep to be read", shape) from None
    if not isinstance(value, dict):
        raise UsageError(f"{file} is {said(value)}, not an object", shape)
    return value


def _whole(text: str) -> int | float:
    """An integer; one of many digits, with which int() is slow or which it refuses, as a float, inf for example."""
    return int(text) if len(text) < QUOTED else float(text)


def figures(of: type[Any]) -> dict[str, Figure]:
    """The members of a record by name."""
    return {field.name: field.metadata["figure"] for field in dataclasses.fields(of) if field.init}


def read_record(of: type[Record], value: object, place: JsonPlace, beside: Sequence[str] = ()) -> Record:
    """The record that a JSON object describes. Raise UsageError for the first unknown, wrong or missing member."""
    if not isinstance(value, dict):
        refuse(value, Figure("object", ""), place)
    known = figures(of)
    for name in value:
        if name not in known:
            names = (*known, *beside)
            fix = hint(name, names) or f"its members are {', '.join(names)}"
            raise UsageError(f"{place}: there is no member `{name[:QUOTED]}`", fix)
    given: dict[str, object] = {}
    for name, figure in known.items():
        if name in value:
            given[name] = read_value(value[name], figure, place.member(name))
    for field in dataclasses.fields(of):  # type: ignore[arg-type]  # a record is a dataclass
        if field.name in known and field.name not in given and field.default is REQUIRED:
            figure = known[field.name]
            raise UsageError(f"{place.member(field.name)} is missing", f"add it: {figure.meaning}, {figure.wanted}")
    return of(**given)


def read_value(value: object, figure: Figure, place: JsonPlace) -> object:
    kind = figure.kind
    if kind == "object" and figure.of is not None:
        return read_record(figure.of, value, place)
    if kind == "list" and figure.of is not None and isinstance(value, list):
        return tuple(read_record(figure.of, one, place.entry(at)) for at, one in enumerate(value))
    if kind == "choice" and figure.of is not None and issubclass(figure.of, Enum) and isinstance(value, str):
        names = [each.value for each in figure.of]
        if value not in names:
            fix = hint(value, names) or f"one of {', '.join(names)}"
            raise UsageError(f"{place} is {shown(value)}, which is no {figure.wanted[2:]}", fix)
        return figure.of(value)
    if (
        (kind in ("whole", "number") and _is_number(value, figure))
        or (kind == "flag" and isinstance(value, bool))
        or (kind == "text" and isinstance(value, str) and value)
    ):
        return value
    is_range = kind in ("range", "whole range") and isinstance(value, list) and len(value) == 2
    if is_range and isinstance(value, list) and all(_is_number(one, figure) for one in value):
        if value[0] <= value[1]:
            return tuple(value)
        raise UsageError(f"{place} begins above its end: {value[0]:g} > {value[1]:g}", "write the lower number first")
    refuse(value, figure, place)


def _is_number(value: object, figure: Figure) -> bool:
    """Whether it is a number of its kind within the bounds; a bool, nan and what is infinite never are."""
    kinds = int if figure.kind.startswith("whole") else (int, float)
    if not isinstance(value, kinds) or isinstance(value, bool) or not math.isfinite(value):
        return False
    return figure.least <= value <= figure.most


def refuse(value: object, figure: Figure, place: JsonPlace) -> NoReturn:
    raise UsageError(f"{place} is {said(value)}, not {figure.wanted}", f"give {figure.wanted}")


def said(value: object) -> str:
    """A JSON value in words, short whatever it is."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        return f"the text {shown(value)}"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, float) and math.isinf(value):  # Infinity, 1e400, or thousands of digits
        return "a number above 1.79e308" if value > 0 else "a number below -1.79e308"
    if isinstance(value, float):  # as written: 2.0 is not the whole number 2
        return "NaN" if math.isnan(value) else repr(value)
    return f"{value:,}"


def shown(text: str) -> str:
    return f"{text[:QUOTED]!r}{'…' if len(text) > QUOTED else ''}"
