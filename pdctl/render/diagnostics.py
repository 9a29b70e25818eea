"""What is wrong with a file: topology problems in the style of ruff (text, JSON), and the notes of an import."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.imports.found import Sort
from pdctl.render.term import as_json, cells
from pdctl.topology.diagnostic import Diagnostic, Mark

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.errors import TopologyError
    from pdctl.imports.found import Note
    from pdctl.render.term import Term

SCHEMA = "pdctl.diagnostics/1"
LIMIT = 20  # problems shown as text; JSON has them all
CONTEXT = 2  # lines around a marked one
WIDEST = 160  # columns of a source line; longer lines are cut around the mark
COLORS = {Sort.SUSPECT: "red", Sort.LEFT_OUT: "yellow", Sort.CHANGED: "cyan", Sort.ASSUMED: "blue"}


def of(error: TopologyError) -> tuple[Diagnostic, ...]:
    """The typed problems that an error carries."""
    return tuple(found for found in error.diagnostics if isinstance(found, Diagnostic))


def show(found: Sequence[Diagnostic], term: Term) -> None:
    """Write the first problems, and how many more there are."""
    for problem in found[:LIMIT]:
        for line in _problem(problem, term):
            term.write(line.rstrip())
        term.write()
    if len(found) > LIMIT:
        term.write(f"{term.symbol('…', '...')} {len(found) - LIMIT} more\n")


def to_json(found: Sequence[Diagnostic]) -> str:
    """One document; columns are 1-based and count characters, `end_column` is exclusive."""
    rows = [
        {
            "code": problem.code.value,
            "message": problem.message,
            "help": problem.help,
            "spans": [
                {
                    "file": span.file,
                    "line": span.line,
                    "column": span.column,
                    "end_column": span.end_column,
                    "label": label,
                }
                for span, label in problem.spans
            ],
        }
        for problem in found
    ]
    return as_json({"schema": SCHEMA, "diagnostics": rows})


def _problem(problem: Diagnostic, term: Term) -> list[str]:
    lines = [f"{term.style(problem.code.value, 'red', 'bold')}: {term.style(problem.message, 'bold')}"]
    gutter = max((len(str(span.line + CONTEXT)) for span, _ in problem.spans), default=1)
    for index, file in enumerate(dict.fromkeys(span.file for span, _ in problem.spans)):
        marks = [mark for mark in problem.spans if mark[0].file == file]
        first = marks[0][0]
        arrow = "-->" if index == 0 else ":::"
        lines.append(f"{' ' * gutter}{term.style(arrow, 'blue', 'bold')} {file}:{first.line}:{first.column}")
        lines += _excerpt(marks, problem.spans[0], gutter, term)
    if problem.help:
        lines.append(f"{term.style('help', 'cyan', 'bold')}: {problem.help}")
    return lines


def _excerpt(marks: Sequence[Mark], primary: Mark, gutter: int, term: Term) -> list[str]:
    """The marked lines of one file with their neighbours, with carets under each."""
    source = marks[0][0].lines
    wanted = sorted(
        {
            number
            for span, _ in marks
            for number in range(span.line - CONTEXT, span.line + CONTEXT + 1)
            if 1 <= number <= len(source)
        }
    )
    marked = {span.line for span, _ in marks}
    while wanted and wanted[0] not in marked and not source[wanted[0] - 1].strip():
        wanted.pop(0)
    while wanted and wanted[-1] not in marked and not source[wanted[-1] - 1].strip():
        wanted.pop()
    bar = term.style("|", "blue", "bold")
    lines = [f"{' ' * gutter} {bar}"]
    before = None
    for number in wanted:
        if before is not None and number > before + 1:
            lines.append(term.style("...", "blue", "bold"))
        before = number
        here = [mark for mark in marks if mark[0].line == number]
        start = _start(source[number - 1], here)
        shown = _clip(source[number - 1], start)
        lines.append(f"{term.style(f'{number:>{gutter}}', 'blue', 'bold')} {bar} {shown}")
        ordered = sorted(here, key=lambda mark: mark is not primary)
        lines += [
            f"{' ' * gutter} {bar} {_underline(mark, source[number - 1], start, mark is primary, term)}"
            for mark in ordered
        ]
    return [*lines, f"{' ' * gutter} {bar}"]


def _start(line: str, marks: Sequence[Mark]) -> int:
    """Index from which to show a line that is too long: a little before its first mark."""
    if len(line) <= WIDEST or not marks:
        return 0
    return max(0, min(span.column for span, _ in marks) - 40)


def _clip(line: str, start: int) -> str:
    cut = _printable(line[start : start + WIDEST])
    return ("…" if start else "") + cut + ("…" if len(line) > start + WIDEST else "")


def _underline(mark: Mark, line: str, start: int, primary: bool, term: Term) -> str:
    span, label = mark
    lead = cells(("…" if start else "") + _printable(line[start : span.column - 1]))
    stretch = max(cells(_printable(line[span.column - 1 : min(span.end_column - 1, start + WIDEST)])), 1)
    sign, colour = ("^", "red") if primary else ("-", "blue")
    return " " * lead + term.style(f"{sign * stretch} {label}".rstrip(), colour, "bold")


def _printable(text: str) -> str:
    """`text` with tabs as spaces, and control characters as replacement characters."""
    return _replaced(text.replace("\t", "    "))


def _replaced(text: str) -> str:
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def show_notes(notes: Sequence[Note], summary: str, file: str, term: Term) -> None:
    """Write one line per note, as compilers do: place, sort, text."""
    for note in notes:
        place = f"{note.place}: " if note.place else ""
        term.write(f"{place}{term.style(note.sort.value, COLORS[note.sort], 'bold')}: {_replaced(note.text)}")
    counted = [f"{count} {sort.value}" for sort in Sort if (count := sum(note.sort is sort for note in notes))]
    whither = f" to {file}" if file else ""
    term.write(f"imported {summary}{whither}" + (f"; {', '.join(counted)}" if counted else ""))
