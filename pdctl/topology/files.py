"""From a path to text: everything that can be wrong with a file before YAML is."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pdctl import input_file
from pdctl.topology.diagnostic import Code, Report
from pdctl.topology.shelves import known
from pdctl.topology.suggest import nearest
from pdctl.topology.tree import Source

if TYPE_CHECKING:
    from pathlib import Path

MAX_BYTES = 1 << 20  # a topology is a page or two; a megabyte is a mistake (a log, a checkpoint)
STDIN = "-"


def read(path: Path, report: Report) -> Source | None:
    """The text of a topology file (`-`: standard input), or None after reporting why there is none."""
    name = "<stdin>" if str(path) == STDIN else str(path)
    report.reading(name)
    raw = _bytes(path, name, report)
    return None if raw is None else _text(raw, name, report)


def _bytes(path: Path, name: str, report: Report) -> bytes | None:
    if name == "<stdin>":
        return sys.stdin.buffer.read(MAX_BYTES + 1)
    try:
        return input_file.read(path, MAX_BYTES)
    except FileNotFoundError:
        report.add(Code.MISSING_FILE, f"there is no file {name}", help=_neighbours(path))
    except IsADirectoryError:
        found = sorted(entry.name for entry in path.glob("*.yaml"))[:8]
        hint = f"name one of the files in it: {', '.join(found)}" if found else "name a topology file"
        report.add(Code.NOT_A_FILE, f"{name} is a directory", help=hint)
    except OSError as error:
        report.add(Code.UNREADABLE_FILE, f"{name} cannot be read: {(error.strerror or str(error)).lower()}")
    return None


def _text(raw: bytes, name: str, report: Report) -> Source | None:
    if len(raw) > MAX_BYTES:
        report.add(Code.FILE_TOO_LARGE, f"{name} is larger than 1 MiB", help="is this the topology, or a log?")
        return None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        _not_utf8(raw, error, name, report)
        return None
    if "\0" in text:
        report.add(Code.NOT_UTF8, f"{name} is a binary file (it holds a zero byte)", help="name a YAML text file")
        return None
    return Source.of(name, text)


def _not_utf8(raw: bytes, error: UnicodeDecodeError, name: str, report: Report) -> None:
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        report.add(Code.NOT_UTF8, f"{name} is UTF-16", help="save the file as UTF-8")
        return
    source = Source.of(name, raw.decode("utf-8", errors="replace"))
    before = Source.of(name, raw[: error.start].decode("utf-8-sig", errors="replace"))
    line, column = len(before.lines) - 1, len(before.lines[-1])
    mark = (source.span(line, column, column + 1), f"byte 0x{raw[error.start]:02x}")
    report.add(Code.NOT_UTF8, f"{name} is not UTF-8 text", [mark], "save the file as UTF-8")


def _neighbours(path: Path) -> str:
    """A file beside the missing one that has nearly its name, or the shipped topology that was meant."""
    shipped = known({})
    if path.stem in shipped:
        return f"the topology that ships with pdctl goes by its bare name: {path.stem}"
    try:
        beside = {entry.name: str(path.parent / entry.name) for entry in path.parent.glob("*.y*ml")}
    except OSError:
        beside = {}
    near = nearest(path.name, beside)
    return f"did you mean {beside[near]}?" if near else ""
