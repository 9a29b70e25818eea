"""Doctor's report as SARIF 2.1.0, for code-scanning views: the rules are the catalogue's entries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl import __version__
from pdctl.catalogue import book
from pdctl.catalogue.entry import Severity
from pdctl.doctor import runner
from pdctl.errors import ExitCode
from pdctl.render.findings.place import place
from pdctl.render.trace.document import dumped

if TYPE_CHECKING:
    from pdctl.doctor.finding import Finding, Report

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {"error": "error", "warning": "warning", "info": "note"}


def to_sarif(report: Report, fail_on: Severity | None = Severity.ERROR) -> str:
    """`fail_on`: what the exit code goes by."""
    codes = sorted({found.code for found in report.findings})
    run = {
        "tool": {"driver": {"name": "pdctl", "version": __version__, "rules": [_rule(code) for code in codes]}},
        "invocations": [_invocation(report, fail_on)],
        "results": [_result(found, codes) for found in report.findings],
    }
    return dumped({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _invocation(report: Report, fail_on: Severity | None) -> dict[str, object]:
    """Not successful where too little could be looked at: then no result does not mean that all is well."""
    code = runner.exit_code(report, fail_on)
    blind = code is ExitCode.NOT_PROBED
    told: dict[str, object] = {"executionSuccessful": not blind, "exitCode": int(code)}
    if blind:
        text = "too little could be looked at"
        told["toolExecutionNotifications"] = [{"level": "error", "message": {"text": text}}]
    return told


def _rule(code: str) -> dict[str, object]:
    entry = book.find(code)
    return {
        "id": entry.code,
        "name": entry.slug,
        "shortDescription": {"text": entry.headline},
        "fullDescription": {"text": entry.explain},
        "help": {"text": entry.fix},
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
    """Info is no failure: SARIF's kind for that has no level (3.27.9, 3.27.10)."""
    if severity is Severity.INFO:
        return {"kind": "informational", "level": "none"}
    return {"kind": "fail", "level": LEVELS[severity.value]}


def _location(found: Finding) -> dict[str, object]:
    """The first place in a file that the evidence names; an instance is a logical place."""
    location: dict[str, object] = {"logicalLocations": [{"name": found.instance or "deployment", "kind": "resource"}]}
    named = place(found)
    if named is not None:
        location["physicalLocation"] = {
            "artifactLocation": {"uri": named.file},
            "region": {"startLine": named.line},
        }
    return location
