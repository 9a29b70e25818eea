"""YAML with the line and column of every key and value, and YAML's errors reworded so that one can act on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import yaml
from yaml.events import (
    AliasEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    StreamEndEvent,
)
from yaml.reader import ReaderError

from pdctl.quick_definitions import NamedTuple, compile_late
from pdctl.topology.diagnostic import Code, ProblemReport, shown
from pdctl.topology.model import SourceSpan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from yaml import MarkedYAMLError
    from yaml._yaml import Mark as CMark

    from pdctl.errors import TopologyError

    Mark = yaml.Mark | CMark

BREAKS = ("\r\n", "\r", "\x85", "\u2028", "\u2029")  # libyaml's line breaks besides \n, so that its line numbers hold
SUFFIXES = (".yaml", ".yml")
MAX_DEPTH = 32
PARSERS_DEPTH = "exceeded maximum nesting depth"  # libyaml, from PyYAML 6.0.4 on: past 1,000 levels, before any event
MAX_NODES = 20_000  # after expanding every alias, which is what an alias bomb multiplies
_PROPERTIES = compile_late(r"(?:[&!]\S*\s+)+")  # an anchor or tag in front of a value


class YamlText(NamedTuple):
    """A text and what to call it: a path, `<stdin>` or `--set`."""

    name: str
    lines: tuple[str, ...]

    @classmethod
    def of(cls, name: str, text: str) -> YamlText:
        for line_break in BREAKS:
            text = text.replace(line_break, "\n")
        return cls(name, tuple(text.split("\n")))

    def span(self, line: int, column: int, end_column: int) -> SourceSpan:
        """All 0-based here; clamped to the text, so that a mark at the end of the file points at its last line."""
        line = min(line, len(self.lines) - 1)
        return SourceSpan(self.name, line + 1, column + 1, max(end_column, column) + 1, self.lines)


class Scalar(NamedTuple):
    """`plain` is unquoted and untagged; `note` tells what `${…}` made of the text."""

    span: SourceSpan
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
    span: SourceSpan
    items: tuple[Node, ...]


class KeyValue(NamedTuple):
    """`over` is the place of an earlier value of another shape that this one replaced."""

    key: SourceSpan
    value: Node
    over: SourceSpan | None = None


class Map(NamedTuple):
    span: SourceSpan
    entries: dict[str, KeyValue]


Node = Scalar | List | Map


def shape(node: Node) -> str:
    """What a person would call the node."""
    if isinstance(node, Scalar):
        return "a single value"
    return "a list" if isinstance(node, List) else "a map"


def parse(source: YamlText, report: ProblemReport) -> Node | None:
    """The document of a source; None when there is none to work with. Problems go to the report."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Builder(source, report).document(yaml.parse("\n".join(source.lines), Loader=loader))
    except ReaderError as error:
        _odd_character(source, report, error)
    except yaml.MarkedYAMLError as error:
        explain_syntax_error(error, source, report)
    except _StopError:
        pass
    return None


def unreadable(name: str, text: str, error: yaml.YAMLError, fix: str = "") -> TopologyError:
    """The YAML syntax error in a text that need not be a topology."""
    source, report = YamlText.of(name, text), ProblemReport()
    if isinstance(error, ReaderError):
        _odd_character(source, report, error)
    elif isinstance(error, yaml.MarkedYAMLError):
        explain_syntax_error(error, source, report)
    else:
        report.add(Code.YAML_SYNTAX, f"{name}: {str(error).splitlines()[0]}")
    return report.refusal(name, fix)


def _odd_character(source: YamlText, report: ProblemReport, error: ReaderError) -> None:
    for number, line in enumerate(source.lines):
        for column, letter in enumerate(line):
            if ord(letter) == error.character:
                mark = (source.span(number, column, column + 1), "")
                what = f"the control character U+{ord(letter):04X} may not stand in YAML"
                report.add(Code.YAML_SYNTAX, what, [mark], "delete it")
                return
    report.add(Code.YAML_SYNTAX, f"{source.name} holds a character that may not stand in YAML ({error.reason})")


class _StopError(Exception):
    """The rest of the document cannot be read; the reason is in the report."""


