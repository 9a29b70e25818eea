"""Read YAML of any shape leniently: maps and lists with line numbers; anchors and merges are followed once each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml
from yaml.events import CollectionEndEvent, CollectionStartEvent
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from pdctl.engines import numerals
from pdctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from yaml._yaml import Mark as CMark

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
DEEPEST = 100  # maximum nesting of collections
MERGES = 16  # maps merged into maps; deeper is a mistake


def documents(text: str, file: str) -> Iterator[Node]:
    """Every document that is not empty. Raise TopologyError with the place of the error if the text is not YAML."""
    try:
        _measure(text, file)
        for node in yaml.compose_all(text, Loader=LOADER):
            if node is not None:
                yield node
    except yaml.YAMLError as error:
        from pdctl.topology.yaml_parser import unreadable  # imported late: needed only for an error

        hint = "render the template first: helm template … | pdctl doctor -" if "{{" in text else ""
        raise unreadable(file, text, error, hint) from None


def _measure(text: str, file: str) -> None:
    """Raise UsageError for text nested too deep, on which older parsers' C code would recurse without a limit."""
    depth = 0
    try:
        for event in yaml.parse(text, Loader=LOADER):
            depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
            if depth > DEEPEST:
                raise _too_deep(file, event.start_mark)
    except yaml.MarkedYAMLError as error:
        from pdctl.topology.yaml_parser import PARSERS_DEPTH  # imported late: needed only for an error

        if PARSERS_DEPTH in (error.problem or ""):
            raise _too_deep(file, error.problem_mark) from None
        raise


def _too_deep(file: str, mark: yaml.Mark | CMark | None) -> UsageError:
    line = mark.line + 1 if mark is not None else 1
    return UsageError(f"{file}:{line}: nested more than {DEEPEST} deep", "no manifest is: is this the right file?")


def get(node: Node | None, *path: str) -> Node | None:
    """The value under a path of keys, including merged maps (`<<`); None if there is none."""
    for key in path:
        node = _value(node, key, 0)
        if node is None:
            return None
    return node


def pairs(node: Node | None) -> Iterator[tuple[str, Node]]:
    """Keys and values of a map; nothing for any other node. A key's own value comes before a merged one."""
    yield from _pairs(node, 0)


def items(node: Node | None) -> tuple[Node, ...]:
    return tuple(node.value) if isinstance(node, SequenceNode) else ()


def text(node: Node | None) -> str | None:
    """A scalar's text; None for an explicit null or for any other node."""
    if not isinstance(node, ScalarNode):
        return None
    value = str(node.value)
    return None if node.tag == "tag:yaml.org,2002:null" else value


def number(node: Node | None) -> int | None:
    return numerals.whole(text(node))


def line(node: Node | None) -> int:
    """The line of a node, counted from 1; 0 for None."""
    return 0 if node is None else int(node.start_mark.line) + 1


def first_line(node: Node) -> int:
    """The line on which a scalar's text begins: for a block scalar, the line after its `|`."""
    return line(node) + (getattr(node, "style", None) in ("|", ">"))


def labels(node: Node | None) -> dict[str, str]:
    return {name: said for name, value in pairs(node) if (said := text(value)) is not None}


def _pairs(node: Node | None, depth: int) -> Iterator[tuple[str, Node]]:
    if not isinstance(node, MappingNode) or depth > MERGES:
        return
    merged: list[Node] = []
    for key, value in node.value:
        if not isinstance(key, ScalarNode):
            continue
        if key.value == "<<":
            merged += value.value if isinstance(value, SequenceNode) else [value]
        else:
            yield str(key.value), value
    for each in merged:
        yield from _pairs(each, depth + 1)


def _value(node: Node | None, key: str, depth: int) -> Node | None:
    return next((value for name, value in _pairs(node, depth) if name == key), None)
