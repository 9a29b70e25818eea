"""All checks and the report they yield: every code is decided or says why not; causes come first."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

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
from pdctl.doctor.selection import EVERYTHING, ORDER, failing, weigh
from pdctl.doctor.static import (
    arithmetic,
    bootstrap_addresses,
    capacity,
    environment_checks,
    kubernetes_checks,
    refused_flags,
    written_agreement,
)
from pdctl.errors import ExitCode
from pdctl.fleet.observations import PAIR

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pdctl.catalogue.entry import Entry, Severity
    from pdctl.doctor.check import Check, Facts, Finding
    from pdctl.doctor.selection import Selection


WRITTEN_CHECKS: tuple[Check, ...] = (  # need nothing but a topology, a manifest or a script
    *bootstrap_addresses.CHECKS,
    *kubernetes_checks.CHECKS,
    *written_agreement.CHECKS,
    *arithmetic.CHECKS,
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
UNPROBED = frozenset({"PD901", "PD902", "PD903", "PD904"})
# So do these, if no SGLang was reached at all and none is known to have been there.
BLIND = UNPROBED | {"PD205", "PD602", "PD604"}
DIALLED = frozenset({"PD218", "PD604", "PD901", "PD902"})  # decided without anything read from SGLang
SGLANG = frozenset({Needs.ENDPOINT, Needs.CANARY})
EXPLAINED = "explained by "
SHOWN = 2  # causes named per consequence
CLOCKS = 2.0  # seconds by which the times of a recorded end and of a log line, some without fractions, may differ
NOTICED = 30.0  # seconds after which health checks say what requests have met before
LASTING = 60.0  # seconds for which a line about a passing state explains what follows
CROWD = 8  # up to this many like findings are listed one by one
# Causes in ROWS: a decode or the router is sent to a wrong bootstrap, rank or server address, or finds nobody there.
ADDRESS = ("PD201", "PD202", "PD203", "PD204", "PD205", "PD206", "PD208", "PD209", "PD210", "PD212", "PD219")
# Prefill and decode differ in a setting, shape or release that they must share, so that their rooms fail.
UNLIKE = ("PD302", "PD303", "PD304", "PD305", "PD306", "PD308", "PD309", "PD310", "PD311", "PD312", "PD313", "PD315",
          "PD316")  # fmt: skip
ROLE, DOWN, FAR = "PD301", "PD604", "PD901"
ROOMS = ("PD701", "PD702", "PD703", "PD708", "PD409")
NOBODY: frozenset[str] = frozenset()
# Logs prove that a process, or a thread that every room needs, has ended.
GONE = ("PD704", "PD705", "PD709", "PD710")
NETWORK = ("PD401", "PD402", "PD403", "PD404", "PD405", "PD407", "PD408")


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
    )


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
        return ExitCode.OK
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
        return CodeOutcome(CheckStatus.SKIPPED, entry.unseen)
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


class CauseReach(str, Enum):
    """Which instance a cause must concern to explain a consequence."""

    SAME = "same"  # the same instance
    PREFILL = "prefill"  # the prefill of a failed pair of the consequence's instance, a decode
    PAIR = "pair"  # the other side of a failed pair of the consequence's instance
    ANY = "any"


class ExplanationRow(NamedTuple):
    effect: str
    causes: tuple[str, ...]
    reach: CauseReach


ROWS: tuple[ExplanationRow, ...] = (
    ExplanationRow("PD610", (ROLE, DOWN, FAR, *ADDRESS, *UNLIKE, "PD217"), CauseReach.PAIR),
    ExplanationRow("PD610", ("PD409", *NETWORK, *GONE), CauseReach.ANY),
    ExplanationRow("PD611", (*UNLIKE, "PD711"), CauseReach.PAIR),
    ExplanationRow("PD613", (ROLE, DOWN, FAR, *ADDRESS, *UNLIKE), CauseReach.PAIR),
    ExplanationRow("PD613", ("PD710",), CauseReach.SAME),
    ExplanationRow("PD605", (*ADDRESS, *UNLIKE), CauseReach.PAIR),
    ExplanationRow("PD605", ("PD610",), CauseReach.PAIR),
    ExplanationRow("PD201", (ROLE,), CauseReach.SAME),
    ExplanationRow("PD202", (ROLE, "PD204"), CauseReach.SAME),
    ExplanationRow("PD205", (ROLE, DOWN, FAR, "PD204"), CauseReach.SAME),
    ExplanationRow("PD205", (DOWN,), CauseReach.PREFILL),
    ExplanationRow("PD205", ("PD202", "PD203", "PD206"), CauseReach.ANY),
    ExplanationRow("PD409", (DOWN, FAR), CauseReach.ANY),
    ExplanationRow("PD209", (ROLE, DOWN, FAR, "PD204", "PD212", "PD217"), CauseReach.SAME),
    ExplanationRow("PD210", (DOWN, FAR, "PD709"), CauseReach.SAME),
    ExplanationRow("PD211", (DOWN, FAR, "PD210"), CauseReach.SAME),
    ExplanationRow("PD216", (DOWN, FAR, "PD603"), CauseReach.ANY),
    ExplanationRow("PD601", (DOWN, FAR), CauseReach.SAME),
    ExplanationRow("PD601", (ROLE, *ADDRESS, *UNLIKE, "PD610"), CauseReach.ANY),
    ExplanationRow("PD602", (DOWN,), CauseReach.SAME),
    ExplanationRow("PD602", (DOWN, FAR, "PD603", "PD216"), CauseReach.ANY),
    ExplanationRow("PD603", (DOWN, FAR), CauseReach.SAME),
    ExplanationRow("PD902", (FAR, "PD602", "PD903", "PD904"), CauseReach.ANY),
    ExplanationRow("PD205", ("PD903", "PD904"), CauseReach.SAME),
    ExplanationRow("PD903", ("PD218",), CauseReach.SAME),
    ExplanationRow("PD604", ("PD218",), CauseReach.SAME),
    ExplanationRow("PD701", ("PD201", "PD202", "PD203", "PD204", "PD206"), CauseReach.ANY),
    ExplanationRow("PD702", (*ADDRESS, *UNLIKE, "PD501"), CauseReach.ANY),
    ExplanationRow("PD703", (ROLE, DOWN, "PD601"), CauseReach.ANY),
    ExplanationRow("PD708", (*ADDRESS, *UNLIKE, "PD409", *NETWORK), CauseReach.ANY),
    ExplanationRow("PD709", UNLIKE, CauseReach.ANY),
    ExplanationRow("PD713", (ROLE,), CauseReach.ANY),
    ExplanationRow("PD714", (ROLE, "PD307", *ADDRESS), CauseReach.ANY),
    ExplanationRow("PD706", (*ADDRESS, *UNLIKE, *ROOMS), CauseReach.ANY),
    ExplanationRow("PD715", (DOWN, *ADDRESS, *UNLIKE, *ROOMS), CauseReach.ANY),
    ExplanationRow("PD604", ("PD704", "PD705", "PD709"), CauseReach.SAME),
)

ROWS_OF = {row.effect: [other for other in ROWS if other.effect == row.effect] for row in ROWS}


def fold(findings: Iterable[Finding], facts: Facts) -> tuple[Finding, ...]:
    """Causes first, by severity and then by code; then the findings they explain."""
    ordered = sorted(_crowds(list(findings)), key=lambda one: (ORDER.index(one.severity), one.code))
    web = Explanations(ordered, _peers(facts), facts)
    causes = [web.causes(one) for one in ordered]
    return (
        *(one for one, found in zip(ordered, causes, strict=True) if not found),
        *(_explained(one, found) for one, found in zip(ordered, causes, strict=True) if found),
    )


def _crowds(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Merge many instances with the same fault and fix into one finding about the deployment that names them all."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for one in findings:
        groups.setdefault((one.code, one.fix, one.suppressed), []).append(one)
    for some in groups.values():
        if len(some) <= CROWD or not all(one.instance for one in some):
            yield from some
            continue
        first, who = some[0], ", ".join(one.instance for one in some)
        headline = f"{first.headline} (and {len(some) - 1} more alike)"
        evidence = (f"{len(some)} instances: {who}", *first.evidence)
        yield replace(first, instance="", headline=headline, evidence=evidence)


@dataclass(frozen=True, slots=True)
class RootCauses:
    """The first causes of the chains that lead to a finding, at its own instance and elsewhere, keyed by id()."""

    own: Mapping[int, Finding]
    shared: Mapping[int, Finding]

    def __len__(self) -> int:
        return len(self.shared) + sum(key not in self.shared for key in self.own)

    def __iter__(self) -> Iterator[Finding]:
        yield from self.own.values()
        yield from (one for key, one in self.shared.items() if key not in self.own)


class Explanations:
    """Which findings explain which. Causes shared by all findings of a code are looked up once for all of them: if
    thousands of instances are down, there would be millions of pairs of cause and effect.
    """

    def __init__(self, findings: Iterable[Finding], peers: Mapping[str, frozenset[str]], facts: Facts) -> None:
        self._peers = peers
        self._router_silent = facts.router is not None and not facts.router.reached
        self._prefills = {endpoint.name for endpoint in facts.endpoints if endpoint.role == "prefill"}
        self._by_code: dict[str, list[Finding]] = {}
        self._by_place: dict[tuple[str, str], list[Finding]] = {}
        self._shared: dict[SharedKey, Mapping[int, Finding]] = {}
        for one in findings:
            if not one.suppressed:
                self._by_code.setdefault(one.code, []).append(one)
                self._by_place.setdefault((one.code, one.instance), []).append(one)

    def causes(self, effect: Finding) -> RootCauses:
        rows = ROWS_OF.get(effect.code, ())
        near = [row for row in rows if row.reach in (CauseReach.SAME, CauseReach.PAIR)]
        return RootCauses(self._roots(self._at((effect.instance,), near), effect), self._elsewhere(effect, rows))

    def _elsewhere(self, effect: Finding, rows: Sequence[ExplanationRow]) -> Mapping[int, Finding]:
        """Causes at the other sides of its instance's pairs, at the deployment as a whole, or anywhere."""
        if effect.code == "PD602" and effect.seen is None and self._router_silent:
            return {}  # engines that are down make a router unready, not silent
        far = (CauseReach.PAIR,) if effect.instance in self._prefills else (CauseReach.PAIR, CauseReach.PREFILL)
        pairs = [row for row in rows if row.reach in far]
        peers = self._peers.get(effect.instance, NOBODY) if pairs else NOBODY
        key = SharedKey(effect.code, peers, effect.seen)
        if key not in self._shared:
            found = [*self._at(peers, pairs)]
            for row in rows:
                anywhere = row.reach is CauseReach.ANY
                for code in row.causes:
                    found += self._by_code.get(code, ()) if anywhere else self._by_place.get((code, ""), ())
            self._shared[key] = self._roots(found, effect)
        return self._shared[key]

    def _at(self, instances: Iterable[str], rows: Sequence[ExplanationRow]) -> Iterator[Finding]:
        """The findings that concern one of `instances`; one about "prefill" concerns every prefill-N."""
        for place in dict.fromkeys(place for name in instances for place in _name_and_groups(name)):
            for code in (code for row in rows for code in row.causes):
                yield from self._by_place.get((code, place), ())

    def _roots(self, causes: Iterable[Finding], effect: Finding) -> Mapping[int, Finding]:
        """Those of `causes` that nothing explains, then what explains the others. ROWS has no cycles.

        Left out are those that were not so when `effect` was seen.
        """
        roots: dict[int, Finding] = {}
        behind: dict[int, Mapping[int, Finding]] = {}
        for one in causes:
            if not _coincides(one, effect):
                continue
            found = self.causes(one)
            if not found:
                roots[id(one)] = one
            behind.update((id(some), some) for some in (found.own, found.shared))
        for some in behind.values():
            roots.update((key, one) for key, one in some.items() if _coincides(one, effect))
        return roots


