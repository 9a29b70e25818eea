"""Does the router know each prefill's bootstrap port? PD201 to PD204, PD206, PD207, PD215 and PD219."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pdctl.catalogue.entry import Needs
from pdctl.doctor.bootstrap_ports import (
    NO_SERVER,
    STRANGER,
    annotated,
    at_run_time,
    host_key,
    port_claims,
    router_command,
)
from pdctl.doctor.check import Check, Skipped, Unknown, finding, names, shorten_lines
from pdctl.shell_quoting import pasteable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdctl.doctor.bootstrap_ports import Claims, Landing, PortClaims
    from pdctl.doctor.check import Facts, Finding

LIVE = (Needs.ENDPOINT,)
ROUTED = (Needs.ENDPOINT, Needs.ROUTER)
Null = tuple["Claims", "tuple[Landing, ...]"]
NULL = "the router's GET /workers has no bootstrap_port for it: it sends null, and a decode puts its own port there"


def by_flag(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD202: the user (or the topology) gave another port than the one the running prefill reports."""
    ports = port_claims(facts)
    found = [
        replace(
            _wrong("PD202", ports, claim, "given", claim.flag),
            headline=f"bootstrap port {claim.flag} was given for {claim.prefill}, which listens on {port(claim)}",
            fix=f"give the port it listens on: --prefill {pasteable(claim.url)},{port(claim)}",
        )
        for claim in ports.claims
        if _is_wrong(claim, claim.flag)
    ]
    return found or undecided(ports)