class _Builder:
    def __init__(self, source: YamlText, report: ProblemReport) -> None:
        self._source = source
        self._report = report
        self._anchors: dict[str, tuple[Node, int]] = {}  # with the number of nodes a use of it adds
        self._open: set[str] = set()
        self._nodes = 0

    def document(self, events: Iterator[Event]) -> Node | None:
        self._events = events
        next(events)  # StreamStart
        if isinstance(next(events), StreamEndEvent):
            return None
        node = self._node(next(events), 0)
        next(events)  # DocumentEnd
        extra = next(events)
        if isinstance(extra, DocumentStartEvent):
            mark = (self._at(extra, extra), "a second document begins here")
            what = f"a {self._report.subject} is one document"
            self._report.add(Code.MANY_DOCUMENTS, what, [mark], "keep one of them in this file")
        return node

    def _at(self, start: Event, end: Event) -> SourceSpan:
        """From the start of one event to the end of another, or of the line where they are on different lines."""
        line, column = _place(start.start_mark)
        text = self._source.lines[min(line, len(self._source.lines) - 1)]
        properties = _PROPERTIES.match(text, column)
        column = properties.end() if properties else column
        last_line, last_column = _place(end.end_mark)
        return self._source.span(line, column, last_column if last_line == line else len(text.rstrip()))

    def _node(self, event: Event, depth: int) -> Node:
        self._nodes += 1
        if isinstance(event, AliasEvent):
            return self._alias(event)
        if depth > MAX_DEPTH:
            _too_deep(self._at(event, event), self._report)
            raise _StopError
        self._count(event)
        before, anchor = self._nodes, event.anchor if isinstance(event, NodeEvent) else None
        if anchor:
            self._open.add(anchor)
        node = self._value(event, depth)
        if anchor:
            self._open.discard(anchor)
            self._anchors[anchor] = (node, self._nodes - before)
        return node

    def _count(self, event: Event) -> None:
        if self._nodes > MAX_NODES:
            message = f"more than {MAX_NODES:,} values, counting every use of an anchor"
            why = f"a {self._report.subject} of this size is a mistake or an attack"
            self._stop(Code.TOO_MANY_NODES, event, message, why)

    def _alias(self, event: AliasEvent) -> Node:
        name = str(event.anchor)
        if name in self._open:
            self._stop(Code.BAD_ALIAS, event, f"`*{name}` stands inside its own anchor", "give the inner value a name")
        if name not in self._anchors:
            self._stop(Code.BAD_ALIAS, event, f"no anchor `&{name}` comes before this", "define it above its first use")
        node, weight = self._anchors[name]
        self._nodes += weight
        self._count(event)
        return node

    def _value(self, event: Event, depth: int) -> Node:
        if isinstance(event, ScalarEvent):
            return self._scalar(event)
        if isinstance(event, CollectionStartEvent) and event.tag not in (None, "!"):
            self._tag(event, str(event.tag))
        if isinstance(event, MappingStartEvent):
            return self._map(event, depth)
        items = []
        while not isinstance(inner := next(self._events), SequenceEndEvent):
            items.append(self._node(inner, depth + 1))
        return List(self._at(event, inner), tuple(items))

    def _scalar(self, event: ScalarEvent) -> Scalar:
        as_text = event.tag in ("!", "tag:yaml.org,2002:str")
        if event.tag and not as_text:
            self._tag(event, str(event.tag))
        return Scalar(self._at(event, event), event.value, plain=not event.style and not as_text)

    def _tag(self, event: Event, tag: str) -> None:
        line, column = _place(event.start_mark)
        mark = (self._source.span(line, column, column + 1), "")
        message = f"the YAML tag {shown(tag)} is not read"
        self._report.add(Code.BAD_TAG, message, [mark], "remove it; quote the value if it is meant as text")

    def _map(self, event: Event, depth: int) -> Map:
        entries: dict[str, KeyValue] = {}
        merged: list[Map] = []
        while not isinstance(inner := next(self._events), MappingEndEvent):
            key = self._node(inner, depth + 1)
            value = self._node(next(self._events), depth + 1)
            if not isinstance(key, Scalar) or not key.text:
                message = f"a key is text, this is {shape(key) if not isinstance(key, Scalar) else 'empty'}"
                self._report.add(Code.BAD_KEY, message, [(key.span, "")], "write `key: value`")
            elif key.plain and key.text == "<<":
                merged += self._merge(key, value)
            elif key.text in entries:
                self._twice(key, entries[key.text])
            else:
                # A blank value has no place of its own: point at its key.
                blank = isinstance(value, Scalar) and value.blank
                entries[key.text] = KeyValue(key.span, value._replace(span=key.span) if blank else value)
        for other in merged:  # the map's own keys win, then the first map merged
            for name, entry in other.entries.items():
                entries.setdefault(name, entry)
        return Map(self._at(event, inner), entries)

    def _merge(self, key: Scalar, value: Node) -> list[Map]:
        items = value.items if isinstance(value, List) else (value,)
        wrong = next((item for item in items if not isinstance(item, Map)), None)
        if wrong is not None:
            marks = [(key.span, ""), (wrong.span, f"this is {shape(wrong)}")]
            self._report.add(Code.BAD_MERGE, "`<<` merges maps only", marks, "write `<<: *anchor`, the anchor of a map")
        return [item for item in items if isinstance(item, Map)]

    def _twice(self, key: Scalar, first: KeyValue) -> None:
        marks = [(key.span, "written again here"), (first.key, "first written here")]
        message = f"the key {shown(key.text)} is written twice"
        self._report.add(Code.DUPLICATE_KEY, message, marks, "keep one of the two")

    def _stop(self, code: Code, event: Event, message: str, fix: str) -> NoReturn:
        self._report.add(code, message, [(self._at(event, event), "")], fix)
        raise _StopError