class SharedKey(NamedTuple):
    """What decides which causes elsewhere explain a finding."""

    code: str
    peers: frozenset[str]
    seen: tuple[float, float] | None


def _coincides(cause: Finding, effect: Finding) -> bool:
    """Whether `cause` was so when `effect` was seen: not if it came later, or its lines tell of a moment long past."""
    if cause.seen is None:
        return True
    began, ended = cause.seen
    momentary = cause.code in logs.PASSED and math.isfinite(ended)
    if effect.seen is None:
        return not momentary  # the live checks say themselves what is so now
    if math.isinf(ended):
        return began <= effect.seen[1] + CLOCKS
    return began <= effect.seen[1] + NOTICED and not (momentary and effect.seen[0] > ended + LASTING)


def _name_and_groups(instance: str) -> Iterator[str]:
    """The instance and its groups: for prefill-0, "prefill-0" and "prefill"."""
    while instance:
        yield instance
        instance = instance.rpartition("-")[0]


def _peers(facts: Facts) -> dict[str, frozenset[str]]:
    """Instance → the other sides of its failed pairs; without canaries, every instance of the other role."""
    found: dict[str, set[str]] = {}
    for one in facts.canaries:
        if one.kind == PAIR and one.ok is not True:
            found.setdefault(one.prefill, set()).add(one.decode)
            found.setdefault(one.decode, set()).add(one.prefill)
    if found:
        return {name: frozenset(others) for name, others in found.items()}
    by_role: dict[str, list[str]] = {}
    for engine in facts.engines:
        by_role.setdefault(engine.endpoint.role, []).append(engine.endpoint.name)
    prefills, decodes = (frozenset(by_role.get(role, ())) for role in ("prefill", "decode"))
    return dict.fromkeys(prefills, decodes) | dict.fromkeys(decodes, prefills)


def _explained(effect: Finding, causes: RootCauses) -> Finding:
    said = [f"{one.code} {one.slug}" + (f" at {one.instance}" if one.instance else "") for one in islice(causes, SHOWN)]
    shown = ", ".join(said) + (f" and {len(causes) - SHOWN} more" if len(causes) > SHOWN else "")
    return replace(effect, evidence=(EXPLAINED + shown, *effect.evidence))
