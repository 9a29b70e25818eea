"""Doctor's report as GitHub workflow commands: one annotation per finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.render.findings.place import place

if TYPE_CHECKING:
    from pdctl.doctor.finding import Finding, Report

COMMANDS = {"error": "error", "warning": "warning", "info": "notice"}


def to_commands(report: Report) -> str:
    return "\n".join(_command(found) for found in report.findings if not found.suppressed)


def _command(found: Finding) -> str:
    properties = [f"title={_property(f'{found.code} {found.slug}')}"]
    named = place(found)
    if named is not None:
        properties = [f"file={_property(named.file)}", f"line={named.line}", *properties]
    who = f"{found.instance}: " if found.instance else ""
    text = f"{who}{found.headline}\nobserved: {found.observed}\nexpected: {found.expected}\nfix: {found.fix}"
    return f"::{COMMANDS[found.severity.value]} {','.join(properties)}::{_data(text)}"


def _data(text: str) -> str:
    """As the runner decodes a message: percent and line ends are escaped. Halves of characters cannot be written."""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
