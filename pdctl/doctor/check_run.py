"""All checks and the report they yield: every code is decided or says why not."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from pdctl.catalogue import book
from pdctl.catalogue.entry import Needs
from pdctl.doctor import bootstrap_ports, release_faults
from pdctl.doctor.check import (
    NOT_FOR_EMBEDDED,
    CanaryCell,
    Checked,
    CheckStatus,
    Depth,
    Report,
    Skipped,
    Unknown,
    names,
)
from pdctl.doctor.explanations import fold
from pdctl.doctor.live import (
    bootstrap_servers,
    canary_results,
    engine_hosts,
    host_resources,
    load,
    logs,
    pair_agreement,
    router_ports,
    running_engines,
    running_router,
)
from pdctl.doctor.selection import EVERYTHING, failing, weigh
from pdctl.doctor.static import (
    arithmetic,
    bootstrap_addresses,
    capacity,
    environment_checks,
    gpu_placement,
    kubernetes_checks,
    listen_addresses,
    refused_flags,
    router_addresses,
    written_agreement,
)
from pdctl.errors import ExitCode
from pdctl.fleet.observations import PAIR
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pdctl.catalogue.entry import Entry, Severity
    from pdctl.doctor.check import Check, Facts, Finding
    from pdctl.doctor.selection import Selection


WRITTEN_CHECKS: tuple[Check, ...] = (  # need nothing but a topology, a manifest or a script
    *bootstrap_addresses.CHECKS,
    *listen_addresses.CHECKS,
    *router_addresses.CHECKS,
    *kubernetes_checks.CHECKS,
    *written_agreement.CHECKS,
    *arithmetic.CHECKS,
    *gpu_placement.CHECKS,
    *refused_flags.CHECKS,
    *release_faults.WRITTEN,
    *capacity.CHECKS,
    *environment_checks.CHECKS,
)
RUNNING_CHECKS: tuple[Check, ...] = (  # look at engines, routers, this host or logs
    *router_ports.CHECKS,
    *bootstrap_servers.CHECKS,
    *running_engines.CHECKS,
    *running_router.CHECKS,
    *pair_agreement.CHECKS,
    *release_faults.RUNNING,
    *load.CHECKS,
    *engine_hosts.CHECKS,
    *host_resources.CHECKS,
    *canary_results.CHECKS,
    *logs.CHECKS,
)
CHECKS = (*WRITTEN_CHECKS, *RUNNING_CHECKS)


LACKING = {
    Needs.TOPOLOGY: "needs a topology or a manifest",
    Needs.ENDPOINT: "needs running instances: a run, --router, or --prefill and --decode",
    Needs.ROUTER: "needs a router: --router URL, or a topology with one",
    Needs.HOST: "needs a look at this host",
    Needs.CANARY: "needs real requests: --canary",
    Needs.LOG: "needs logs of a run",
}
# These say that doctor could not look, not that something is broken.
UNPROBED = frozenset({"PD901", "PD902", "PD903", "PD904", "PD905"})
# So do these, if no SGLang was reached at all and none is known to have been there.
BLIND = UNPROBED | {"PD205", "PD602", "PD604"}
DIALLED = frozenset({"PD218", "PD604", "PD901", "PD902"})  # decided without anything read from SGLang
SGLANG = frozenset({Needs.ENDPOINT, Needs.CANARY})


class CodeOutcome(NamedTuple):
    """The combined outcome of a code's checks."""

    status: CheckStatus
    reason: str
    findings: tuple[Finding, ...] = ()


def run(
    facts: Facts,
    selection: Selection = EVERYTHING,
    *,
    title: str = "",
    seconds: float = 0.0,
    checks: Sequence[Check] | None = None,
) -> Report:
    """The report on `facts`. `seconds`: the time spent gathering them; the checks' own is added. `checks` None: all."""
    began = time.monotonic()
    by_code = _by_code(CHECKS if checks is None else checks)
    outcomes = [(entry, _outcome(entry, by_code.get(entry.code, []), facts, selection)) for entry in book.ENTRIES]
    unchecked = _unchecked(by_code, facts, selection)
    outcomes = [
        (entry, outcome._replace(status=CheckStatus.UNKNOWN) if entry.code in unchecked else outcome)
        for entry, outcome in outcomes
    ]
    found = [weigh(one, selection) for _, outcome in outcomes for one in outcome.findings]
    return Report(
        title=title or _title(facts),
        depth=facts.depth.value,
        findings=fold(found, facts),
        checks=tuple(Checked(entry.code, outcome.status, outcome.reason) for entry, outcome in outcomes),
        ports=bootstrap_ports.table(facts),
        matrix=matrix(facts),
        seconds=seconds + time.monotonic() - began,
        blind=_found_no_engine(facts),
        unchecked=unchecked,
    )


def _unchecked(by_code: Mapping[str, Sequence[Check]], facts: Facts, selection: Selection) -> frozenset[str]:
    """The codes of each pattern of `--select` none of whose checks can be made with what was looked at."""
    possible = {
        code
        for code, checks in by_code.items()
        if not book.entry(code).unseen and any(set(check.needs) <= set(facts.asked) for check in checks)
    }
    return frozenset(code for codes in selection.patterns if possible.isdisjoint(codes) for code in codes)


def _found_no_engine(facts: Facts) -> bool:
    """Whether engines were probed and neither an SGLang nor any trace of one was seen."""
    seen = any(engine.info for engine in facts.engines) or bool(facts.ended)
    return Needs.ENDPOINT in facts.asked and not seen and not (facts.host is not None and facts.host.stopped)


