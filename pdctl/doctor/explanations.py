"""Which findings explain which: causes come first, and what they explain stands after them and says so."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING

from pdctl.catalogue.entry import Severity
from pdctl.doctor.live.logs import PASSED, RETRIED, is_of_set_up
from pdctl.doctor.selection import ORDER
from pdctl.fleet.observations import PAIR
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pdctl.doctor.check import Facts, Finding

EXPLAINED = "explained by "
SHOWN = 2  # causes named per consequence
CLOCKS = 2.0  # seconds by which the times of a recorded end and of a log line, some without fractions, may differ
NOTICED = 30.0  # seconds after which health checks say what requests have met before
LASTING = 60.0  # seconds for which a line about a passing state explains what follows
CROWD = 8  # up to this many like findings are listed one by one
# Causes in ROWS: a decode or the router is sent to a wrong bootstrap, rank or server address, or finds nobody there.
ADDRESS = ("PD201", "PD202", "PD203", "PD204", "PD205", "PD206", "PD208", "PD209", "PD210", "PD212", "PD219",
           "PD224", "PD226")  # fmt: skip
# Prefill and decode differ in a setting, shape or release that they must share, so that their rooms fail.
UNLIKE = ("PD302", "PD303", "PD304", "PD305", "PD306", "PD308", "PD309", "PD310", "PD311", "PD312", "PD313", "PD315",
          "PD316")  # fmt: skip
ROLE, DOWN, FAR = "PD301", "PD604", "PD901"
ROOMS = ("PD701", "PD702", "PD703", "PD708", "PD409")
NOBODY: frozenset[str] = frozenset()
# Logs prove that a process, or a thread that every room needs, has ended.
GONE = ("PD704", "PD705", "PD709", "PD710")
NETWORK = ("PD401", "PD402", "PD403", "PD404", "PD405", "PD407", "PD408")


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
    ExplanationRow("PD601", (DOWN, FAR, ROLE, *ADDRESS, *UNLIKE, "PD610"), CauseReach.ANY),
    ExplanationRow("PD602", (DOWN,), CauseReach.SAME),
    ExplanationRow("PD602", (DOWN, FAR, "PD603", "PD216"), CauseReach.ANY),
    ExplanationRow("PD603", (DOWN, FAR), CauseReach.SAME),
    ExplanationRow("PD902", (FAR, "PD602", "PD903", "PD904"), CauseReach.ANY),
    ExplanationRow("PD205", ("PD903", "PD904"), CauseReach.SAME),
    ExplanationRow("PD903", ("PD218",), CauseReach.SAME),
    ExplanationRow("PD604", ("PD218", "PD224"), CauseReach.SAME),
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
        key = SharedKey(effect.code, peers, effect.seen, effect.rooms)
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
    rooms: frozenset[int]


def _coincides(cause: Finding, effect: Finding) -> bool:
    """Whether `cause` was so when `effect` was seen: not if it came later, or its lines tell of a moment long past.

    Nor if the lines of both name their rooms and none is the same, or the cause is an exception among requests that
    were answered: that tells of its own rooms alone.
    """
    if cause.seen is None:
        return True
    # A retry has a room of its own.
    if cause.rooms and effect.rooms and cause.rooms.isdisjoint(effect.rooms) and effect.code != RETRIED:
        return False
    set_up = is_of_set_up(cause.code)
    if set_up and cause.severity is Severity.INFO and cause.code not in PASSED and not cause.rooms & effect.rooms:
        return False
    began, ended = cause.seen
    momentary = cause.code in PASSED and math.isfinite(ended)
    if effect.seen is None:
        return not momentary  # the live checks say themselves what is so now
    if math.isinf(ended):
        return began <= effect.seen[1] + CLOCKS
    late = CLOCKS if set_up else NOTICED
    return began <= effect.seen[1] + late and not (momentary and effect.seen[0] > ended + LASTING)


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
