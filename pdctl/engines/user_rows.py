"""The rows by which logs are read: a user's own (*.yaml files, docs/dialects.md), then the shipped ones.

A file with a mistake is refused as a whole, naming the line and the fix: with half-read rows, a verdict would depend
on a typing error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl import user_files
from pdctl.engines import pattern, versions
from pdctl.engines.base import Level, Phase, Row, Sign, Speaker
from pdctl.engines.row_matching import Speech, adapters, rows
from pdctl.engines.versions import V0_5_3, Span, Version
from pdctl.errors import UsageError
from pdctl.quick_definitions import NamedTuple
from pdctl.suggestions import similar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from enum import Enum
    from pathlib import Path

    import yaml


REQUIRED = ("id", "speaker", "level", "literal", "pattern", "example")
OPTIONAL = ("role", "since", "until", "phase", "backend", "cause", "echo", "needs", "proves", "reached")
ROLES = ("prefill", "decode", "router", "")
LARGEST = 1 << 20  # bytes in one file


def extended_speech(directory: Path) -> Speech:
    """The rows of the *.yaml files in `directory`, then the shipped ones. Raise UsageError naming a bad line."""
    return Speech((*load(directory), *rows()))


class Cell(NamedTuple):
    """One value in a file: its text, YAML tag and position."""

    text: str
    tag: str
    where: str


def load(directory: Path) -> tuple[Row, ...]:
    """The rows of all files, in the order of their names. Raise UsageError naming file, line and fix."""
    if not directory.is_dir():
        raise UsageError(f"{directory}: no such directory of dialect rows", "name a directory that holds *.yaml files")
    files = sorted((*directory.glob("*.yaml"), *directory.glob("*.yml")))
    if not files:
        raise UsageError(f"{directory}: no *.yaml file in it", "put your rows into one, as docs/dialects.md shows")
    taken = {row.id: "pdctl" for row in rows()}
    found: list[Row] = []
    for file in files:
        for cells, where in _entries(file):
            row = _row(cells, where)
            if row.id in taken:
                raise UsageError(f"{cells['id'].where}: id {row.id} is taken by {taken[row.id]}", "give it another id")
            taken[row.id] = where
            found.append(row)
    return tuple(found)


def _entries(file: Path) -> Iterable[tuple[dict[str, Cell], str]]:
    import yaml  # late: most logs are read without rows of a user

    root = _parsed(file)
    if isinstance(root, yaml.MappingNode) and [key.value for key, _ in root.value] == ["rows"]:
        root = root.value[0][1]
    if not isinstance(root, yaml.SequenceNode):
        raise UsageError(f"{file}:1: a list of rows is expected", "begin every row with `- id: …`")
    for node in root.value:
        where = f"{file}:{node.start_mark.line + 1}"
        if not isinstance(node, yaml.MappingNode):
            raise UsageError(f"{where}: a row is a mapping of keys", "write it as `- id: …` and indented keys below")
        yield _cells(node, file), where


def _parsed(file: Path) -> yaml.Node | None:
    import yaml  # late: most logs are read without rows of a user

    try:
        data = user_files.read(file, LARGEST)
        if len(data) > LARGEST:
            raise UsageError(f"{file}: larger than {LARGEST >> 20} MiB", "split it into several files")
        return yaml.compose(data.decode("utf-8"), Loader=yaml.SafeLoader)
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or error}", "make it readable") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: byte {error.start} is not UTF-8", "save the file as UTF-8") from None
    except RecursionError:
        raise UsageError(f"{file}: nested too deeply", "rows are a flat list") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        what = getattr(error, "problem", None) or str(error).splitlines()[0]
        fix = "quote patterns and examples in single quotes, doubling every ' inside"
        raise UsageError(f"{file}{line}: {what}", fix) from None


def _cells(node: yaml.MappingNode, file: Path) -> dict[str, Cell]:
    import yaml  # late: most logs are read without rows of a user

    cells: dict[str, Cell] = {}
    for key, value in node.value:
        where = f"{file}:{key.start_mark.line + 1}"
        name = str(key.value)
        if name not in REQUIRED + OPTIONAL:
            near = similar(name, REQUIRED + OPTIONAL)
            raise UsageError(
                f"{where}: no key {name!r}",
                f"did you mean {near[0]!r}?" if near else f"the keys are {', '.join(REQUIRED + OPTIONAL)}",
            )
        if name in cells:
            raise UsageError(f"{where}: {name} is given twice", "leave one of them out")
        if not isinstance(value, yaml.ScalarNode):
            raise UsageError(f"{where}: {name} is one value, not a list or mapping", f"write `{name}: value`")
        cells[name] = Cell(str(value.value), str(value.tag), f"{file}:{value.start_mark.line + 1}")
    missing = [name for name in REQUIRED if name not in cells]
    if missing:
        where = f"{file}:{node.start_mark.line + 1}"
        raise UsageError(f"{where}: {' and '.join(missing)} missing", f"add `{missing[0]}: …` to this row")
    return cells


def _row(cells: dict[str, Cell], where: str) -> Row:
    def text(name: str) -> str:
        return cells[name].text if name in cells else ""

    row = Row(
        text("id"),
        _speaker(cells["speaker"]),
        Level(_one_of(cells["level"], Level)),
        _role(cells.get("role")),
        text("literal").encode(),
        text("pattern"),
        text("example"),
        _span(cells.get("since"), cells.get("until")),
        Phase(_one_of(cells["phase"], Phase)) if text("phase") else None,
        text("backend"),
        text("cause"),
        _flag(cells.get("echo")),
        text("needs"),
        _signs(cells.get("proves")),
        Phase(_one_of(cells["reached"], Phase)) if text("reached") else None,
    )
    for weakness in pattern.weaknesses(row.pattern, row.literal):
        raise UsageError(f"{cells['pattern'].where}: pattern of {row.id}: {weakness}", "see docs/dialects.md, Rules")
    _prove(row, cells["example"].where)
    return row


def _prove(row: Row, where: str) -> None:
    """Test the row with its example. Raise UsageError if they do not match."""
    if Speech((row,)).match(row.example.encode()) is None:
        raise UsageError(
            f"{where}: the example of {row.id} is not matched by its literal and pattern",
            "the pattern begins where the message begins, behind time, ranks and level; a room is digits",
        )


def _speaker(cell: Cell) -> Speaker:
    return Speaker(_among(cell, [one.speaker for one in adapters()], "speaker"))


def _one_of(cell: Cell, kind: type[Enum]) -> str:
    return _among(cell, [str(member.value) for member in kind], kind.__name__.lower())


def _among(cell: Cell, known: Sequence[str], what: str) -> str:
    if cell.text in known:
        return cell.text
    near = similar(cell.text, known)
    raise UsageError(
        f"{cell.where}: {cell.text!r} is no {what}",
        f"did you mean {near[0]}?" if near else f"one of {', '.join(known)}",
    )


def _role(cell: Cell | None) -> str:
    if cell is None or cell.text in ROLES:
        return cell.text if cell else ""
    raise UsageError(f"{cell.where}: {cell.text!r} is no role", "prefill, decode, router, or leave it out")


def _signs(cell: Cell | None) -> tuple[Sign, ...]:
    """The signs named by one word, or by several separated by commas."""
    words = [] if cell is None else [word.strip() for word in cell.text.split(",")]
    named = [_one_of(cell._replace(text=word), Sign) for word in words if cell is not None]
    return tuple(sign for name in named for sign in Sign if sign.value == name)


def _flag(cell: Cell | None) -> bool:
    if cell is None:
        return False
    if cell.text.lower() in ("true", "false"):
        return cell.text.lower() == "true"
    raise UsageError(f"{cell.where}: {cell.text!r} is not true or false", "write true or false")


def _span(since: Cell | None, until: Cell | None) -> Span:
    return Span(_version(since) if since else V0_5_3, _version(until) if until else None)


def _version(cell: Cell) -> Version:
    try:
        return versions.parse(cell.text)
    except UsageError as error:
        raise UsageError(f"{cell.where}: {error.message}", error.fix) from None