def needed(selection: Selection, depth: Depth, checks: Sequence[Check] | None = None) -> frozenset[Needs]:
    """What the selected checks need, as far as this depth allows."""
    allowed = {Needs.TOPOLOGY, Needs.LOG}
    if depth is not Depth.STATIC:
        allowed |= {Needs.ENDPOINT, Needs.ROUTER, Needs.HOST}
    if depth is Depth.CANARY:
        allowed.add(Needs.CANARY)
    wanted = [check for check in (CHECKS if checks is None else checks) if selection.wants(check.code)]
    return frozenset(need for check in wanted if allowed.issuperset(check.needs) for need in check.needs)


def exit_code(report: Report, fail_on: Severity | None) -> ExitCode:
    """The exit code, the same in every output format; NOT_PROBED if doctor could not look and found nothing else."""
    against = failing(report, fail_on)
    if not against:
        return ExitCode.NOT_PROBED if report.unchecked and fail_on is not None else ExitCode.OK
    excused = BLIND if report.blind else UNPROBED
    return ExitCode.NOT_PROBED if all(one.code in excused for one in against) else ExitCode.FINDINGS


def matrix(facts: Facts) -> tuple[CanaryCell, ...]:
    """Every prefill × decode pair, tried or not; () if no canary was asked for."""
    if Needs.CANARY not in facts.asked:
        return ()
    tried = {(one.prefill, one.decode): one for one in facts.canaries if one.kind == PAIR}
    names: dict[str, list[str]] = {"prefill": [], "decode": []}
    for endpoint in facts.endpoints:
        names.setdefault(endpoint.role, []).append(endpoint.name)
    pairs = dict.fromkeys([(one, two) for one in names["prefill"] for two in names["decode"]] + list(tried))
    cells: list[CanaryCell] = []
    for prefill, decode in pairs:
        one = tried.get((prefill, decode))
        if one is None:
            cells.append(CanaryCell(prefill, decode, None, None, "not tried"))
        else:
            seconds = one.seconds if one.ok is not None else None
            cells.append(CanaryCell(prefill, decode, one.ok, seconds, one.reason, one.room))
    return tuple(cells)


def _by_code(checks: Iterable[Check]) -> dict[str, list[Check]]:
    """Checks by code; those that look at the most come first, and their wording is used for the finding."""
    found: dict[str, list[Check]] = {}
    for check in checks:
        found.setdefault(check.code, []).append(check)
    return {code: sorted(some, key=lambda check: -len(check.needs)) for code, some in found.items()}


def _outcome(entry: Entry, checks: Sequence[Check], facts: Facts, selection: Selection) -> CodeOutcome:
    if not selection.wants(entry.code):
        return CodeOutcome(CheckStatus.SKIPPED, "not selected")
    if entry.unseen:
        return CodeOutcome(CheckStatus.SKIPPED, f"not checkable, because {entry.unseen}")
    if not checks:
        return CodeOutcome(CheckStatus.SKIPPED, "no check can see it; trace-room names it from the logs of one room")
    return _together([_one(check, facts) for check in checks])


def _one(check: Check, facts: Facts) -> CodeOutcome:
    lacking = [need for need in check.needs if need not in facts.asked]
    if lacking:
        return CodeOutcome(CheckStatus.SKIPPED, LACKING[lacking[0]])
    verdict = check.judge(facts)
    if isinstance(verdict, Skipped):
        return CodeOutcome(CheckStatus.SKIPPED, verdict.reason)
    if isinstance(verdict, Unknown):
        return CodeOutcome(CheckStatus.UNKNOWN, verdict.reason)
    found = tuple(verdict)
    if found:
        return CodeOutcome(CheckStatus.FINDING, "", found)
    unread = _unread(check, facts)
    return CodeOutcome(CheckStatus.UNKNOWN, unread) if unread else CodeOutcome(CheckStatus.OK, "")


def _unread(check: Check, facts: Facts) -> str:
    """Why "no finding" does not mean "all is well", or "": no SGLang could be read.

    If some could, the checks themselves report which ones they miss.
    """
    if check.code in DIALLED or SGLANG.isdisjoint(check.needs) or any(engine.info for engine in facts.engines):
        return ""
    silent = [engine.endpoint.name for engine in facts.engines]
    return f"{names(silent)} could not be read" if silent else "no SGLang engine was seen"


def _together(outcomes: Sequence[CodeOutcome]) -> CodeOutcome:
    for status in (CheckStatus.FINDING, CheckStatus.UNKNOWN, CheckStatus.OK, CheckStatus.SKIPPED):
        some = [outcome for outcome in outcomes if outcome.status is status]
        if some:
            reasons = dict.fromkeys(outcome.reason for outcome in some if outcome.reason)
            first = sorted(reasons, key=lambda reason: reason != NOT_FOR_EMBEDDED.reason)  # no option would change that
            return CodeOutcome(status, "; ".join(first), _merge_findings([outcome.findings for outcome in some]))
    return CodeOutcome(CheckStatus.SKIPPED, "nothing to look at")


def _merge_findings(found: Sequence[Sequence[Finding]]) -> tuple[Finding, ...]:
    """Merge a code's findings: one from a later check about an instance already named becomes evidence."""
    kept = list(found[0])
    for more in found[1:]:
        named = {one.instance or one.headline: place for place, one in reversed(list(enumerate(kept)))}
        for one in more:
            place = named.get(one.instance or one.headline)
            if place is None:
                kept.append(one)
                continue
            said = [line for line in one.evidence if line not in kept[place].evidence]
            kept[place] = replace(kept[place], evidence=(*kept[place].evidence, *said))
    return tuple(kept)


def _title(facts: Facts) -> str:
    if facts.topology is not None:
        return facts.topology.name
    if facts.router is not None:
        return facts.router.url
    return f"{len(facts.endpoints)} instances" if facts.endpoints else ""
