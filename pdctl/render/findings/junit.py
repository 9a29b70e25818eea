"""Doctor's report as JUnit XML: a test case per check and per canary pair."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from pdctl.doctor.finding import Status

if TYPE_CHECKING:
    from pdctl.doctor.finding import Cell, Checked, Finding, Report

UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # not allowed in XML 1.0


def to_xml(report: Report) -> str:
    checks = _suite("checks", [_check(each, report) for each in report.checks], report.seconds)
    suites = [checks]
    if report.matrix:
        total = sum(cell.seconds or 0.0 for cell in report.matrix)
        suites.append(_suite("canary", [_cell(cell) for cell in report.matrix], total))
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


def _check(checked: Checked, report: Report) -> ElementTree.Element:
    case = ElementTree.Element("testcase", classname="pdctl.doctor", name=checked.code)
    if checked.status is Status.SKIPPED:
        ElementTree.SubElement(case, "skipped", message=_clean(checked.reason))
    elif checked.status is Status.UNKNOWN:
        ElementTree.SubElement(case, "error", message=_clean(checked.reason), type="unknown")
    for found in report.findings:
        if found.code == checked.code:
            _tell(case, found)
    return case


def _tell(case: ElementTree.Element, found: Finding) -> None:
    tag = "skipped" if found.suppressed else "failure"
    node = ElementTree.SubElement(case, tag, message=_clean(found.suppressed or found.headline))
    if not found.suppressed:
        node.set("type", found.severity.value)
        lines = [f"observed: {found.observed}", f"expected: {found.expected}", *found.evidence, f"fix: {found.fix}"]
        node.text = _clean("\n".join(([f"instance: {found.instance}"] if found.instance else []) + lines))


def _cell(cell: Cell) -> ElementTree.Element:
    seconds = f"{cell.seconds or 0.0:.3f}"
    case = ElementTree.Element(
        "testcase", classname="pdctl.canary", name=_clean(f"{cell.prefill} to {cell.decode}"), time=seconds
    )
    if cell.ok is None:
        ElementTree.SubElement(case, "skipped", message=_clean(cell.reason))
    elif not cell.ok:
        ElementTree.SubElement(case, "failure", message=_clean(cell.reason), type="canary")
    return case


def _clean(text: str) -> str:
    return UNPRINTABLE.sub("\ufffd", text)
