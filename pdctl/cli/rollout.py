"""What `pdctl launch` asks doctor before it starts anything: the static part, on the topology and its plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.cli.doctor_request import accepted
from pdctl.doctor import runner, selection
from pdctl.doctor.facts import Depth
from pdctl.doctor.gather import gather
from pdctl.doctor.request import Request
from pdctl.errors import LaunchError
from pdctl.render.findings import report_text

if TYPE_CHECKING:
    from pdctl.layout.instance_plan import Plan
    from pdctl.render.term import Term
    from pdctl.topology.model import Topology


def check(topology: Topology, plan: Plan, notice: Term) -> None:
    """Warnings in one line each; LaunchError, after every finding whole, when there is an error."""
    chosen = selection.Selection(suppressions=accepted(topology))
    facts = gather(Request(depth=Depth.STATIC, topology=topology, plan=plan))
    report = runner.run(facts, chosen)
    errors = selection.failing(report, chosen.fail_on)
    for found in errors:
        report_text.finding(found, notice)
    if errors:
        codes = ", ".join(dict.fromkeys(found.code for found in errors))
        raise LaunchError(f"doctor found {codes} in {topology.name} before anything was started", FIX.format(codes))
    for found in report.findings:
        if found.severity.value == "warning" and not found.suppressed:
            notice.write(f"warning: {found.code} {found.headline} (pdctl explain {found.code})")


FIX = "mend it, accept it with `doctor: ignore:` in the topology, or start anyway with --no-doctor (pdctl explain {})"
