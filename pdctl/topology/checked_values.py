"""From the YAML tree to plain values, by the schema table: every mistake reported, every default filled in."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pdctl import units
from pdctl.suggestions import LISTED, hint, nearest
from pdctl.topology import scalars
from pdctl.topology.diagnostic import Code, Mark, ProblemReport, listing, shown
from pdctl.topology.model import SourceSpan
from pdctl.topology.scalars import ScalarSort, expand
from pdctl.topology.schema import TOPOLOGY, Absent, Key, Required, ValueKind
from pdctl.topology.yaml_parser import KeyValue, List, Map, Node, Scalar, shape

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


Values = dict[str, Any]  # by key as written; the value types follow from the table

DIGITS = 18  # of a number; more are a mistake, and Python refuses to parse thousands

PARSERS: Mapping[str, Callable[[str], float]] = {
    "size": units.parse_size,
    "rate": units.parse_rate,
    "duration": units.parse_duration,
}
TEXTUAL = ("text", "choice", "variable", "flag")


def defaults(kind: ValueKind) -> Values:
    """The values of a table that was left out."""
    return {key.name: default(key) for key in kind.keys}


def default(key: Key) -> object:
    kind = key.kind
    if key.default is Absent:
        return None
    if kind.name == "table":
        return defaults(kind)
    if key.default is None or key.default is Required:
        return {"list": (), "map": {}}.get(kind.name)
    return PARSERS[kind.name](str(key.default)) if kind.name in PARSERS else key.default


class ValueReader:
    """`spans` and `keys` say where each key path's value and key stand; `mistakes.paths` were reported."""

    def __init__(self, report: ProblemReport, environ: Mapping[str, str]) -> None:
        self.spans: dict[str, SourceSpan] = {}
        self.keys: dict[str, SourceSpan] = {}
        self.mistakes = Mistakes(report)
        self._environ = environ
        self._readers: dict[str, Callable[[ValueKind, Node, str], object]] = {
            "table": self._table,
            "map": self._map,
            "list": self._list,
            "either": self._either,
            "integer": self._number,
            "number": self._number,
            "boolean": self._boolean,
            "text": self._text,
            "choice": self._choice,
            "size": self._quantity,
            "rate": self._quantity,
            "duration": self._quantity,
            "flag": self._flag,
            "variable": self._variable,
        }

    def document(self, root: Map) -> Values:
        return self._keys(TOPOLOGY, root, "")

    # Containers.

    def _table(self, kind: ValueKind, node: Node, path: str) -> object:
        if isinstance(node, Scalar) and (node.blank or node.null):
            node = Map(node.span, {})
        return self._keys(kind, node, path) if isinstance(node, Map) else self.mistakes.wrong_type(kind, node, path)

    def _keys(self, kind: ValueKind, node: Map, path: str) -> Values:
        names = [key.name for key in kind.keys]
        unknown = [(name, entry) for name, entry in _entries(node) if name not in names]
        meant = {self.mistakes.unknown_key(name, entry, path, names) for name, entry in unknown}
        values: Values = {}
        for key in kind.keys:
            here = f"{path}.{key.name}" if path else key.name
            entry = node.entries.get(key.name)
            if entry is not None and not (isinstance(entry.value, Scalar) and entry.value.null):
                value = self._entry(key.kind, entry, here)
                values[key.name] = default(key) if value is Broken else value
                continue
            values[key.name] = default(key)
            if key.default is Required and key.name in meant:
                self.mistakes.paths.add(here)  # it is there but misspelt, which was reported
            elif key.default is Required:
                self.mistakes.missing_key(key, here, path, entry.key if entry else self.keys.get(path, node.span))
        return values

    def _map(self, kind: ValueKind, node: Node, path: str) -> object:
        if isinstance(node, Scalar) and (node.blank or node.null):
            return {}
        if not isinstance(node, Map) or kind.item is None:
            return self.mistakes.wrong_type(kind, node, path)
        values = {}
        for name, entry in _entries(node):
            if isinstance(entry.value, Scalar) and entry.value.null:
                continue
            if kind.name_kind and not re.fullmatch(kind.name_kind.pattern, name):
                self.mistakes.bad_key(name, entry, path, kind.name_kind)
            value = self._entry(kind.item, entry, f"{path}.{name}")
            if value is not Broken:
                values[name] = value
        return values

    def _entry(self, kind: ValueKind, entry: KeyValue, path: str) -> object:
        self.keys[path] = entry.key
        self.spans[path] = entry.value.span
        before, self.mistakes.over = self.mistakes.over, entry.over
        value = self._readers[kind.name](kind, entry.value, path)
        self.mistakes.over = before
        return value

    def _list(self, kind: ValueKind, node: Node, path: str) -> object:
        if not isinstance(node, List) or kind.item is None:
            return self.mistakes.wrong_type(kind, node, path)
        read = self._readers[kind.item.name]
        items = [
            read(kind.item, item, self._item_path(kind.item, item, path, at)) for at, item in enumerate(node.items)
        ]
        return Broken if Broken in items else tuple(items)

    def _item_path(self, kind: ValueKind, item: Node, path: str, at: int) -> str:
        """The items of a list of maps are numbered; single values share the path of their list."""
        if kind.name != "table":
            return path
        here = f"{path}[{at}]"
        self.keys[here] = self.spans[here] = item.span
        return here

    def _either(self, kind: ValueKind, node: Node, path: str) -> object:
        wanted = {Scalar: "choice", List: "list", Map: "table"}[type(node)]
        option = next((option for option in kind.options if option.name == wanted), None)
        if option is None or (isinstance(node, Scalar) and node.blank):
            return self.mistakes.wrong_type(kind, node, path)
        # The error for a wrong choice names everything that may stand there.
        option = option._replace(expected=kind.expected) if wanted == "choice" else option
        return self._readers[option.name](option, node, path)

    # Single values.

    def _scalar(self, kind: ValueKind, node: Node, path: str) -> Scalar | None:
        """The value with `${…}` filled in; None after reporting that it is no single value, or an ambiguous one."""
        if not isinstance(node, Scalar) or node.blank or node.null:
            self.mistakes.wrong_type(kind, node, path)
            return None
        value = self.mistakes.expand(node, path, self._environ) if "$" in node.text else node
        if value is None or scalars.sort(value) is not ScalarSort.DOUBTFUL or kind.name in PARSERS:
            return value
        doubt = scalars.doubt(value.text)
        if doubt is None or (value.note and kind.name in TEXTUAL):
            return value
        self.mistakes.ambiguous(kind, value, path, doubt)
        return None

    def _number(self, kind: ValueKind, node: Node, path: str) -> object:
        value = self._scalar(kind, node, path)
        if value is None:
            return Broken
        sort = scalars.sort(value)
        if sort is not ScalarSort.INTEGER and (kind.name == "integer" or sort is not ScalarSort.NUMBER):
            return self.mistakes.wrong_type(kind, value, path)
        found = int(value.text) if kind.name == "integer" and len(value.text) <= DIGITS else float(value.text)
        low = kind.low is not None and (found < kind.low or (kind.open_low and found == kind.low))
        if low or found > (10**DIGITS if kind.high is None else kind.high):
            message = f"{path} expects {kind.expected}, got {shown(value.text).strip('`')}"
            return self.mistakes.fail(Code.OUT_OF_RANGE, value, path, message)
        return found

    def _boolean(self, kind: ValueKind, node: Node, path: str) -> object:
        value = self._scalar(kind, node, path)
        if value is None:
            return Broken
        truth = scalars.sort(value) is ScalarSort.BOOLEAN
        return scalars.boolean(value.text) if truth else self.mistakes.wrong_type(kind, value, path)

    def _text(self, kind: ValueKind, node: Node, path: str) -> object:
        value = self._scalar(kind, node, path)
        if value is None:
            return Broken
        if scalars.sort(value) is not ScalarSort.TEXT and not value.note:
            return self.mistakes.wrong_type(kind, value, path)
        if not value.text or (kind.pattern and not re.fullmatch(kind.pattern, value.text)):
            got = shown(value.text) if value.text else "empty text"
            return self.mistakes.fail(Code.BAD_NAME, value, path, f"{path} expects {kind.expected}, got {got}")
        return value.text

    def _choice(self, kind: ValueKind, node: Node, path: str) -> object:
        value = self._scalar(kind, node, path)
        if value is None:
            return Broken
        text = dict(kind.aliases).get(value.text, value.text)
        if text in kind.choices:
            return text
        near = nearest(value.text, kind.choices)
        fix = f"did you mean `{near}`?" if near else f"known are {listing(kind.choices, 'and')}"
        message = f"{path} expects {kind.expected}, got {shown(value.text)}"
        return self.mistakes.fail(Code.BAD_CHOICE, value, path, message, "" if len(kind.choices) == 1 else fix)

    def _quantity(self, kind: ValueKind, node: Node, path: str) -> object:
        value = self._scalar(kind, node, path)
        if value is None:
            return Broken
        try:
            return PARSERS[kind.name](value.text)
        except units.UnitError as error:
            doubt = scalars.doubt(value.text)
            clock = doubt is not None and kind.name == "duration" and ":" in value.text
            fix = f"write {scalars.rewritten(doubt, value.text)}" if doubt is not None and clock else error.fix
            message = f"{path} expects {kind.expected}: {error}"
            return self.mistakes.fail(Code.BAD_UNIT, value, path, message, fix)

    def _flag(self, kind: ValueKind, node: Node, path: str) -> object:
        if isinstance(node, List):
            if any(isinstance(item, List) for item in node.items):
                return self.mistakes.wrong_type(kind, node, path, "a list in a list")
            items = [self._flag(kind, item, path) for item in node.items]
            return Broken if Broken in items else tuple(items)
        value = self._scalar(kind, node, path)
        if value is None:
            return Broken
        sort = scalars.sort(value) if len(value.text) <= DIGITS else ScalarSort.TEXT
        if sort is ScalarSort.BOOLEAN:
            return scalars.boolean(value.text)
        return {ScalarSort.INTEGER: int, ScalarSort.NUMBER: float}.get(sort, str)(value.text)

    def _variable(self, kind: ValueKind, node: Node, path: str) -> object:
        value = self._scalar(kind, node, path)
        if value is None:
            return Broken
        truth = scalars.sort(value) is ScalarSort.BOOLEAN and not value.note
        return self.mistakes.wrong_type(kind, value, path) if truth else value.text


