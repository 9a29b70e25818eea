"""Later files over earlier ones (maps merge, everything else replaces), and `--set path=value` as one more file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pdctl.topology.diagnostic import Code, ProblemReport, shown
from pdctl.topology.yaml_parser import KeyValue, List, Map, Node, Scalar, YamlText, parse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.topology.model import SourceSpan

SET = "--set"

_SEGMENT = re.compile(r'"([^"]+)"|([^."=\[\]\s]+)')


def merge(base: Map, over: Map) -> Map:
    """`over` on top of `base`. A value of another shape replaces too, and remembers what it replaced."""
    entries = dict(base.entries)
    for name, new in over.entries.items():
        old = entries.get(name)
        if old is None:
            entries[name] = new
        elif isinstance(old.value, Map) and isinstance(new.value, Map):
            entries[name] = KeyValue(new.key, merge(old.value, new.value))
        else:
            replaced = None if type(old.value) is type(new.value) else old.key
            entries[name] = KeyValue(new.key, new.value, replaced)
    return Map(base.span, entries)


def assignments(sets: Sequence[str], report: ProblemReport) -> list[Map]:
    """One map per `--set`. They share one source, a line each, so that `--set:2:7` is column 7 of the second."""
    if sets:
        report.reading(SET)
    source = YamlText(SET, tuple(text.replace("\n", " ") for text in sets))
    found = (_assignment(source, number, report) for number in range(len(sets)))
    return [each for each in found if each is not None]


def _assignment(source: YamlText, number: int, report: ProblemReport) -> Map | None:
    text = source.lines[number]
    keys: list[tuple[str, SourceSpan]] = []
    at = 0
    while match := _SEGMENT.match(text, at):
        keys.append((match[1] or match[2], source.span(number, match.start(), match.end())))
        at = match.end() + 1
        if text[match.end() : at] != ".":
            break
    if not keys or text[at - 1 : at] != "=":
        _malformed(source, number, max(at - 1, 0), report)
        return None
    value = _value(source, number, at, report)
    if value is None:
        return None
    for name, span in reversed(keys):
        blank = isinstance(value, Scalar) and value.blank
        value = Map(span, {name: KeyValue(span, value._replace(span=span) if blank else value)})
    return value if isinstance(value, Map) else None


def _malformed(source: YamlText, number: int, at: int, report: ProblemReport) -> None:
    text = source.lines[number]
    fix = "write path=value, such as roles.prefill.instances=2"
    if text[at : at + 1] == "[":
        fix = "items of a list have no path: set the whole list, such as transfer.ib-devices=[mlx5_0, mlx5_1]"
    elif "=" in text:
        fix += '; a key with dots or spaces goes in quotes: pools.h100.labels."a.b/c"=d'
    mark = (source.span(number, min(at, len(text)), at + 1), "")
    report.add(Code.BAD_SET, f"{shown(text)} is not a path and a value", [mark], fix)


def _value(source: YamlText, number: int, at: int, report: ProblemReport) -> Node | None:
    """The text behind the `=`, read as YAML, with its marks moved to where it stands in the `--set`."""
    text = source.lines[number]
    inner = ProblemReport()
    # Spaces in front would count as indentation; a list or map is in flow style here and does not care.
    node = parse(YamlText.of(SET, text[at:]), inner)
    for found in inner.listed():
        marks = tuple((_moved(span, source, number, at), label) for span, label in found.spans)
        report.add(found.code, found.message, marks, found.help)
    if inner:
        return None
    if node is None:
        return Scalar(source.span(number, at, at), "")
    return _placed(node, source, number, at)


def _moved(span: SourceSpan, source: YamlText, number: int, by: int) -> SourceSpan:
    return source.span(number, span.column - 1 + by, span.end_column - 1 + by)


def _placed(node: Node, source: YamlText, number: int, by: int) -> Node:
    span = _moved(node.span, source, number, by)
    if isinstance(node, Scalar):
        return node._replace(span=span)
    if isinstance(node, List):
        return List(span, tuple(_placed(item, source, number, by) for item in node.items))
    entries = {
        name: KeyValue(_moved(entry.key, source, number, by), _placed(entry.value, source, number, by))
        for name, entry in node.entries.items()
    }
    return Map(span, entries)
