"""The forms of `pdctl doctor -o`. Each pays for itself alone, and fits a stream that takes only ASCII."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from pdctl.catalogue.entry import Severity

if TYPE_CHECKING:
    from pdctl.doctor.finding import Report
    from pdctl.render.term import Term


class ReportForm(str, Enum):
    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"
    SARIF = "sarif"
    GITHUB = "github"
    JUNIT = "junit"


def write(
    form: ReportForm, report: Report, term: Term, verbose: bool = False, fail_on: Severity | None = Severity.ERROR
) -> None:
    """Nothing at all where the form has nothing to say (GitHub commands without a finding).

    `fail_on`: what the exit code goes by; JUnit and SARIF say the same.
    """
    if form is ReportForm.TEXT:
        from pdctl.render.findings.report_text import show

        show(report, term, verbose)
        return
    text = _document(form, report, fail_on)
    if text:
        term.write(text if term.unicode else _ascii(form, text))


def _document(form: ReportForm, report: Report, fail_on: Severity | None) -> str:
    if form is ReportForm.SARIF:
        from pdctl.render.findings.ci_forms import to_sarif

        return to_sarif(report, fail_on)
    if form is ReportForm.GITHUB:
        from pdctl.render.findings.ci_forms import to_commands

        return to_commands(report)
    if form is ReportForm.JUNIT:
        from pdctl.render.findings.ci_forms import to_xml

        return to_xml(report, fail_on)
    from pdctl.render.findings.report_json import to_json, to_lines

    return to_json(report) if form is ReportForm.JSON else to_lines(report)


def _ascii(form: ReportForm, text: str) -> str:
    """What is not ASCII stands in strings alone, which every one of these forms can spell otherwise."""
    if form is ReportForm.JUNIT:
        return text.encode("ascii", "xmlcharrefreplace").decode("ascii")
    if form is ReportForm.GITHUB:
        return text.encode("ascii", "backslashreplace").decode("ascii")
    from pdctl.render.trace.room_json import ascii_json

    return ascii_json(text)
