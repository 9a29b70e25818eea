"""Causes before consequences: a finding that another one explains says so and stands after it.

Nothing is dropped and no severity changes; a consequence that turns out not to be one is still there to be read.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from pdctl.doctor.selection import ORDER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pdctl.doctor.facts import Facts
    from pdctl.doctor.finding import Finding

EXPLAINED = "explained by "
SHOWN = 2  # causes named with one consequence
CROWD = 8  # findings alike that still stand one by one


class Reach(str, Enum):
    """Whom a cause must concern to explain a consequence."""

    SAME = "same"  # the same instance
    PAIR = "pair"  # an end of a pair of the consequence's instance that failed
    ANY = "any"


class Row(NamedTuple):
    effect: str
    causes: tuple[str, ...]
    reach: Reach


ADDRESS = ("PD201", "PD202", "PD203", "PD204", "PD205", "PD206", "PD208", "PD209", "PD210", "PD212", "PD219")
UNLIKE = ("PD302", "PD303", "PD304", "PD305", "PD306", "PD308", "PD309", "PD310", "PD311", "PD312", "PD313", "PD315",
          "PD316")  # fmt: skip
ROLE, DOWN, FAR = "PD301", "PD604", "PD901"
ROOMS = ("PD701", "PD702", "PD703", "PD708", "PD409")
GONE = ("PD704", "PD705", "PD709", "PD710")
NETWORK = ("PD401", "PD402", "PD403", "PD404", "PD405", "PD407", "PD408")

ROWS: tuple[Row, ...] = (
    Row("PD610", (ROLE, DOWN, FAR, *ADDRESS, *UNLIKE, "PD217"), Reach.PAIR),
    Row("PD610", ("PD409", *NETWORK, *GONE), Reach.ANY),
    Row("PD611", (*UNLIKE, "PD711"), Reach.PAIR),
    Row("PD613", (ROLE, DOWN, FAR, *ADDRESS, *UNLIKE), Reach.PAIR),
    Row("PD613", ("PD710",), Reach.SAME),
    Row("PD605", (*ADDRESS, *UNLIKE), Reach.PAIR),
    Row("PD605", ("PD610",), Reach.PAIR),
    Row("PD201", (ROLE,), Reach.SAME),
    Row("PD202", (ROLE, "PD204"), Reach.SAME),
    Row("PD205", (ROLE, DOWN, FAR, "PD204"), Reach.SAME),
    Row("PD205", (DOWN, "PD202", "PD203", "PD206"), Reach.ANY),
    Row("PD409", (DOWN, FAR), Reach.ANY),
    Row("PD209", (ROLE, DOWN, FAR, "PD204", "PD212", "PD217"), Reach.SAME),
    Row("PD210", (DOWN, FAR, "PD709"), Reach.SAME),
    Row("PD211", (DOWN, FAR, "PD210"), Reach.SAME),
    Row("PD216", (DOWN, FAR, "PD603"), Reach.ANY),
    Row("PD601", (DOWN, FAR), Reach.SAME),
    Row("PD601", (ROLE, *ADDRESS, *UNLIKE, "PD610"), Reach.ANY),
    Row("PD602", (DOWN, FAR, "PD603", "PD216"), Reach.ANY),
    Row("PD603", (DOWN, FAR), Reach.SAME),
    Row("PD902", (FAR, "PD602", "PD903", "PD904"), Reach.ANY),
    Row("PD205", ("PD903", "PD904"), Reach.SAME),
    Row("PD903", ("PD218",), Reach.SAME),
    Row("PD604", ("PD218",), Reach.SAME),
    Row("PD701", ("PD201", "PD202", "PD203", "PD204", "PD206"), Reach.ANY),
    Row("PD702", (*ADDRESS, *UNLIKE, "PD501"), Reach.ANY),
    Row("PD703", (ROLE, DOWN, "PD601"), Reach.ANY),
    Row("PD708", (*ADDRESS, *UNLIKE, "PD409", *NETWORK), Reach.ANY),
    Row("PD709", UNLIKE, Reach.ANY),
    Row("PD713", (ROLE,), Reach.ANY),
    Row("PD714", (ROLE, "PD307", *ADDRESS), Reach.ANY),
    Row("PD706", (*ADDRESS, *UNLIKE, *ROOMS), Reach.ANY),
    Row("PD715", (DOWN, *ADDRESS, *UNLIKE, *ROOMS), Reach.ANY),
    Row("PD604", ("PD704", "PD705", "PD709"), Reach.SAME),
)


def fold(findings: Iterable[Finding], facts: Facts) -> tuple[Finding, ...]:
    """Causes first, the severest on top, in the catalogue's order; then what they explain."""
    ordered = sorted(_crowds(list(findings)), key=lambda one: (ORDER.index(one.severity), one.code))
    peers = _peers(facts)
    causes = {id(one): _causes(one, ordered, peers) for one in ordered}
    roots = [one for one in ordered if not causes[id(one)]]
    rest = [_explained(one, _roots(one, causes)) for one in ordered if causes[id(one)]]
    return (*roots, *rest)


