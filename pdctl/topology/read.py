"""From the YAML tree to plain values, by the schema table: every mistake reported, every default filled in."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pdctl.topology import scalars, units
from pdctl.topology.diagnostic import Code, listing, shown
from pdctl.topology.mistakes import TEXTUAL, Broken, Mistakes
from pdctl.topology.scalars import Sort
from pdctl.topology.schema import TOPOLOGY, Absent, Key, Kind, Required
from pdctl.topology.suggest import nearest
from pdctl.topology.tree import Entry, List, Map, Node, Scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pdctl.topology.diagnostic import Report
    from pdctl.topology.model import Span

Values = dict[str, Any]  # by key as written; the value types follow from the table

DIGITS = 18  # of a number; longer ones are a slip, and Python refuses to read the longest

PARSERS: Mapping[str, Callable[[str], float]] = {
    "size": units.parse_size,
    "rate": units.parse_rate,
    "duration": units.parse_duration,
}


def defaults(kind: Kind) -> Values:
    """The values of a table of which nothing was written."""
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


class Reader:
    """`spans` and `keys` say where each key path's value and key stand; `mistakes.paths` were reported."""

    def __init__(self, report: Report, environ: Mapping[str, str]) -> None:
        self.spans: dict[str, Span] = {}
        self.keys: dict[str, Span] = {}
        self.mistakes = Mistakes(report)
        self._environ = environ
        self._readers: dict[str, Callable[[Kind, Node, str], object]] = {
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

    def _table(self, kind: Kind, node: Node, path: str) -> object:
        if isinstance(node, Scalar) and (node.blank or node.null):
            node = Map(node.span, {})
        return self._keys(kind, node, path) if isinstance(node, Map) else self.mistakes.wrong_type(kind, node, path)

    def _keys(self, kind: Kind, node: Map, path: str) -> Values:
        names = [key.name for key in kind.keys]
        unknown = [(name, entry) for name, entry in _own(node) if name not in names]
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
                self.mistakes.paths.add(here)  # it is there, misspelt, and that was said
            elif key.default is Required:
                self.mistakes.missing_key(key, here, path, entry.key if entry else self.keys.get(path, node.span))
        return values

    def _map(self, kind: Kind, node: Node, path: str) -> object:
        if isinstance(node, Scalar) and (node.blank or node.null):
            return {}
        if not isinstance(node, Map) or kind.item is None:
            return self.mistakes.wrong_type(kind, node, path)
        values = {}
        for name, entry in _own(node):
            if isinstance(entry.value, Scalar) and entry.value.null:
                continue
            if kind.name_kind and not re.fullmatch(kind.name_kind.pattern, name):
                self.mistakes.bad_key(name, entry, path, kind.name_kind)
            value = self._entry(kind.item, entry, f"{path}.{name}")
            if value is not Broken:
                values[name] = value
        return values

    def _entry(self, kind: Kind, entry: Entry, path: str) -> object:
        self.keys[path] = entry.key
        self.spans[path] = entry.value.span
        before, self.mistakes.over = self.mistakes.over, entry.over
        value = self._readers[kind.name](kind, entry.value, path)
        self.mistakes.over = before
        return value

    def _list(self, kind: Kind, node: Node, path: str) -> object:
        if not isinstance(node, List) or kind.item is None:
            return self.mistakes.wrong_type(kind, node, path)
        read = self._readers[kind.item.name]
        items = [
            read(kind.item, item, self._item_path(kind.item, item, path, at)) for at, item in enumerate(node.items)
        ]
        return Broken if Broken in items else tuple(items)

    def _item_path(self, kind: Kind, item: Node, path: str, at: int) -> str:
        """A list of maps is told apart by number; a single value is found by its place."""
        if kind.name != "table":
            return path
        here = f"{path}[{at}]"
        self.keys[here] = self.spans[here] = item.span
        return here

    def _either(self, kind: Kind, node: Node, path: str) -> object:
        wanted = {Scalar: "choice", List: "list", Map: "table"}[type(node)]
        option = next((option for option in kind.options if option.name == wanted), None)
        if option is None or (isinstance(node, Scalar) and node.blank):
            return self.mistakes.wrong_type(kind, node, path)
        # A value that is no choice is told about all that could stand there.
        option = option._replace(expected=kind.expected) if wanted == "choice" else option
        return self._readers[option.name](option, node, path)

    # Single values.

    def _scalar(self, kind: Kind, node: Node, path: str) -> Scalar | None:
        """The value with `${…}` filled in; None after reporting that it is no single value, or an ambiguous one."""
        if not isinstance(node, Scalar) or node.blank or node.null:
            self.mistakes.wrong_type(kind, node, path)
            return None
        value = self.mistakes.expand(node, path, self._environ) if "$" in node.text else node
        if value is None or scalars.sort(value) is not Sort.DOUBTFUL or kind.name in PARSERS:
            return value
        doubt = scalars.doubt(value.text)
        if doubt is None or (value.note and kind.name in TEXTUAL):
            return value
        self.mistakes.ambiguous(kind, value, path, doubt)
        return None

    def _number(self, kind: Kind, node: Node, path: str) -> object:
        value = self._scalar(kind, node, path)
        if value is None:
            return Broken
        sort = scalars.sort(value)
        if sort is not Sort.INTEGER and (kind.name == "integer" or sort is not Sort.NUMBER):
            return self.mistakes.wrong_type(kind, value, path)
        found = int(value.text) if kind.name == "integer" and len(value.text) <= DIGITS else float(value.text)
        low = kind.low is not None and (found < kind.low or (kind.open_low and found == kind.low))
        if low or found > (10**DIGITS if kind.high is None else kind.high):
            message = f"{path} expects {kind.expected}, got {shown(value.text).strip('`')}"
            return self.mistakes.fail(Code.OUT_OF_RANGE, value, path, message)
        return found

    def _boolean(self, kind: Kind, node: Node, path: str) -> object:
        value = self._scalar(kind, node, path)
        if value is None:
            return Broken
        truth = scalars.sort(value) is Sort.BOOLEAN
        return scalars.boolean(value.text) if truth else self.mistakes.wrong_type(kind, value, path)

    def _text(self, kind: Kind, node: Node, path: str) -> object:
        value = self._scalar(kind, node, path)
        if value is None:
            return Broken
        if scalars.sort(value) is not Sort.TEXT and not value.note:
            return self.mistakes.wrong_type(kind, value, path)
        if not value.text or (kind.pattern and not re.fullmatch(kind.pattern, value.text)):
            got = shown(value.text) if value.text else "empty text"
            return self.mistakes.fail(Code.BAD_NAME, value, path, f"{path} expects {kind.expected}, got {got}")
        return value.text

    def _choice(self, kind: Kind, node: Node, path: str) -> object:
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

    def _quantity(self, kind: Kind, node: Node, path: str) -> object:
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

    def _flag(self, kind: Kind, node: Node, path: str) -> object:
        if isinstance(node, List):
            if any(isinstance(item, List) for item in node.items):
                return self.mistakes.wrong_type(kind, node, path, "a list in a list")
            items = [self._flag(kind, item, path) for item in node.items]
            return Broken if Broken in items else tuple(items)
        value = self._scalar(kind, node, path)
        if value is None:
            return Broken
        sort = scalars.sort(value) if len(value.text) <= DIGITS else Sort.TEXT
        if sort is Sort.BOOLEAN:
            return scalars.boolean(value.text)
        return {Sort.INTEGER: int, Sort.NUMBER: float}.get(sort, str)(value.text)

    def _variable(self, kind: Kind, node: Node, path: str) -> object:
        value = self._scalar(kind, node, path)
        if value is None:
            return Broken
        truth = scalars.sort(value) is Sort.BOOLEAN and not value.note
        return self.mistakes.wrong_type(kind, value, path) if truth else value.text


def _own(node: Map) -> list[tuple[str, Entry]]:
    """The entries that are not `x-` extensions."""
    return [(name, entry) for name, entry in node.entries.items() if not name.startswith("x-")]
