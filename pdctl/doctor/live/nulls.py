"""A router that was told no bootstrap port sends null: whose rooms then go astray? PD201 and PD207."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pdctl.catalogue.entry import Needs
from pdctl.doctor.check import Check, Skipped, Unknown, finding
from pdctl.doctor.live.ports import port, unread, with_remedy
from pdctl.doctor.ports import STRANGER, agreement
from pdctl.doctor.words import few, names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdctl.doctor.facts import Facts
    from pdctl.doctor.finding import Finding
    from pdctl.doctor.ports import Claims, Landing

Null = tuple["Claims", "tuple[Landing, ...]"]
NULL = "the router's GET /workers has no bootstrap_port for it: it sends null, and a decode puts its own port there"


def null(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD201: the router sends null for a prefill, and at least one decode takes its rooms elsewhere."""
    nulls = _nulls(facts)
    lucky = [f"{_pair(each)} works by luck" for _, landings in nulls for each in landings if each.lucky]
    found = [_astray(facts, claim, landings, lucky) for claim, landings in nulls if any(map(_fails, landings))]
    if found:
        return found
    dark = [each for _, landings in nulls for each in landings if each.reaches is None]
    if len(nulls) > 1 and dark:
        return [_at_most_one(facts, nulls)] if _crowded(nulls) else _dark(dark)
    return _dark(dark) if dark else unread(facts) or []


def works_by_luck(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD207: nothing but nulls, and every decode's own port happens to be the right one."""
    nulls = _nulls(facts)
    dark = [each for _, landings in nulls for each in landings if each.reaches is None]
    if dark:
        return _dark(dark)
    if not nulls or not all(each.lucky for _, landings in nulls for each in landings):
        return unread(facts) or []
    return [
        with_remedy(
            facts,
            finding(
                "PD207",
                claim.prefill,
                observed="null",
                expected=port(claim),
                evidence=(NULL, *few([_way(claim, each) for each in landings])),
                url=claim.url,
                port=port(claim),
            ),
            claim,
        )
        for claim, landings in nulls
        if landings
    ]


def _nulls(facts: Facts) -> list[Null]:
    ports = agreement(facts, True)
    decodes = [engine for engine in facts.engines if engine.endpoint.role == "decode"]
    return [(claim, ports.landings(claim, decodes)) for claim in ports.claims if claim.sends_null]


def _fails(landing: Landing) -> bool:
    return landing.reaches is not None and not landing.lucky


def _astray(facts: Facts, claim: Claims, landings: tuple[Landing, ...], lucky: list[str]) -> Finding:
    """`observed` is where the first decode that goes astray really asks."""
    failing = [each for each in landings if _fails(each)]
    goes = list(dict.fromkeys(f"{claim.host}:{each.port} ({_whose(each)})" for each in failing))
    found = finding(
        "PD201",
        claim.prefill,
        observed=" or ".join(few(goes)),
        expected=f"{claim.host}:{port(claim)}",
        evidence=(NULL, *few([_way(claim, each) for each in failing]), *few(lucky)),
        url=claim.url,
        port=port(claim),
    )
    return with_remedy(facts, found, claim)


def _whose(landing: Landing) -> str:
    if not landing.reaches:
        return "nobody"
    return landing.reaches


def _crowded(nulls: Iterable[Null]) -> bool:
    """Whether two of them share a host: one decode's own port can be only one of theirs."""
    hosts = [claim.host for claim, _ in nulls]
    return len(set(hosts)) < len(hosts)


def _at_most_one(facts: Facts, nulls: list[Null]) -> Finding:
    who = names([claim.prefill for claim, _ in nulls])
    claim = nulls[0][0]
    found = finding(
        "PD201",
        who,
        observed="its own port, which could not be read,",
        expected="the port of each",
        evidence=(NULL, f"{who} share a host: a decode's own port is that of one of them at most"),
        url=claim.url,
        port=port(claim),
    )
    return replace(with_remedy(facts, found, claim), instance="")


def _dark(landings: list[Landing]) -> Unknown:
    first = landings[0]
    why = (
        f"{first.decode} does not say its own port"
        if first.port is None
        else f"who listens on port {first.port} was not looked at"
    )
    return Unknown(f"the router sends null for {first.prefill}, and where its rooms go is not known: {why}")


def _way(claim: Claims, landing: Landing) -> str:
    if landing.port is None:
        return f"{_pair(landing)}: {landing.decode} does not say its own port, so where its rooms go is not known"
    goes = f"{landing.decode} asks {claim.host}:{landing.port}"
    if landing.lucky:
        return f"{_pair(landing)} works by luck: {goes}, which is {landing.prefill}'s"
    if landing.reaches is None:
        return f"{_pair(landing)}: {goes}; who listens there was not looked at"
    return f"{_pair(landing)} will fail: {goes}, {_who(landing.reaches)}"


def _who(reaches: str) -> str:
    if not reaches:
        return "where nobody listens"
    return f"which is {reaches}" if reaches == STRANGER else f"which is {reaches}'s"


def _pair(landing: Landing) -> str:
    return f"{landing.prefill} → {landing.decode}"


ROUTED = (Needs.ENDPOINT, Needs.ROUTER)
CHECKS = (Check("PD201", ROUTED, null), Check("PD207", ROUTED, works_by_luck))