def _crowds(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Many instances with one fault and one fix are one finding about the deployment, which names them all."""
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


def consequence(one: Finding) -> bool:
    return any(line.startswith(EXPLAINED) for line in one.evidence)


def _causes(effect: Finding, all_: Sequence[Finding], peers: Mapping[str, frozenset[str]]) -> list[Finding]:
    found = [
        cause
        for row in ROWS
        if row.effect == effect.code
        for cause in all_
        if cause.code in row.causes and not cause.suppressed and _concerns(row.reach, cause, effect, peers)
    ]
    return list({id(one): one for one in found}.values())


def _concerns(reach: Reach, cause: Finding, effect: Finding, peers: Mapping[str, frozenset[str]]) -> bool:
    """A finding without an instance is about the whole deployment; one about "prefill" about every prefill-N."""
    if reach is Reach.ANY or not cause.instance:
        return True
    ends = {effect.instance} | (peers.get(effect.instance, frozenset()) if reach is Reach.PAIR else frozenset())
    return cause.instance in ends or any(end.startswith(f"{cause.instance}-") for end in ends)


def _peers(facts: Facts) -> dict[str, frozenset[str]]:
    """Instance → the other ends of pairs that failed. Without canaries: everybody of the other role."""
    found: dict[str, set[str]] = {}
    for one in facts.canaries:
        if one.kind == "pair" and one.ok is not True:
            found.setdefault(one.prefill, set()).add(one.decode)
            found.setdefault(one.decode, set()).add(one.prefill)
    if not found:
        by_role: dict[str, set[str]] = {"prefill": set(), "decode": set()}
        for engine in facts.engines:
            by_role.setdefault(engine.endpoint.role, set()).add(engine.endpoint.name)
        found = dict.fromkeys(by_role["prefill"], by_role["decode"])
        found |= dict.fromkeys(by_role["decode"], by_role["prefill"])
    return {name: frozenset(others) for name, others in found.items()}


def _roots(effect: Finding, causes: Mapping[int, Sequence[Finding]]) -> list[Finding]:
    """The causes at the end of the chain."""
    seen: set[int] = {id(effect)}
    todo, ends = list(causes[id(effect)]), []
    while todo:
        one = todo.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        todo += causes[id(one)]
        if not causes[id(one)]:
            ends.append(one)
    return ends


def _explained(effect: Finding, roots: Sequence[Finding]) -> Finding:
    said = [f"{one.code} {one.slug}" + (f" at {one.instance}" if one.instance else "") for one in roots]
    shown = ", ".join(said[:SHOWN]) + (f" and {len(said) - SHOWN} more" if len(said) > SHOWN else "")
    return replace(effect, evidence=(EXPLAINED + shown, *effect.evidence))