def _entries(node: Map) -> list[tuple[str, KeyValue]]:
    """The entries that are not `x-` extensions."""
    return [(name, entry) for name, entry in node.entries.items() if not name.startswith("x-")]


class Broken:
    """Stands for a value that was reported; its key is treated as left out."""


class Mistakes:
    """Reports mistakes and remembers the key paths that have one. `over` is what the current value replaced."""

    def __init__(self, report: ProblemReport) -> None:
        self.paths: set[str] = set()
        self.over: SourceSpan | None = None
        self._report = report

    def fail(self, code: Code, node: Node, path: str, message: str, fix: str = "") -> type[Broken]:
        self.paths.add(path)
        marks: list[Mark] = [(node.span, node.note if isinstance(node, Scalar) else "")]
        if self.over is not None:
            marks.append((self.over, "the value it replaces"))
        self._report.add(code, message, marks, fix)
        return Broken

    def wrong_type(self, kind: ValueKind, node: Node, path: str, got: str = "") -> type[Broken]:
        message = f"{path} expects {kind.expected}, got {got or _kind_in_words(node)}"
        return self.fail(Code.WRONG_TYPE, node, path, message, _retype(kind, node))

    def unknown_key(self, name: str, entry: KeyValue, path: str, names: list[str]) -> str:
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

    def missing_key(self, key: Key, path: str, table: str, place: SourceSpan) -> None:
        self.paths.add(path)
        sole = key.kind.name == "choice" and len(key.kind.choices) == 1
        fix = f"write `{key.name}: {key.kind.choices[0]}`" if sole else f"write `{key.name}: …`, {key.doc}"
        message = f"{table or 'a topology'} needs the key `{key.name}`"
        self._report.add(Code.MISSING_KEY, message, [(place, f"`{key.name}` is missing")], fix)

    def bad_key(self, name: str, entry: KeyValue, path: str, kind: ValueKind) -> None:
        self.paths.add(f"{path}.{name}")
        message = f"a key of {path} expects {kind.expected}, got {shown(name)}"
        self._report.add(Code.BAD_NAME, message, [(entry.key, "")])

    def ambiguous(self, kind: ValueKind, node: Scalar, path: str, doubt: scalars.YamlDoubt) -> type[Broken]:
        means, quoted = scalars.rewritten(doubt, node.text), f'"{node.text}"'
        fix = (
            f"write {means} or {quoted}"
            if kind.name == "flag"
            else f"write {quoted if kind.name in TEXTUAL else means}"
        )
        message = f"{path} expects {kind.expected}: `{node.text}` {scalars.explain_doubt(doubt, node.text)}"
        return self.fail(Code.AMBIGUOUS_VALUE, node, path, message, fix)

    def expand(self, node: Scalar, path: str, environ: Mapping[str, str]) -> Scalar | None:
        """The value with every `${…}` filled in; None after reporting the ones that cannot be."""
        expanded = expand(node.text, environ)
        span = node.span
        for fault in expanded.faults:
            at = span.lines[span.line - 1].find(fault.fragment, span.column - 1) + 1
            place = SourceSpan(span.file, span.line, at, at + len(fault.fragment), span.lines) if at else span
            self._report.add(fault.code, fault.message, [(place, "")], fault.help)
        if expanded.faults:
            self.paths.add(path)
            return None
        filled = expanded.text != node.text.replace("$$", "$")
        became = shown(expanded.text) if expanded.text else "empty"
        return node._replace(text=expanded.text, note=f"this became {became}" if filled else "")


