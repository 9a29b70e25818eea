"""Doctor's report as CI systems read it: GitHub commands, JUnit XML, SARIF; each finding at the line it came from."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from pdctl import __version__
from pdctl.catalogue import book
from pdctl.catalogue.entry import Severity, fill
from pdctl.doctor import check_run
from pdctl.doctor.check import CheckStatus
from pdctl.doctor.selection import failing
from pdctl.errors import ExitCode
from pdctl.quick_definitions import NamedTuple
from pdctl.render.trace.room_json import dumped

if TYPE_CHECKING:
    from collections.abc import Collection

    from pdctl.doctor.check import CanaryCell, Checked, Finding, Report


# `blue.yaml:12: …`, also after the instance it is about: `decode-0: run.sh:3: …`
NAMED = re.compile(r"(?P<file>[^\s:]+):(?P<line>[1-9][0-9]{0,8})\b")
# Anything else of the form NAME:NUMBER is an address: `127.0.0.1:8998`, `prefill:30000`, `node.example.com:8998`.
FILE = re.compile(r".*/.+|<stdin>|.+\.(?:ya?ml|json|sh|bash|log|txt|out|env|service|gz|zst)(?:\.\d{1,9})?")
COMMANDS = {"error": "error", "warning": "warning", "info": "notice"}
CANARY = "PD610"  # the finding for a failed cell of the matrix
UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # not allowed in XML 1.0
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {"error": "error", "warning": "warning", "info": "note"}


class FindingPlace(NamedTuple):
    file: str
    line: int


def place(found: Finding) -> FindingPlace | None:
    """Where the observed value is written: the place named by evidence about the finding's own instance, else by a line
    that contains the value, else by the first line that names one; None without any."""
    named = [(line, one) for line in found.evidence if (one := _named(line)) is not None]
    own = [one for line, one in named if found.instance and line.startswith(f"{found.instance}: ")]
    holds = [one for line, one in named if found.observed and found.observed in line]
    return next(iter((*own, *holds, *(one for _, one in named))), None)


def _named(line: str) -> FindingPlace | None:
    for start in (0, line.find(": ") + 2):
        match = NAMED.match(line, start)
        if match is not None and FILE.fullmatch(match["file"]):
            return FindingPlace(match["file"], int(match["line"]))
    return None


def to_commands(report: Report) -> str:
    lines = [_command(found) for found in report.findings if not found.suppressed]
    reasons = [f"{each.code}: {each.reason}" for each in report.checks if each.code in report.unchecked]
    if reasons:
        lines.append(f"::warning title=selected but not checked::{_data(chr(10).join(reasons))}")
    return "\n".join(lines)


def _command(found: Finding) -> str:
    properties = [f"title={_property(f'{found.code} {found.slug}')}"]
    named = place(found)
    if named is not None:
        properties = [f"file={_property(named.file)}", f"line={named.line}", *properties]
    who = f"{found.instance}: " if found.instance else ""
    text = f"{who}{found.headline}\nobserved: {found.observed}\nexpected: {found.expected}\nfix: {found.fix}"
    return f"::{COMMANDS[found.severity.value]} {','.join(properties)}::{_data(text)}"


def _data(text: str) -> str:
    """Escape percent signs and line ends, as the runner decodes them, and lone surrogates, which cannot be written."""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def to_xml(report: Report, fail_on: Severity | None = Severity.ERROR) -> str:
    """JUnit XML. fail_on: the severity that decides the exit code. A case fails, or is an error if doctor could not
    look, exactly if the exit code is not 0; unknown checks are skipped; what does not count is in its case's output."""
    against = failing(report, fail_on)
    tag = "error" if check_run.exit_code(report, fail_on) is ExitCode.NOT_PROBED else "failure"
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
    if checked.status is CheckStatus.SKIPPED:
        ElementTree.SubElement(case, "skipped", message=_clean(checked.reason))
    elif checked.status is CheckStatus.UNKNOWN:
        unchecked = checked.code in report.unchecked and tag == "error"
        ElementTree.SubElement(case, "error" if unchecked else "skipped", message=_clean(f"unknown: {checked.reason}"))
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


def _cell(cell: CanaryCell, counts: bool) -> ElementTree.Element:
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


def to_sarif(report: Report, fail_on: Severity | None = Severity.ERROR) -> str:
    """SARIF 2.1.0. fail_on: the severity that decides the exit code."""
    codes = sorted({found.code for found in report.findings})
    run = {
        "tool": {"driver": {"name": "pdctl", "version": __version__, "rules": [_rule(code) for code in codes]}},
        "invocations": [_invocation(report, fail_on)],
        "results": [_result(found, codes) for found in report.findings],
    }
    return dumped({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _invocation(report: Report, fail_on: Severity | None) -> dict[str, object]:
    """Not successful if too little could be checked: then the absence of results does not mean that all is well."""
    code = check_run.exit_code(report, fail_on)
    blind = code is ExitCode.NOT_PROBED
    told: dict[str, object] = {"executionSuccessful": not blind, "exitCode": int(code)}
    if blind:
        text = "too little could be looked at"
        told["toolExecutionNotifications"] = [{"level": "error", "message": {"text": text}}]
    return told


def _rule(code: str) -> dict[str, object]:
    entry = book.find_entry(code)
    return {
        "id": entry.code,
        "name": entry.slug,
        "shortDescription": {"text": fill(entry.headline, {})},
        "fullDescription": {"text": entry.explain},
        "help": {"text": fill(entry.fix, {})},
        "defaultConfiguration": {"level": LEVELS[entry.severity.value]},
    }


def _result(found: Finding, codes: list[str]) -> dict[str, object]:
    text = f"{found.headline}. Observed: {found.observed}. Expected: {found.expected}. Fix: {found.fix}"
    result: dict[str, object] = {
        "ruleId": found.code,
        "ruleIndex": codes.index(found.code),
        **_weight(found.severity),
        "message": {"text": text},
        "locations": [_location(found)],
    }
    if found.suppressed:
        result["suppressions"] = [{"kind": "external", "justification": found.suppressed}]
    return result


def _weight(severity: Severity) -> dict[str, object]:
    """Info is not a failure, and SARIF's kind for that has no level (3.27.9, 3.27.10)."""
    if severity is Severity.INFO:
        return {"kind": "informational", "level": "none"}
    return {"kind": "fail", "level": LEVELS[severity.value]}


def _location(found: Finding) -> dict[str, object]:
    """The physical location is the place the evidence names, if any; the logical location is the instance."""
    location: dict[str, object] = {"logicalLocations": [{"name": found.instance or "deployment", "kind": "resource"}]}
    named = place(found)
    if named is not None:
        location["physicalLocation"] = {
            "artifactLocation": {"uri": named.file},
            "region": {"startLine": named.line},
        }
    return location
