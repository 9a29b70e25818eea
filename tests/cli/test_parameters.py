"""A command line that pdctl reads itself means what it means to Typer, for every verb and every option."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from enum import Enum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import pytest
import typer

from pdctl.cli import usage
from pdctl.cli.app import VERBS, functions
from pdctl.cli.parameters import Slot, as_declared, line_name, read_plain, slots
from tests.cases import for_each

if TYPE_CHECKING:
    from pdctl.cli.parameters import Command

COMMANDS: dict[str, Command] = {
    f"{verb.name} {sub}".strip(): command for verb in VERBS for sub, command in functions(verb).items()
}
BY_NAME = {verb.name: verb for verb in VERBS}
REFUSED = typer.BadParameter.__bases__[0]  # click's UsageError
ODD = ("", "-", "--", "-1", "-10m", "--x", "0", "1e3", "nan", "1_0", " 7", "ä", "x=y", "-h", "--help", "-vv", "=")


def read_by_typer(path: str, words: Sequence[str]) -> dict[str, Any] | None:
    """The values Typer calls the verb with; None if it refuses the words or prints help."""
    application, taken = typer_of(path)
    taken.clear()
    try:
        application.main([*path.split(), *words], prog_name="pdctl", standalone_mode=False)
    except REFUSED:
        return None
    return dict(taken) or None


@cache
def typer_of(path: str) -> tuple[Any, dict[str, Any]]:
    """The Typer command of a verb, which reads any number of lines, and where it puts the values of each."""
    command, taken = COMMANDS[path], {}

    def take(**values: object) -> None:
        taken.update(values)

    verb, _, sub = path.partition(" ")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(usage, "functions", lambda _: {sub: _recording(command, take)})
        return typer.main.get_command(usage.build(BY_NAME[verb])), taken


def _recording(command: Command, take: Any) -> Any:
    """A function with the parameters of `command` that gives its values to `take`."""
    names = command.__code__.co_varnames[: command.__code__.co_argcount]
    scope: dict[str, Any] = {**command.__globals__, "__take": take}
    exec(f"def {command.__name__}({', '.join(names)}): __take({', '.join(f'{n}={n}' for n in names)})", scope)
    made = scope[command.__name__]
    made.__annotations__, made.__defaults__ = command.__annotations__, command.__defaults__
    return made


def good(slot: Slot) -> list[str]:
    """Values that the parameter takes."""
    if issubclass(slot.kind, Enum):
        return [str(each.value) for each in slot.kind]
    if slot.kind in (int, float):
        return [value for value in ("1", "2") if slot.takes(float(value))]
    return ["logs", "a=b", "5m"]


def typed(slot: Slot, value: str) -> Iterator[list[str]]:
    """Every way to type the parameter."""
    if slot.parameter.names is None:
        yield [value]
    for spelling in slot.spellings:
        for name in spelling.split("/"):
            if slot.kind is bool:
                yield [name]
                continue
            yield [name, value]
            if name.startswith("--"):
                yield [f"{name}={value}"]


def needed(command: Command, besides: Slot | None = None) -> list[str]:
    """Words for the parameters without which the verb is refused, except `besides`."""
    optional = len(command.__defaults__ or ())
    names = command.__code__.co_varnames[: command.__code__.co_argcount - optional]
    required = [slot for slot in slots(command) if slot.name in names and slot != besides]
    return [word for slot in required for word in next(typed(slot, good(slot)[0]))]


def as_called(command: Command, values: dict[str, Any]) -> dict[str, Any]:
    """`values` with the defaults of those that are missing."""
    code, defaults = command.__code__, command.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    known = {**dict(zip(names[len(names) - len(defaults) :], defaults, strict=True)), **values}
    return {name: known[name] for name in names if name in known}


@for_each("path", COMMANDS)
def test_every_option_alone_is_read_without_typer_and_as_typer_reads_it(path: str) -> None:
    command = COMMANDS[path]
    lines = [needed(command)]
    for slot in slots(command):
        for value in good(slot)[:2]:
            lines += [[*needed(command, slot), *words] for words in typed(slot, value)]
    for words in lines:
        plain = read_plain(command, words)
        assert plain is not None, words
        assert as_called(command, plain) == read_by_typer(path, words), words


@for_each("path", COMMANDS)
def test_any_line_is_left_to_typer_or_read_as_typer_reads_it(path: str) -> None:
    command, dice = COMMANDS[path], random.Random(path)
    read = 0
    for _ in range(60):
        pieces = [needed(command)] if dice.random() < 0.8 else []
        for slot in dice.choices(slots(command), k=dice.randrange(4) if len(slots(command)) > 1 else 1):
            value = dice.choice(good(slot) if dice.random() < 0.7 else ODD)
            pieces.append(dice.choice(list(typed(slot, value))))
        if dice.random() < 0.2:
            pieces.append([dice.choice(ODD)])
        dice.shuffle(pieces)
        words = [word for piece in pieces for word in piece]
        plain = read_plain(command, words)
        if plain is None:
            continue
        read += 1
        ours, theirs = as_called(command, plain), read_by_typer(path, words)
        assert repr(ours) == repr(theirs), words  # repr: a nan equals itself there
    assert read >= 5, "most of these lines were left to Typer"


def test_a_variable_that_stands_in_for_an_option_is_left_to_typer(monkeypatch: pytest.MonkeyPatch) -> None:
    command = COMMANDS["rooms"]
    assert read_plain(command, ["logs"]) == {"paths": ["logs"]}
    monkeypatch.setenv("PDCTL_DIALECTS", "rows")
    assert read_plain(command, ["logs"]) is None
    assert read_plain(command, ["--dialects", "mine"]) == {"dialects": Path("mine")}


def test_what_was_typed_is_told_to_the_verb_that_asks() -> None:
    command = COMMANDS["plan"]
    plain = read_plain(command, ["2p1d", "-F", "site.yaml", "--gqa"])
    assert plain is not None
    line = plain[line_name(command) or ""]
    assert dict(line.given) == {"topology": "topology", "overlays": "--file", "mla": "--gqa"}
    assert line.flags["decode_tp"] == "--decode-tp"


def test_a_parameter_is_read_as_declared_under_every_python() -> None:
    """CPython 3.10 wraps what is annotated, where the default is None, in an Optional; 3.11 does not."""
    written = Annotated[str | None, "metadata"]
    assert as_declared(Optional[written]) == as_declared(written) == written  # noqa: UP045 - the form 3.10 makes
    assert as_declared(Optional[int]) == Optional[int]  # noqa: UP045