def by_router(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD202: the router holds a wrong port, and not because the ports of several prefills are swapped (PD203)."""
    return _by_router(facts, "PD202")


def rust_server(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD219: the bootstrap routes are on the HTTP port (SGLANG_RUST_SERVER), but the router has another port."""
    return _by_router(facts, "PD219")


def _by_router(facts: Facts, code: str) -> list[Finding] | Skipped | Unknown:
    ports = port_claims(facts, True)
    exchanged = {claim.prefill for claim in _exchanged(ports)}
    found = [
        with_remedy(facts, _wrong(code, ports, claim, "router", claim.router), claim)
        for claim in ports.claims
        if _is_wrong(claim, claim.router) and claim.prefill not in exchanged and _rust(claim) == (code == "PD219")
    ]
    return found or unread(facts) or undecided(ports)


def _rust(claim: Claims) -> bool:
    return claim.server_info == claim.http_port


def _is_wrong(claim: Claims, said: int | None) -> bool:
    return said is not None and claim.server_info not in (None, said) and said != claim.http_port


def _wrong(code: str, ports: PortClaims, claim: Claims, place: str, said: int | None) -> Finding:
    assert said is not None
    return finding(
        code,
        claim.prefill,
        observed=str(said),
        expected=port(claim),
        evidence=(
            f"{claim.url}/server_info: disaggregation_bootstrap_port {claim.server_info}",
            f"{place}: {said}, that is {claim.host}:{said}; {ports.said_of(claim.host, said)}",
        ),
        url=claim.url,
        port=port(claim),
    )


def swapped(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD203: the router has the right ports, but for the wrong prefills."""
    ports = port_claims(facts, True)
    mixed = _exchanged(ports)
    if not mixed:
        return unread(facts) or undecided(ports)
    said = [f"{claim.prefill}: the router has {claim.router}, it listens on {claim.truth}" for claim in mixed]
    found = finding(
        "PD203",
        mixed[0].prefill,
        observed=", ".join(shorten_lines([f"{claim.prefill} {claim.router}" for claim in mixed])),
        expected=", ".join(shorten_lines([f"{claim.prefill} {claim.truth}" for claim in mixed])),
        evidence=shorten_lines(said),
        other=names([claim.prefill for claim in mixed[1:]]),
    )
    return [replace(found, fix=router_command(facts))]


def _exchanged(ports: PortClaims) -> list[Claims]:
    """The prefills whose ports the router has swapped among one another, if any."""
    off = [claim for claim in ports.claims if claim.server_info and claim.router and claim.router != claim.server_info]
    while off:
        real, held = {claim.server_info for claim in off}, {claim.router for claim in off}
        kept = [claim for claim in off if claim.router in real and claim.server_info in held]
        if len(kept) == len(off):
            return off if len(off) > 1 and len(real) == len(held) == len(off) else []
        off = kept
    return []


def collisions(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD204: two prefills of one host have one bootstrap port; the second cannot bind it and runs without."""
    ports = port_claims(facts)
    first: dict[tuple[str, int], Claims] = {}
    found: list[Finding] = []
    for claim in ports.claims:
        if claim.truth is None:
            continue
        holder = first.setdefault((host_key(claim.host), claim.truth), claim)
        if holder is not claim:
            found.append(_collision(ports, holder, claim, claim.truth))
    return found or undecided(ports)


def _collision(ports: PortClaims, holder: Claims, claim: Claims, number: int) -> Finding:
    winner = ports.listener(claim.host, number)
    answers = [f"{claim.host}:{number} is answered by {winner}"] if winner and winner != NO_SERVER else []
    taken = {each.truth for each in ports.claims} | {each.http_port for each in ports.claims}
    free = next(candidate for candidate in range(number + 1, number + 2 + len(taken)) if candidate not in taken)
    return finding(
        "PD204",
        claim.prefill,
        observed=str(number),
        expected="a bootstrap port of its own for every prefill of a host",
        evidence=(f"{holder.url}: {number}", f"{claim.url}: {number}", *answers),
        other=holder.prefill,
        port=free,
    )


def http_by_flag(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD206: the port given is the prefill's HTTP port. With the Rust server, which has both on one, that is right."""
    ports = port_claims(facts)
    found = [
        replace(
            _http(claim, "given"),
            headline=f"bootstrap port {claim.flag} was given for {claim.prefill}: that is its HTTP port, "
            f"the bootstrap server listens on {_beside_http(claim) or 'another one'}",
            fix=f"give the port it listens on: --prefill {pasteable(claim.url)},{_beside_http(claim) or 'PORT'}",
        )
        for claim in ports.claims
        if _is_http(claim, claim.flag)
    ]
    return found or undecided(ports)


def http_by_router(facts: Facts) -> list[Finding] | Skipped | Unknown:
    ports = port_claims(facts, True)
    found = [
        with_remedy(facts, _http(claim, "router"), claim) for claim in ports.claims if _is_http(claim, claim.router)
    ]
    return found or unread(facts) or undecided(ports)


def _is_http(claim: Claims, said: int | None) -> bool:
    return said == claim.http_port and claim.server_info != said and said not in claim.answered


def _beside_http(claim: Claims) -> str:
    """The port of its bootstrap server; "" if all that is known is that it is not the HTTP port."""
    return "" if claim.truth in (None, claim.http_port) else str(claim.truth)


def _http(claim: Claims, place: str) -> Finding:
    return finding(
        "PD206",
        claim.prefill,
        observed=str(claim.http_port),
        expected=_beside_http(claim) or "another port",
        evidence=(
            f"{place}: {claim.http_port}, and {claim.url} is its HTTP address",
            f"{claim.url}/server_info: disaggregation_bootstrap_port {claim.server_info or 'not read'}",
        ),
        url=claim.url,
        port=_beside_http(claim) or "PORT",
    )


def by_annotation(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD215: the pod annotation read by the router's discovery differs from what the running prefill reports."""
    said = annotated(facts)
    claims = [claim for claim in port_claims(facts).claims if claim.prefill in said]
    if not claims:
        return Skipped("no manifest with annotated prefill pods was given")
    return [
        finding(
            "PD215",
            claim.prefill,
            observed=str(said[claim.prefill]),
            expected=port(claim),
            evidence=(f"{claim.url}/server_info: disaggregation_bootstrap_port {claim.server_info}",),
            port=port(claim),
        )
        for claim in claims
        if claim.server_info not in (None, said[claim.prefill])
    ]


def unread(facts: Facts) -> Skipped | Unknown | None:
    """Why the router's own list cannot be used, or None if it can."""
    router = facts.router
    if router is None:
        return Skipped("no router was given")
    if not router.reached:
        return Unknown(f"{router.url} was not reached: {router.reason}")
    if router.workers is None:
        return Unknown(f"{router.url} does not list its workers, so the ports it holds cannot be read")
    return None


def undecided(ports: PortClaims) -> list[Finding] | Skipped | Unknown:
    """No findings, if every prefill reported its port; else Unknown or Skipped."""
    if not ports.claims:
        return Skipped("no prefill was given")
    silent = [claim.prefill for claim in ports.claims if claim.truth is None]
    return Unknown(f"the bootstrap port of {names(silent)} could not be read") if silent else []


def port(claim: Claims) -> str:
    return "its own bootstrap port" if claim.truth is None else str(claim.truth)


def with_remedy(facts: Facts, found: Finding, claim: Claims) -> Finding:
    """`found` with the router's whole command as the fix, and the way without a restart as evidence."""
    live = at_run_time(facts.router, claim.url, "prefill", claim.truth) if facts.router is not None else ""
    evidence = (*found.evidence, f"without a restart: {live}") if live and claim.truth is not None else found.evidence
    return replace(found, fix=router_command(facts), evidence=evidence)


def null_ports(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD201: the router sends null for a prefill, and at least one decode then takes its rooms elsewhere."""
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
    """PD207: the router sends null, but every decode's own port happens to be the right one."""
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
                evidence=(NULL, *shorten_lines([_way(claim, each) for each in landings])),
                url=claim.url,
                port=port(claim),
            ),
            claim,
        )
        for claim, landings in nulls
        if landings
    ]


def _nulls(facts: Facts) -> list[Null]:
    ports = port_claims(facts, True)
    decodes = [engine for engine in facts.engines if engine.endpoint.role == "decode"]
    return [(claim, ports.landings(claim, decodes)) for claim in ports.claims if claim.sends_null]


def _fails(landing: Landing) -> bool:
    return landing.reaches is not None and not landing.lucky


def _astray(facts: Facts, claim: Claims, landings: tuple[Landing, ...], lucky: list[str]) -> Finding:
    """The finding PD201; `observed` is where the decodes that go astray really ask."""
    failing = [each for each in landings if _fails(each)]
    goes = list(dict.fromkeys(f"{claim.host}:{each.port} ({each.reaches or 'nobody'})" for each in failing))
    found = finding(
        "PD201",
        claim.prefill,
        observed=" or ".join(shorten_lines(goes)),
        expected=f"{claim.host}:{port(claim)}",
        evidence=(NULL, *shorten_lines([_way(claim, each) for each in failing]), *shorten_lines(lucky)),
        url=claim.url,
        port=port(claim),
    )
    return with_remedy(facts, found, claim)


def _crowded(nulls: Iterable[Null]) -> bool:
    """Whether two of the prefills share a host: a decode's own port can be right for only one of them."""
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
    if reaches == NO_SERVER:
        return "which is no bootstrap server"
    return f"which is {reaches}" if reaches == STRANGER else f"which is {reaches}'s"


def _pair(landing: Landing) -> str:
    return f"{landing.prefill} → {landing.decode}"


CHECKS = (
    Check("PD201", ROUTED, null_ports),
    Check("PD207", ROUTED, works_by_luck),
    Check("PD202", LIVE, by_flag),
    Check("PD202", ROUTED, by_router),
    Check("PD203", ROUTED, swapped),
    Check("PD204", LIVE, collisions),
    Check("PD206", LIVE, http_by_flag),
    Check("PD206", ROUTED, http_by_router),
    Check("PD219", ROUTED, rust_server),
    Check("PD215", (Needs.TOPOLOGY, Needs.ENDPOINT), by_annotation),
)
