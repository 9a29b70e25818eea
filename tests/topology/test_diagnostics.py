from __future__ import annotations

import io

import pytest

from pdctl.render import diagnostics
from pdctl.render.term import Term
from pdctl.topology.diagnostic import Code, Diagnostic, ProblemReport, listing, shown
from pdctl.topology.model import SourceSpan

LINES = ("version: pdctl/v1", "name: x", "", "router:", "  port: 1", "", "", "ports:", "  http: 1")


def span(line: int, column: int, end: int, file: str = "t.yaml", lines: tuple[str, ...] = LINES) -> SourceSpan:
    return SourceSpan(file, line, column, end, lines)


def text(*found: Diagnostic, color: bool = False, unicode: bool = True) -> str:
    stream = io.StringIO()
    term = Term(stream)
    term.color, term.unicode = color, unicode
    diagnostics.show(found, term)
    return stream.getvalue()


def test_two_places_of_one_file_share_an_excerpt() -> None:
    found = Diagnostic(Code.PORT_COLLISION, "two", ((span(9, 9, 10), "here"), (span(5, 9, 10), "and here")), "move")
    assert text(found).splitlines() == [
        "port-collision: two",
        "  --> t.yaml:9:9",
        "   |",
        " 4 | router:",
        " 5 |   port: 1",
        "   |         - and here",
        " 6 |",
        " 7 |",
        " 8 | ports:",
        " 9 |   http: 1",
        "   |         ^ here",
        "   |",
        "help: move",
        "",
    ]


def test_distant_places_are_parted_and_other_files_named() -> None:
    many = tuple(f"line {number}" for number in range(1, 20))
    marks = ((span(2, 1, 5, lines=many), "a"), (span(15, 1, 5, lines=many), "b"), (span(1, 1, 2, "o.yaml"), "c"))
    said = text(Diagnostic(Code.DP_SPLIT, "apart", marks))
    assert "\n...\n" in said
    assert " ::: o.yaml:1:1\n" in said


def test_a_tab_is_as_wide_in_the_line_as_under_it() -> None:
    found = Diagnostic(Code.TAB_INDENT, "tab", ((span(1, 3, 4, lines=("\ta: 1",)), ""),))
    lines = text(found).splitlines()
    assert lines[3:5] == ["1 |     a: 1", "  |      ^"]


def test_what_could_steer_a_terminal_is_not_printed() -> None:
    found = Diagnostic(Code.BAD_NAME, f"got {shown(chr(27) + '[2J')}", ((span(1, 1, 2, lines=("\x1b[2Ja",)), ""),))
    assert "\x1b" not in text(found)


def test_a_long_line_is_cut_on_both_sides_of_its_mark() -> None:
    line = "a" * 300 + "HERE" + "b" * 300
    lines = text(Diagnostic(Code.BAD_NAME, "long", ((span(1, 301, 305, lines=(line,)), ""),))).splitlines()
    shown_line, caret = lines[3].removeprefix("1 | "), lines[4].removeprefix("  | ")
    assert shown_line.startswith("…")
    assert shown_line.endswith("…")
    assert shown_line[caret.index("^") :].startswith("HERE")
    assert caret.count("^") == 4


def test_a_mark_behind_the_end_of_the_line_still_shows() -> None:
    assert "|        ^" in text(Diagnostic(Code.YAML_SYNTAX, "end", ((span(2, 8, 8), ""),)))


@pytest.mark.parametrize(("unicode", "rest"), [(True, "… 5 more"), (False, "... 5 more")])
def test_twenty_are_shown_and_the_rest_counted(unicode: bool, rest: str) -> None:
    found = [Diagnostic(Code.UNKNOWN_KEY, f"number {number}") for number in range(25)]
    said = text(*found, unicode=unicode)
    assert said.count("unknown-key") == 20
    assert said.endswith(f"{rest}\n\n")


def test_colour_marks_but_never_carries_the_meaning() -> None:
    import re

    found = Diagnostic(Code.UNKNOWN_KEY, "m", ((span(2, 1, 5), "label"),), "h")
    coloured = text(found, color=True)
    assert "\x1b[31;1m^^^^ label" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == text(found)


def test_json_has_every_problem() -> None:
    import json

    found = [Diagnostic(Code.UNKNOWN_KEY, f"é {number}") for number in range(25)]
    document = json.loads(diagnostics.to_json(found))
    assert document["schema"] == "pdctl.diagnostics/1"
    assert [row["message"] for row in document["diagnostics"]] == [f"é {number}" for number in range(25)]


def test_a_report_keeps_each_problem_once_and_in_reading_order() -> None:
    report = ProblemReport()
    report.reading("b.yaml")
    report.reading("a.yaml")
    for file, line in (("a.yaml", 1), ("b.yaml", 9), ("b.yaml", 2), ("b.yaml", 2)):
        report.add(Code.UNKNOWN_KEY, "same", [(span(line, 1, 2, file), "")])
    report.add(Code.MISSING_FILE, "placeless")
    places = [(each.spans[0][0].file, each.spans[0][0].line) for each in report.listed() if each.spans]
    assert places == [("b.yaml", 2), ("b.yaml", 9), ("a.yaml", 1)]
    assert report.listed()[0].message == "placeless"


def test_words() -> None:
    assert listing(["a"]) == "`a`"
    assert listing(["a", "b", "c"], "and") == "`a`, `b` and `c`"
    assert shown("x" * 60) == f"`{'x' * 47}…`"
