"""Doctor's report as SARIF 2.1.0, for code-scanning views: the rules are the catalogue's entries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl import __version__
from pdctl.catalogue import book
from pdctl.render.findings.place import place
from pdctl.render.trace.document import dumped

if TYPE_CHECKING:
    from pdctl.doctor.finding import Finding, Report

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {"error": "error", "warning": "warning", "info": "note"}


def to_sarif(report: Report) -> str:
    codes = sorted({found.code for found in report.findings})
    run = {
        "tool": {"driver": {"name": "pdctl", "version": __version__, "rules": [_rule(code) for code in codes]}},
        "results": [_result(found, codes) for found in report.findings],
    }
    return dumped({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


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
        "level": LEVELS[found.severity.value],
        "message": {"text": text},
        "locations": [_location(found)],
    }
    if found.suppressed:
        result["suppressions"] = [{"kind": "external", "justification": found.suppressed}]
    return result


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
