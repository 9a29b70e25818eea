"""Doctor's report as JUnit XML: a test case per check and per canary pair."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from pdctl.catalogue.entry import Severity
from pdctl.doctor import runner
from pdctl.doctor.finding import Status
from pdctl.doctor.selection import failing
from pdctl.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Collection

    from pdctl.doctor.finding import Cell, Checked, Finding, Report

CANARY = "PD610"  # the finding that a failed cell of the matrix comes to
UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # not allowed in XML 1.0


def to_xml(report: Report, fail_on: Severity | None = Severity.ERROR) -> str:
    """`fail_on`: what the exit code goes by. A case fails, or is an error where doctor could not look, exactly if the
    exit code is not 0; what is unknown is skipped, and what does not count stands in its case's output."""
    against = failing(report, fail_on)
    tag = "error" if runner.exit_code(report, fail_on) is ExitCode.NOT_PROBED else "failure"
    checks = _suite("checks", [_check(each, report, against, tag) for each in report.checks], report.seconds)
    suites = [checks]
    if report.matrix:
        counts = any(one.code == CANARY for one in against)
        total = sum(cell.seconds or 0.0 for cell in report.matrix)
        suites.append(_suite("canary", [_cell(cell, counts) for cell in report.matrix], total))
    root = ElementTree.Element("testsuites", name=_clean(f"pdctl doctor {report.title}"))
    root.extend(suites)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode")


def _suite(name: str, cases: list[ElementTree.Element], seconds: float) -> ElementTree.Element:
    count = {tag: sum(case.find(tag) is not None for case in cases) for tag in ("failure", "error", "skipped")}
    suite = ElementTree.Element(
        "testsuite",
        name=name,
        tests=str(len(cases)),
        failures=str(count["failure"]),
        errors=str(count["error"]),
        skipped=str(count["skipped"]),
        time=f"{seconds:.3f}",
    )
    suite.extend(cases)
    return suite


def _check(checked: Checked, report: Report, against: Collection[Finding], tag: str) -> ElementTree.Element:
    case = ElementTree.Element("testcase", classname="pdctl.doctor", name=checked.code)
    if checked.status is Status.SKIPPED:
        ElementTree.SubElement(case, "skipped", message=_clean(checked.reason))
    elif checked.status is Status.UNKNOWN:
        ElementTree.SubElement(case, "skipped", message=_clean(f"unknown: {checked.reason}"))
    found = [one for one in report.findings if one.code == checked.code]
    for one in (one for one in found if one in against):
        node = ElementTree.SubElement(case, tag, message=_clean(one.headline), type=one.severity.value)
        node.text = _clean(_told(one))
    rest = [one for one in found if one not in against]
    if rest and len(rest) == len(found) and all(one.suppressed for one in rest):
        ElementTree.SubElement(case, "skipped", message=_clean(f"accepted: {rest[0].suppressed}"))
    if rest:
        output = ElementTree.SubElement(case, "system-out")
        output.text = _clean("\n\n".join(f"{one.severity.value}: {one.headline}\n{_told(one)}" for one in rest))
    return case


def _told(found: Finding) -> str:
    lines = [f"observed: {found.observed}", f"expected: {found.expected}", *found.evidence, f"fix: {found.fix}"]
    accepted = [f"accepted: {found.suppressed}"] if found.suppressed else []
    return "\n".join(([f"instance: {found.instance}"] if found.instance else []) + accepted + lines)


def _cell(cell: Cell, counts: bool) -> ElementTree.Element:
    seconds = f"{cell.seconds or 0.0:.3f}"
    case = ElementTree.Element(
        "testcase", classname="pdctl.canary", name=_clean(f"{cell.prefill} to {cell.decode}"), time=seconds
    )
    if cell.ok is None:
        ElementTree.SubElement(case, "skipped", message=_clean(cell.reason))
    elif not cell.ok and not counts:
        ElementTree.SubElement(case, "system-out").text = _clean(cell.reason)
    elif not cell.ok:
        ElementTree.SubElement(case, "failure", message=_clean(cell.reason), type="canary")
    return case


def _clean(text: str) -> str:
    return UNPRINTABLE.sub("\ufffd", text)
