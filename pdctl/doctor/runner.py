"""Facts in, report out: every code of the catalogue appears, decided or with the reason why not.

A code may have several checks, each with other facts; a finding of any of them decides it, then a doubt, then an "all
is well". Findings about one thing seen in two places are one finding with both as evidence.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pdctl.catalogue import book
from pdctl.catalogue.entry import Needs
from pdctl.doctor import ports
from pdctl.doctor.check import EMBEDDED, Skipped, Unknown
from pdctl.doctor.checks import every
from pdctl.doctor.facts import Depth
from pdctl.doctor.finding import Cell, Checked, Report, Status
from pdctl.doctor.folding import fold
from pdctl.doctor.selection import EVERYTHING, failing, weigh
from pdctl.doctor.words import names
from pdctl.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pdctl.catalogue.entry import Entry, Severity
    from pdctl.doctor.check import Check
    from pdctl.doctor.facts import Facts
    from pdctl.doctor.finding import Finding
    from pdctl.doctor.selection import Selection

LACKING = {
    Needs.TOPOLOGY: "needs a topology or a manifest",
    Needs.ENDPOINT: "needs running instances: a run, --router, or --prefill and --decode",
    Needs.ROUTER: "needs a router: --router URL, or a topology with one",
    Needs.HOST: "needs a look at this host",
    Needs.CANARY: "needs real requests: --canary",
    Needs.LOG: "needs logs of a run",
}
# They say that doctor could not look, not that something is broken.
UNPROBED = frozenset({"PD901", "PD902", "PD903", "PD904"})
# So do these, where no SGLang was reached at all and none is known to have been there.
BLIND = UNPROBED | {"PD205", "PD602", "PD604"}
DIALLED = frozenset({"PD218", "PD604", "PD901", "PD902"})  # decided without a word of SGLang's own
SGLANG = frozenset({Needs.ENDPOINT, Needs.CANARY})


class Outcome(NamedTuple):
    """What a code's checks come to."""

    status: Status
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
    """`seconds`: what the facts took to gather; the checks' own time is added. `checks` None: all there are."""
    began = time.monotonic()
    by_code = _by_code(every() if checks is None else checks)
    outcomes = [(entry, _outcome(entry, by_code.get(entry.code, []), facts, selection)) for entry in book.ENTRIES]
    found = [weigh(one, selection) for _, outcome in outcomes for one in outcome.findings]
    return Report(
        title=title or _title(facts),
        depth=facts.depth.value,
        findings=fold(found, facts),
        checks=tuple(Checked(entry.code, outcome.status, outcome.reason) for entry, outcome in outcomes),
        ports=ports.table(facts),
        matrix=matrix(facts),
        seconds=seconds + time.monotonic() - began,
        blind=_blind(facts),
    )


def _blind(facts: Facts) -> bool:
    """Whether an SGLang was looked for and none was seen, nor any trace of one."""
    seen = any(engine.info for engine in facts.engines) or bool(facts.ended)
    return Needs.ENDPOINT in facts.asked and not seen and not (facts.host is not None and facts.host.stopped)


def needed(selection: Selection, depth: Depth, checks: Sequence[Check] | None = None) -> frozenset[Needs]:
    """What the wanted checks must look at, as far as this depth goes."""
    allowed = {Needs.TOPOLOGY, Needs.LOG}
    if depth is not Depth.STATIC:
        allowed |= {Needs.ENDPOINT, Needs.ROUTER, Needs.HOST}
    if depth is Depth.CANARY:
        allowed.add(Needs.CANARY)
    wanted = [check for check in (every() if checks is None else checks) if selection.wants(check.code)]
    return frozenset(need for check in wanted if allowed.issuperset(check.needs) for need in check.needs)


