"""The parameters of a verb, declared once, and a plain command line read by them without Typer.

Loading Typer and building a verb with it costs several times a bare Python, as much as most verbs themselves. So a line
of known options with their values and of words is read without it, from the declarations that Typer gets too. Whatever
else a line has (`--help`, a mistake, `-abc`, `--`, an empty value) is left to Typer. tests/cli/test_parameters.py
compares both readings for every verb.
"""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pdctl.errors import ExitCode, UsageError
from pdctl.quick_definitions import NamedTuple

LARGEST = 10**9  # of any number that has no bound of its own: more would not fit where it is used

Command = Callable[..., ExitCode | None]


class Parameter(NamedTuple):
    """What `Annotated` says of a parameter. `names`: of an option as typed; () if the parameter's own name says it.

    `variable`: the environment variable that stands in for it. `above`: a number is greater than that.
    """

    names: tuple[str, ...] | None
    help: str
    metavar: str | None = None
    min: int | None = None
    max: int | None = None
    variable: str | None = None
    above: int | None = None


PLAIN_ARGUMENT = Parameter(None, "")  # a parameter of which nothing is said


class TypedLine(NamedTuple):
    """What a verb may ask about its command line, both by name of the parameter.

    `given`: of the parameters that were typed, the first spelling that means the same; `flags`: of all parameters.
    """

    given: Mapping[str, str]
    flags: Mapping[str, str]


def option(
    *names: str,
    help: str,
    metavar: str | None = None,
    min: int | None = None,
    max: int | None = None,
    variable: str | None = None,
    above: int | None = None,
) -> Parameter:
    return Parameter(names, help, metavar, min, max, variable, above)


def argument(*, metavar: str, help: str) -> Parameter:
    return Parameter(None, help, metavar)


class Slot(NamedTuple):
    """A parameter of a verb's function. `kind`: the type of one value; `many`: it takes a list of them."""

    name: str
    parameter: Parameter
    kind: type
    many: bool

    @property
    def spellings(self) -> tuple[str, ...]:
        """The option as typed; of a switch `--on/--off` in one word. () for an argument."""
        names = self.parameter.names
        if names is None or names:
            return names or ()
        long = self.name.replace("_", "-")
        return (f"--{long}/--no-{long}",) if self.kind is bool else (f"--{long}",)

    def wanted(self, value: float) -> str:
        """Which numbers the parameter takes instead of `value`, in words."""
        one = self.parameter
        most = LARGEST if one.max is None and value > LARGEST else one.max
        limits = (("of at least", one.min), ("above", one.above), ("of at most", most))
        said = " and ".join(f"{word} {limit}" for word, limit in limits if limit is not None)
        return f"a {'whole ' if self.kind is int else ''}number {said.replace('and of', 'and')}".rstrip()

    def takes(self, value: float) -> bool:
        """Whether a number is within the parameter's bounds; nan and what is infinite never are."""
        one = self.parameter
        least = -LARGEST if one.min is None else one.min
        most = LARGEST if one.max is None else one.max
        return least <= value <= most and (one.above is None or value > one.above)


def slots(command: Command) -> tuple[Slot, ...]:
    """The parameters of a verb in the order of its function, without its TypedLine."""
    found = []
    for name, hint in declared_types(command).items():
        if name == "return" or hint is TypedLine:
            continue
        declared = get_origin(hint) is Annotated
        kind, many = _kind(hint.__origin__ if declared else hint)
        found.append(Slot(name, hint.__metadata__[0] if declared else PLAIN_ARGUMENT, kind, many))
    return tuple(found)


def declared_types(command: Command) -> dict[str, Any]:
    """The annotations of a verb's function by parameter, as written."""
    return {name: as_declared(hint) for name, hint in get_type_hints(command, include_extras=True).items()}


def as_declared(hint: Any) -> Any:  # noqa: ANN401 - whatever stands in an annotation
    """The annotation without what CPython 3.10 puts around that of a parameter whose default is None: Optional[…]."""
    inside = [each for each in get_args(hint) if get_origin(each) is Annotated] if get_origin(hint) is Union else []
    return inside[0] if inside else hint


