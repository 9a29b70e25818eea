"""A YAML document as values that know where they stand; nothing is interpreted yet."""

from __future__ import annotations

from typing import NamedTuple

from pdctl.topology.model import Span

BREAKS = ("\r\n", "\r", "\x85", "\u2028", "\u2029")  # libyaml's line breaks besides \n, so that its line numbers hold


class YamlText(NamedTuple):
    """A text and what to call it: a path, `<stdin>` or `--set`."""

    name: str
    lines: tuple[str, ...]

    @classmethod
    def of(cls, name: str, text: str) -> YamlText:
        for line_break in BREAKS:
            text = text.replace(line_break, "\n")
        return cls(name, tuple(text.split("\n")))

    def span(self, line: int, column: int, end_column: int) -> Span:
        """All 0-based here; clamped to the text, so that a mark at the end of the file points at its last line."""
        line = min(line, len(self.lines) - 1)
        return Span(self.name, line + 1, column + 1, max(end_column, column) + 1, self.lines)


class Scalar(NamedTuple):
    """`plain` is unquoted and untagged; `note` tells what `${…}` made of the text."""

    span: Span
    text: str
    plain: bool = True
    note: str = ""

    @property
    def blank(self) -> bool:
        """Nothing was written after the colon."""
        return self.plain and not self.text and not self.note

    @property
    def null(self) -> bool:
        """An explicit null: the key goes back to its default, whatever an earlier file said."""
        return self.plain and self.text in ("null", "~", "Null", "NULL")


class List(NamedTuple):
    span: Span
    items: tuple[Node, ...]


class KeyValue(NamedTuple):
    """`over` is the place of an earlier value of another shape that this one replaced."""

    key: Span
    value: Node
    over: Span | None = None


class Map(NamedTuple):
    span: Span
    entries: dict[str, KeyValue]


Node = Scalar | List | Map


def shape(node: Node) -> str:
    """What a person would call it."""
    if isinstance(node, Scalar):
        return "a single value"
    return "a list" if isinstance(node, List) else "a map"