def exit_code(report: Report, fail_on: Severity | None) -> ExitCode:
    """The same in every output format. Where all that stands against it is that doctor could not look: NOT_PROBED."""
    against = failing(report, fail_on)
    if not against:
        return ExitCode.OK
    excused = BLIND if report.blind else UNPROBED
    return ExitCode.NOT_PROBED if all(one.code in excused for one in against) else ExitCode.FINDINGS


def matrix(facts: Facts) -> tuple[Cell, ...]:
    """Every prefill × decode pair, tried or not; empty when no canary was asked for."""
    if Needs.CANARY not in facts.asked:
        return ()
    tried = {(one.prefill, one.decode): one for one in facts.canaries if one.kind == "pair"}
    names: dict[str, list[str]] = {"prefill": [], "decode": []}
    for endpoint in facts.endpoints:
        names.setdefault(endpoint.role, []).append(endpoint.name)
    pairs = dict.fromkeys([(one, two) for one in names["prefill"] for two in names["decode"]] + list(tried))
    cells: list[Cell] = []
    for prefill, decode in pairs:
        one = tried.get((prefill, decode))
        if one is None:
            cells.append(Cell(prefill, decode, None, None, "not tried"))
        else:
            seconds = one.seconds if one.ok is not None else None
            cells.append(Cell(prefill, decode, one.ok, seconds, one.reason, one.room))
    return tuple(cells)


def _by_code(checks: Iterable[Check]) -> dict[str, list[Check]]:
    """Those that look at most first: their words stand for the finding."""
    found: dict[str, list[Check]] = {}
    for check in checks:
        found.setdefault(check.code, []).append(check)
    return {code: sorted(some, key=lambda check: -len(check.needs)) for code, some in found.items()}


def _outcome(entry: Entry, checks: Sequence[Check], facts: Facts, selection: Selection) -> Outcome:
    if not selection.wants(entry.code):
        return Outcome(Status.SKIPPED, "not selected")
    if entry.unseen:
        return Outcome(Status.SKIPPED, entry.unseen)
    if not checks:
        return Outcome(Status.SKIPPED, "no check can see it; trace-room names it from the logs of one room")
    return _together([_one(check, facts) for check in checks])


def _one(check: Check, facts: Facts) -> Outcome:
    lacking = [need for need in check.needs if need not in facts.asked]
    if lacking:
        return Outcome(Status.SKIPPED, LACKING[lacking[0]])
    verdict = check.judge(facts)
    if isinstance(verdict, Skipped):
        return Outcome(Status.SKIPPED, verdict.reason)
    if isinstance(verdict, Unknown):
        return Outcome(Status.UNKNOWN, verdict.reason)
    found = tuple(verdict)
    if found:
        return Outcome(Status.FINDING, "", found)
    unread = _unread(check, facts)
    return Outcome(Status.UNKNOWN, unread) if unread else Outcome(Status.OK, "")


def _unread(check: Check, facts: Facts) -> str:
    """Why "no finding" does not mean "all is well": no SGLang told anything. Where some did, the judges know which ones
    they miss."""
    if check.code in DIALLED or SGLANG.isdisjoint(check.needs) or any(engine.info for engine in facts.engines):
        return ""
    silent = [engine.endpoint.name for engine in facts.engines]
    return f"{names(silent)} could not be read" if silent else "no SGLang engine was seen"


def _together(outcomes: Sequence[Outcome]) -> Outcome:
    for status in (Status.FINDING, Status.UNKNOWN, Status.OK, Status.SKIPPED):
        some = [outcome for outcome in outcomes if outcome.status is status]
        if some:
            reasons = dict.fromkeys(outcome.reason for outcome in some if outcome.reason)
            first = sorted(reasons, key=lambda reason: reason != EMBEDDED.reason)  # no option would change that
            return Outcome(status, "; ".join(first), _merged([outcome.findings for outcome in some]))
    return Outcome(Status.SKIPPED, "nothing to look at")


def _merged(found: Sequence[Sequence[Finding]]) -> tuple[Finding, ...]:
    """What a second check says about an instance the first one named is evidence, not another finding."""
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
