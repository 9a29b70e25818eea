"""From a question about servers to a Check: they are read once for all, and it says when there is nothing to ask of."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from pdctl.catalogue.entry import Needs
from pdctl.doctor.check import EMBEDDED, Check, Skipped, Unknown
from pdctl.doctor.finding import agreeing, names, shorten_lines
from pdctl.doctor.static import server_sources
from pdctl.doctor.static.servers import Servers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pdctl.doctor.check import Verdict
    from pdctl.doctor.facts import Facts
    from pdctl.doctor.finding import Finding

NO_TEXT = Skipped("no topology and no manifest was given")


def written(code: str, judge: Callable[[Servers], Verdict], *, embedded: bool = True) -> Check:
    """A check that asks `judge`. embedded False: it is about SGLang, and skipped where only pdctl's own engine runs."""

    def ask(facts: Facts) -> Verdict:
        servers = read(facts)
        if not isinstance(servers, Servers):
            return servers
        if servers.embedded and not embedded:
            return EMBEDDED
        verdict = judge(servers)
        return verdict if isinstance(verdict, (Skipped, Unknown)) else together(verdict)

    return Check(code, (Needs.TOPOLOGY,), ask)


def together(found: Iterable[Finding]) -> list[Finding]:
    """What is said of several servers in the same words is one finding that names them all, and belongs to none."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for one in found:
        words = tuple(text.replace(one.instance, "\0", 1) if one.instance else text for text in (one.headline, one.fix))
        groups.setdefault((one.code, one.severity.value, one.observed, one.expected, *words), []).append(one)
    return [_join_findings(group) if len(group) > 1 else group[0] for group in groups.values()]


def _join_findings(group: list[Finding]) -> Finding:
    first, who = group[0], list(dict.fromkeys(one.instance for one in group))
    if len(who) == 1:
        return first
    several = names(who)
    evidence = dict.fromkeys(line for one in group for line in one.evidence)
    return replace(
        first,
        instance="",
        headline=agreeing(first.headline.replace(first.instance, several, 1), several),
        fix=_for_all(first.fix, who, several),
        evidence=tuple(shorten_lines(list(evidence))),
    )


def _for_all(fix: str, who: list[str], several: str) -> str:
    """Where an option takes the server and what follows it, each server gets that option of its own."""
    option = re.search(rf"--[a-z-]+ {re.escape(who[0])}(?: (?!-)\S+)?$", fix) if who[0] else None
    if option is None:
        return fix.replace(who[0], several, 1)
    return fix[: option.start()] + " ".join(option[0].replace(who[0], one, 1) for one in who)


@lru_cache(maxsize=2)
def read(facts: Facts) -> Servers | Skipped | Unknown:
    """The servers of the topology, or else of the manifest. Facts are equal by identity: one reading for each."""
    if facts.topology is not None:
        from pdctl.layout.planner import plan_topology  # late: most callers bring the plan

        plan = facts.plan if facts.plan is not None else plan_topology(facts.topology)
        if plan.instances:
            return server_sources.from_plan(facts.topology, plan)
        first = plan.problems[0].message if plan.problems else "it has no instances"
        return Unknown(f"the plan places nothing: {first}")
    if facts.manifest is not None:
        return server_sources.from_manifest(facts.manifest)
    return NO_TEXT
