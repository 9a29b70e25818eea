"""How a value that does not fit the schema is reported: what was expected, what came, how to put it right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.topology import scalars
from pdctl.topology.diagnostic import Code, Mark, Report, listing, shown
from pdctl.topology.interpolate import expand
from pdctl.topology.model import Span
from pdctl.topology.scalars import Sort
from pdctl.topology.schema import TOPOLOGY, Key, Kind
from pdctl.topology.suggest import LISTED, hint, nearest
from pdctl.topology.tree import Entry, Node, Scalar, shape

if TYPE_CHECKING:
    from collections.abc import Mapping

TEXTUAL = ("text", "choice", "variable", "flag")


class Broken:
    """Stands for a value that was reported; its key counts as left out."""


class Mistakes:
    """Reports mistakes and remembers the key paths that have one. `over` is what the current value replaced."""

    def __init__(self, report: Report) -> None:
        self.paths: set[str] = set()
        self.over: Span | None = None
        self._report = report

    def fail(self, code: Code, node: Node, path: str, message: str, fix: str = "") -> type[Broken]:
        self.paths.add(path)
        marks: list[Mark] = [(node.span, node.note if isinstance(node, Scalar) else "")]
        if self.over is not None:
            marks.append((self.over, "the value it replaces"))
        self._report.add(code, message, marks, fix)
        return Broken

    def wrong_type(self, kind: Kind, node: Node, path: str, got: str = "") -> type[Broken]:
        message = f"{path} expects {kind.expected}, got {got or _what(node)}"
        return self.fail(Code.WRONG_TYPE, node, path, message, _retype(kind, node))

    def unknown_key(self, name: str, entry: Entry, path: str, names: list[str]) -> str:
        """Returns the key that was probably meant, which then is not reported as missing."""
        near = nearest(name, names) or ""
        elsewhere = [] if near else _homes(TOPOLOGY, name, "")
        if near:
            fix = f"allowed: {', '.join(names)}" if len(names) <= LISTED else ""
        elif len(elsewhere) in (1, 2):
            fix = f"`{name}` belongs in {' or '.join(elsewhere)}"
        else:
            fix = (
                hint(name, names)
                or "`pdctl topology schema -o markdown` lists the keys; one that begins with x- is ignored"
            )
        label = f"did you mean `{near}`?" if near else ""
        message = f"{shown(name)} is not a key of {path or 'a topology'}"
        self._report.add(Code.UNKNOWN_KEY, message, [(entry.key, label)], fix)
        return near

    def missing_key(self, key: Key, path: str, table: str, place: Span) -> None:
        self.paths.add(path)
        sole = key.kind.name == "choice" and len(key.kind.choices) == 1
        fix = f"write `{key.name}: {key.kind.choices[0]}`" if sole else f"write `{key.name}: …`, {key.doc}"
        message = f"{table or 'a topology'} needs the key `{key.name}`"
        self._report.add(Code.MISSING_KEY, message, [(place, f"`{key.name}` is missing")], fix)

    def bad_key(self, name: str, entry: Entry, path: str, kind: Kind) -> None:
        self.paths.add(f"{path}.{name}")
        message = f"a key of {path} expects {kind.expected}, got {shown(name)}"
        self._report.add(Code.BAD_NAME, message, [(entry.key, "")])

    def ambiguous(self, kind: Kind, node: Scalar, path: str, doubt: scalars.Doubt) -> type[Broken]:
        means, quoted = scalars.rewritten(doubt, node.text), f'"{node.text}"'
        fix = (
            f"write {means} or {quoted}"
            if kind.name == "flag"
            else f"write {quoted if kind.name in TEXTUAL else means}"
        )
        message = f"{path} expects {kind.expected}: `{node.text}` {scalars.explain(doubt, node.text)}"
        return self.fail(Code.AMBIGUOUS_VALUE, node, path, message, fix)

    def expand(self, node: Scalar, path: str, environ: Mapping[str, str]) -> Scalar | None:
        """The value with every `${…}` filled in; None after reporting the ones that cannot be."""
        expanded = expand(node.text, environ)
        span = node.span
        for fault in expanded.faults:
            at = span.lines[span.line - 1].find(fault.fragment, span.column - 1) + 1
            place = Span(span.file, span.line, at, at + len(fault.fragment), span.lines) if at else span
            self._report.add(fault.code, fault.message, [(place, "")], fault.help)
        if expanded.faults:
            self.paths.add(path)
            return None
        filled = expanded.text != node.text.replace("$$", "$")
        became = shown(expanded.text) if expanded.text else "empty"
        return node._replace(text=expanded.text, note=f"this became {became}" if filled else "")


def _homes(kind: Kind, name: str, path: str) -> list[str]:
    """Where in the schema a key of this name lives."""
    found = [path] if path and any(key.name == name for key in kind.keys) else []
    for key in kind.keys:
        found += _homes(key.kind, name, f"{path}.{key.name}" if path else key.name)
    return found


def _what(node: Node) -> str:
    if not isinstance(node, Scalar):
        return shape(node)
    if node.blank or node.null:
        return "nothing"
    if not node.text:
        return "empty text"
    return f"the text {shown(node.text)}" if scalars.sort(node) is Sort.TEXT else node.text


def _retype(kind: Kind, node: Node) -> str:
    """How to turn the value into what was expected, where that is plain to see."""
    if kind.name == "table":
        return f"its keys are {listing((key.name for key in kind.keys), 'and')}" if len(kind.keys) <= LISTED else ""
    if not isinstance(node, Scalar):
        inner = {"map": "write `name: value` lines", "list": "write [one, two]", "either": ""}
        return inner.get(kind.name, "write a single value")
    if node.blank or node.null:
        return "write a value, or remove the key" + (' (empty text is "")' if kind.name == "variable" else "")
    bare = Scalar(node.span, node.text)
    if kind.name in ("integer", "number", "boolean") and not node.plain and scalars.sort(bare) is not Sort.TEXT:
        return f"remove the quotes: {node.text}"
    if kind.name in ("text", "variable") and node.plain:
        return f'put it in quotes: "{node.text}"'
    return f"write [{node.text}]" if kind.name == "list" else ""