def _homes(kind: ValueKind, name: str, path: str) -> list[str]:
    """Where in the schema a key of this name lives."""
    found = [path] if path and any(key.name == name for key in kind.keys) else []
    for key in kind.keys:
        found += _homes(key.kind, name, f"{path}.{key.name}" if path else key.name)
    return found


def _kind_in_words(node: Node) -> str:
    if not isinstance(node, Scalar):
        return shape(node)
    if node.blank or node.null:
        return "nothing"
    if not node.text:
        return "empty text"
    return f"the text {shown(node.text)}" if scalars.sort(node) is ScalarSort.TEXT else node.text


def _retype(kind: ValueKind, node: Node) -> str:
    """How to write the value so that it is accepted, where that is obvious."""
    if kind.name == "table":
        return f"its keys are {listing((key.name for key in kind.keys), 'and')}" if len(kind.keys) <= LISTED else ""
    if not isinstance(node, Scalar):
        inner = {"map": "write `name: value` lines", "list": "write [one, two]", "either": ""}
        inner["text"] = "write a single value, in quotes if it has a colon"
        return inner.get(kind.name, "write a single value")
    if node.blank or node.null:
        return "write a value, or remove the key" + (' (empty text is "")' if kind.name == "variable" else "")
    bare = Scalar(node.span, node.text)
    if kind.name in ("integer", "number", "boolean") and not node.plain and scalars.sort(bare) is not ScalarSort.TEXT:
        return f"remove the quotes: {node.text}"
    if kind.name in ("text", "variable") and node.plain:
        return f'put it in quotes: "{node.text}"'
    return f"write [{node.text}]" if kind.name == "list" else ""