def _kind(hint: Any) -> tuple[type, bool]:  # noqa: ANN401 - a type, a union or list[…]
    if get_origin(hint) in (types.UnionType, Union):
        (hint,) = (each for each in get_args(hint) if each is not types.NoneType)
    return (get_args(hint)[0], True) if get_origin(hint) is list else (hint, False)


def line_name(command: Command) -> str | None:
    """The name of the verb's parameter that takes the TypedLine."""
    hints = command.__annotations__.items()
    return next((name for name, hint in hints if hint in (TypedLine, TypedLine.__name__)), None)


def read_plain(command: Command, words: Sequence[str]) -> dict[str, Any] | None:
    """The values for `command` of a plain command line; None if Typer shall read it.

    Parameters that were not typed are missing: the defaults of the function hold.
    """
    known = slots(command)
    options: dict[str, tuple[Slot, bool | None]] = {}  # spelling → its parameter, and what a switch sets it to
    for slot in known:
        for spelling in slot.spellings:
            for at, name in enumerate(spelling.split("/")):
                options[name] = slot, at == 0 if slot.kind is bool else None
    typed: dict[str, Any] = {}
    loose: list[str] = []
    rest = iter(words)
    for word in rest:
        if word[:1] != "-" or word == "-":
            loose.append(word)
            continue
        name, sign, text = word.partition("=")
        if name not in options:
            return None
        slot, switch = options[name]
        if (slot.name in typed and not slot.many) or (sign and (switch is not None or not name.startswith("--"))):
            return None
        if switch is not None:
            typed[slot.name] = switch
            continue
        text = text if sign else next(rest, "")
        value = None if text.startswith("--") else _value(slot, text)
        if value is None:
            return None
        typed[slot.name] = [*typed.get(slot.name, ()), value] if slot.many else value
    for slot in known:
        if slot.parameter.names is None:
            taken, loose = (loose, []) if slot.many else (loose[:1], loose[1:])
            values = [_value(slot, text) for text in taken]
            if None in values:
                return None
            if values:
                typed[slot.name] = values if slot.many else values[0]
        elif slot.parameter.variable and slot.name not in typed and os.environ.get(slot.parameter.variable):
            return None
    if loose or any(slot.name not in typed and not _has_default(command, slot.name) for slot in known):
        return None
    if (line := line_name(command)) is not None:
        flags = {slot.name: first_spelling(slot) for slot in known}
        given = {slot.name: typed_spelling(slot, typed[slot.name]) for slot in known if slot.name in typed}
        typed[line] = TypedLine(given, flags)
    return typed


def first_spelling(slot: Slot) -> str:
    return slot.spellings[0].partition("/")[0] if slot.spellings else slot.name


def typed_spelling(slot: Slot, value: object) -> str:
    """The first spelling that gives this value: `--off` of a switch `--on/--off` that is False."""
    _, _, off = slot.spellings[0].partition("/") if slot.spellings else ("", "", "")
    return off if value is False and off else first_spelling(slot)


def refuse_number(slot: Slot, value: object) -> None:
    """Raise UsageError if it is a number out of the parameter's bounds."""
    if slot.kind in (int, float) and isinstance(value, (int, float)) and not slot.takes(value):
        wanted, given = slot.wanted(value), f"{value:g}" if slot.kind is float else value
        raise UsageError(f"{first_spelling(slot)} `{given}`: not {wanted}", f"give {wanted}")


def _value(slot: Slot, text: str) -> Any:  # noqa: ANN401 - of the parameter's type
    """The value of a parameter that `text` stands for; None if Typer shall judge it."""
    if not text:
        return None
    try:
        value = slot.kind(text)
    except ValueError:
        return None
    return None if slot.kind in (int, float) and not slot.takes(value) else value


def _has_default(command: Command, name: str) -> bool:
    code, defaults = command.__code__, command.__defaults__ or ()
    return code.co_varnames.index(name) >= code.co_argcount - len(defaults)