def _too_deep(place: SourceSpan, report: ProblemReport) -> None:
    why = f"no key of a {report.subject} lies so deep"
    report.add(Code.TOO_DEEP, f"nested more than {MAX_DEPTH} deep", [(place, "")], why)


def _place(mark: Mark | None) -> tuple[int, int]:
    return (mark.line, mark.column) if mark is not None else (0, 0)


class Complaint(NamedTuple):
    """`words` occur in the problem as libyaml or PyYAML's own parser puts it; `opened` labels where it began."""

    words: tuple[str, ...]
    message: str
    help: str
    opened: str = ""  # where the parser was: for something left open, the place to look at
    left_open: bool = False


COMPLAINTS = (
    Complaint(
        ("mapping values are not allowed",),
        "a `:` where no key can stand",
        "line the key up with its neighbours, or quote the text if it holds `: `",
    ),
    Complaint(
        ("expected ',' or ']'",),
        "the list is not closed",
        "close it with `]`, or put a comma between the items",
        "still open here",
        left_open=True,
    ),
    Complaint(
        ("expected ',' or '}'",),
        "the map is not closed",
        "close it with `}`, or put a comma between the keys; text with `{`, `}` or `,` in it needs quotes",
        "still open here",
        left_open=True,
    ),
    Complaint(
        ("expected node content",),
        "a value is missing, or a bracket is not closed",
        "write the value, or close the bracket",
        "nothing here",
        left_open=True,
    ),
    Complaint(
        ("did not find expected key", "<block mapping", "but found '<scalar>'"),
        "this line's indentation fits no line above",
        "indent it as much as the other keys of its map",
        "the map begins here",
    ),
    Complaint(
        ("expected '-' indicator", "but found '?'"),
        "a key among the items of a list",
        "begin it with `- `, or indent it to belong elsewhere",
        "the list begins here",
    ),
    Complaint(("sequence entries are not allowed",), "a list item cannot begin here", "put `- ` on a line of its own"),
    Complaint(("could not find expected ':'",), "a key without a `:`", "write `key: value`"),
    Complaint(("unknown escape",), "no such escape in double quotes", "double the backslash, or use single quotes"),
    Complaint(("unexpected end of stream",), "the quote is not closed", "close it", "still open here", left_open=True),
)


def explain_syntax_error(error: MarkedYAMLError, source: YamlText, report: ProblemReport) -> None:
    """Report one syntax error; the parser stops at the first."""
    problem = error.problem or "not YAML"
    mark = error.problem_mark or error.context_mark
    if mark is None:
        report.add(Code.YAML_SYNTAX, f"{source.name}: {problem}")
        return
    last = len(source.lines) - 1
    line, column = (mark.line, mark.column) if mark.line <= last else (last, len(source.lines[last]))
    here = source.span(line, column, column + 1)
    if PARSERS_DEPTH in problem:
        _too_deep(here, report)
        return
    text = source.lines[line]
    if text[column : column + 1] == "\t" and not text[:column].strip():
        report.add(Code.TAB_INDENT, "a tab in the indentation", [(here, "tab")], "indent with spaces")
        return
    if text[max(column - 1, 0) : column + 1] == "${":
        place = source.span(line, column - 1, column + 1)
        report.add(Code.YAML_SYNTAX, "`${…}` inside `{}` or `[]` without quotes", [(place, "")], 'write "${…}"')
        return
    if "cannot start any token" in problem:
        letter = shown(text[column : column + 1])
        report.add(Code.YAML_SYNTAX, f"a value cannot begin with {letter}", [(here, "")], "quote the value")
        return
    known = next((row for row in COMPLAINTS if any(word in problem for word in row.words)), Complaint((), problem, ""))
    marks = [(here, "")]
    if known.opened and error.context_mark is not None:
        begun = source.span(error.context_mark.line, error.context_mark.column, error.context_mark.column + 1)
        marks = [(begun, ""), (here, known.opened)] if known.left_open else [(here, ""), (begun, known.opened)]
    report.add(Code.YAML_SYNTAX, known.message, marks, known.help)
