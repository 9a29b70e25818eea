"""The forms of `pdctl doctor -o`: JSON and JSON lines (schema pdctl.findings/1) here, the others in sibling modules.

With `--watch`, what was opened or resolved since the last round, as text or as JSON lines.
"""

from __future__ import annotations

import time
from enum import Enum
from typing import TYPE_CHECKING

from pdctl import __version__
from pdctl.catalogue.entry import Severity
from pdctl.render.term import visible
from pdctl.render.trace.room_json import dumped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.doctor.check import BootstrapPortRow, CanaryCell, Checked, Finding, Report, Watched
    from pdctl.render.term import Term


SCHEMA = "pdctl.findings/1"


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
    """Write the report; nothing if the form has no content (GitHub commands without a finding).

    fail_on: the severity that decides the exit code; JUnit and SARIF agree with it.
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
    return to_json(report) if form is ReportForm.JSON else to_lines(report)


def _ascii(form: ReportForm, text: str) -> str:
    """Escape what is not ASCII: it occurs only in strings, and each form has an escape for it."""
    if form is ReportForm.JUNIT:
        return text.encode("ascii", "xmlcharrefreplace").decode("ascii")
    if form is ReportForm.GITHUB:
        return text.encode("ascii", "backslashreplace").decode("ascii")
    from pdctl.render.trace.room_json import ascii_json

    return ascii_json(text)


Value = dict[str, object]


def to_json(report: Report) -> str:
    return dumped(as_document(report), indent=2)


def to_lines(report: Report) -> str:
    """One JSON object per line: the head first, then every finding, check, port row and cell with its `kind`."""
    return "\n".join(map(dumped, _entries(report)))


def as_document(report: Report) -> Value:
    return {
        **_head(report),
        "findings": [finding(each) for each in report.findings],
        "checks": [checked_json(each) for each in report.checks],
        "ports": [_port(each) for each in report.ports],
        "matrix": [_cell(each) for each in report.matrix],
    }


def _head(report: Report) -> Value:
    return {
        "schema": SCHEMA,
        "pdctl": __version__,
        "title": report.title,
        "depth": report.depth,
        "seconds": round(report.seconds, 3),
    }


def _entries(report: Report) -> Iterator[Value]:
    yield {"kind": "report", **_head(report)}
    yield from ({"kind": "finding", **finding(each)} for each in report.findings)
    yield from ({"kind": "check", **checked_json(each)} for each in report.checks)
    yield from ({"kind": "port", **_port(each)} for each in report.ports)
    yield from ({"kind": "cell", **_cell(each)} for each in report.matrix)


def finding(found: Finding) -> Value:
    return {
        "code": found.code,
        "slug": found.slug,
        "severity": found.severity.value,
        "instance": found.instance or None,
        "headline": found.headline,
        "observed": found.observed,
        "expected": found.expected,
        "evidence": list(found.evidence),
        "fix": found.fix,
        "suppressed": found.suppressed or None,
    }


def checked_json(checked: Checked) -> Value:
    return {"code": checked.code, "status": checked.status.value, "reason": checked.reason}


def _port(row: BootstrapPortRow) -> Value:
    return {
        "prefill": row.prefill,
        "flag": row.flag,
        "server_info": row.server_info,
        "bootstrap": row.bootstrap,
        "router": row.router,
        "annotation": row.annotation,
        "odd": row.odd or None,
    }


def _cell(cell: CanaryCell) -> Value:
    return {
        "prefill": cell.prefill,
        "decode": cell.decode,
        "ok": cell.ok,
        "seconds": None if cell.seconds is None else round(cell.seconds, 3),
        "reason": cell.reason,
        "room": cell.room or None,
    }


def show_changes(watched: Watched, term: Term) -> None:
    from pdctl.render.findings import report_text  # late, as above

    stamp = time.strftime("%H:%M:%S")
    for done in watched.resolved:
        mark = term.style(term.symbol("✓", "+"), "green", "bold")
        where = f"  {visible(done.finding.instance, term)}" if done.finding.instance else ""
        name = f"{done.finding.code} {done.finding.slug}{where}"
        term.write(f"{stamp} {mark} resolved after {done.seconds:.0f} s: {name}")
    for found in watched.opened:
        term.write(stamp)
        report_text.finding(found, term)


def change_lines(watched: Watched) -> str:
    """`{"event": "opened"|"resolved", "time", …finding}`, one per line; empty if nothing changed."""
    now = round(time.time(), 3)
    events: list[dict[str, object]] = [
        {"event": "resolved", "time": now, "open_seconds": round(done.seconds, 3), **finding(done.finding)}
        for done in watched.resolved
    ]
    events += [{"event": "opened", "time": now, **finding(found)} for found in watched.opened]
    return "\n".join(map(dumped, events))
