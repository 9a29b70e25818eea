"""YAML's own complaints, said so that the person can act on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pdctl.topology.diagnostic import Code, Report, shown

if TYPE_CHECKING:
    from yaml import MarkedYAMLError

    from pdctl.topology.tree import Source


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


def explain(error: MarkedYAMLError, source: Source, report: Report) -> None:
    """Report one syntax error; the parser stops at the first."""
    problem = error.problem or "not YAML"
    mark = error.problem_mark or error.context_mark
    if mark is None:
        report.add(Code.YAML_SYNTAX, f"{source.name}: {problem}")
        return
    last = len(source.lines) - 1
    line, column = (mark.line, mark.column) if mark.line <= last else (last, len(source.lines[last]))
    here = source.span(line, column, column + 1)
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
