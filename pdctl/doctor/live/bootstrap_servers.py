"""Is each prefill's bootstrap server there, complete, and are its ranks? PD205, PD208 to PD212 and PD217."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from pdctl.catalogue.entry import Needs
from pdctl.doctor.bootstrap_ports import WILDCARD, address, answers_http, host_key, plain, port_claims, workers
from pdctl.doctor.check import Check, Skipped, Unknown, finding, names, shorten_lines
from pdctl.doctor.live.router_ports import undecided, unread
from pdctl.doctor.server_info import ranks, release
from pdctl.engines.sglang.behaviour import STALE_RANKS_KEPT_BEHIND_A_SERVICE, WILDCARD_REGISTERS_ITSELF
from pdctl.loopback import is_loopback
from pdctl.shell_quoting import pasteable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pdctl.doctor.bootstrap_ports import Claims
    from pdctl.doctor.check import Facts, Finding
    from pdctl.fleet.observations import Bootstrap, ObservedEngine, RankAddress

UNNAMED = re.compile(r": (?:400|404|503) ")  # the statuses of a bootstrap server that does not know a rank
SERVICE = (".svc", ".svc.cluster.local")  # a Kubernetes Service name, which outlives the pods behind it


def unreachable(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD205: no bootstrap server answers where the prefill's own should be."""
    engines = {engine.endpoint.name: engine for engine in facts.engines}
    ports = port_claims(facts)
    found: list[Finding] = []
    unseen: list[str] = []
    late: dict[str, list[str]] = {}
    for claim, seen in _with_own_server(facts):
        if seen is None:
            unseen.append(claim.prefill)
        elif not seen.asked:
            late.setdefault(seen.reason, []).append(claim.prefill)
        elif not seen.style:
            name = ports.http.get((host_key(claim.host), seen.port), "")
            found.append(_unreachable(claim, seen, engines[claim.prefill], name))
    if found or not (unseen or late):
        return found or undecided(ports)
    if late:
        return Unknown("; ".join(f"bootstrap servers of {names(who)}: {why}" for why, who in late.items()))
    return Unknown(f"the bootstrap server of {names(unseen)} was not looked at: its port is not known")


def _with_own_server(facts: Facts) -> Iterator[tuple[Claims, Bootstrap | None]]:
    """Each prefill with what was seen at its own port."""
    ports = port_claims(facts)
    for claim in ports.claims:
        yield claim, None if claim.truth is None else ports.seen.get((host_key(claim.host), claim.truth))


def _unreachable(claim: Claims, seen: Bootstrap, engine: ObservedEngine, name: str) -> Finding:
    """The finding PD205. `name`: whose HTTP port it is, "" if unknown."""
    strange = seen.serves in ("engine", "http")
    why = answers_http(seen, name) if strange else "no bootstrap server" if seen.reached else seen.reason
    http = "answers" if engine.reached else f"does not answer either: {engine.reason}"
    return finding(
        "PD205",
        claim.prefill,
        observed=f"{seen.host}:{seen.port}: {why}",
        expected=f"a bootstrap server at {seen.host}:{seen.port}",
        evidence=(f"GET http://{seen.host}:{seen.port}/health: {why}", f"its HTTP port, {claim.url}, {http}"),
        host=seen.host,
        port=seen.port,
    )


def loopback_by_url(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD208: a prefill is given by a loopback address while a decode is on another host."""
    return _loopback(facts, {plain(engine.endpoint.url): engine.endpoint.role for engine in facts.engines})


def loopback_by_router(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD208, by the router's addresses: it passes the prefill's host on to the decode unchanged."""
    listed = {plain(worker.url): worker.role for worker in workers(facts.router)}
    return unread(facts) or _loopback(facts, listed)


def _loopback(facts: Facts, roles: Mapping[str, str]) -> list[Finding] | Skipped:
    hosts = {url: address(url)[0] for url in roles}
    elsewhere = [url for url, host in hosts.items() if roles[url] == "decode" and not is_loopback(host)]
    near = [url for url, host in hosts.items() if roles[url] == "prefill" and is_loopback(host)]
    if not near or not elsewhere:
        return [] if len(roles) > 1 else Skipped("fewer than two instances")
    named = {plain(engine.endpoint.url): engine.endpoint.name for engine in facts.engines}
    return [
        finding(
            "PD208",
            named.get(url, url),
            observed=url,
            expected="an address of the prefill's host that every decode reaches",
            evidence=shorten_lines([f"{named.get(other, other)} is at {other}" for other in elsewhere]),
            port=address(url)[1],
        )
        for url in near
    ]


def unregistered(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD209: the bootstrap server is waiting for ranks, or refuses to name one."""
    engines = {engine.endpoint.name: engine for engine in facts.engines}
    found: list[Finding] = []
    for claim, seen in _with_own_server(facts):
        if seen is None or not seen.style:
            continue
        owed = seen.expected or ranks(engines[claim.prefill])
        have = seen.registered
        short = owed is not None and have is not None and have < owed
        if short or _refused(seen) or _gave_no_topology(seen):
            found.append(_while_starting(_unregistered(claim, seen, have, owed), engines[claim.prefill]))
    dark = {
        claim.prefill: seen.unranked[0]
        for claim, seen in _with_own_server(facts)
        if seen is not None and seen.unranked and not _refused(seen)
    }
    why = "; ".join(f"{prefill}: {said}" for prefill, said in dark.items())
    return found or (Unknown(f"not every rank was named: {why}") if dark else _seen_all(facts))


def _refused(seen: Bootstrap) -> list[str]:
    """Ranks it was asked for and refused to name. One that was not asked for, or not in time, proves nothing."""
    return [line for line in seen.unranked if UNNAMED.search(line)]


def _gave_no_topology(seen: Bootstrap) -> bool:
    """Whether it answered the topology query with something other than a topology."""
    return seen.route is not None and not _sized(seen)


def _sized(seen: Bootstrap) -> bool:
    """Whether the answer has sizes; 0.5.3 and 0.5.8 answer with null sizes until the first rank has registered."""
    return any(value is not None for value in seen.topology.values())


def _unregistered(claim: Claims, seen: Bootstrap, have: int | None, owed: int | None) -> Finding:
    refused = _refused(seen)
    if owed is not None and refused and have in (None, owed):
        have = owed - len(refused)
    status = [] if seen.route is None else [f"GET http://{seen.host}:{seen.port}{seen.route.path}: {seen.route.status}"]
    said = str(seen.route.body).strip()[:200] if seen.route is not None and seen.route.status != 200 else ""
    return finding(
        "PD209",
        claim.prefill,
        observed="an unknown number" if have is None else str(have),
        expected="all" if owed is None else str(owed),
        evidence=(*status, *([said] if said else []), *shorten_lines(refused)),
    )


def _while_starting(found: Finding, engine: ObservedEngine) -> Finding:
    """`found`, with the advice to wait where the engine itself says that it does not serve yet: a restart delays it."""
    health = engine.health
    if health is None or not health.status or health.ok:
        return found
    url = plain(engine.endpoint.url)
    return replace(
        found,
        headline=f"{found.headline}; it is not up yet: {health.path} answers {health.status}",
        evidence=(*found.evidence, f"{url}{health.path}: {health.status}"),
        fix=f"curl -sS {pasteable(url + health.path)}   # until it answers 200; if it never does: {found.fix}",
    )


def _seen_all(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """No findings, if every server could be asked; else Unknown or Skipped."""
    missing = [claim.prefill for claim, seen in _with_own_server(facts) if seen is None or not seen.style]
    if missing:
        return Unknown(f"the bootstrap server of {names(missing)} did not answer")
    return [] if facts.engines else Skipped("no prefill was given")


def rank_unreachable(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD210: a rank's registered address does not accept a connection from here."""
    found = [
        _unreachable_ranks(claim, lost)
        for claim, seen in _with_own_server(facts)
        if (lost := [one for one in (seen.ranks if seen else ()) if one.reached is False and not _untried(one)])
    ]
    if found:
        return found
    untried = [
        claim.prefill
        for claim, seen in _with_own_server(facts)
        for one in (seen.ranks if seen else ())
        if _untried(one)
    ]
    if untried:
        return Unknown(f"ranks of {names(list(dict.fromkeys(untried)))} were not dialled")
    return _seen_all(facts)


def _untried(one: RankAddress) -> bool:
    """Whether it was not dialled, or only after its time had run out."""
    return one.reached is None or (one.reached is False and one.reason.endswith("within 0 s"))


def _unreachable_ranks(claim: Claims, lost: list[RankAddress]) -> Finding:
    first = lost[0]
    each = [f"rank dp{one.dp} cp{one.cp} tp{one.tp} pp{one.pp} at {one.ip}:{one.port}: {one.reason}" for one in lost]
    said = shorten_lines(each)
    if any("refused" in one.reason for one in lost):
        said.append("a host that refuses is there, and nobody listens: the process that registered is gone")
    more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
    return finding(
        "PD210",
        claim.prefill,
        observed=f"{first.ip}:{first.port}{more}",
        expected="a port every decode can connect to",
        evidence=said,
    )


def stale(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD211: what a decode may have cached about this prefill is no longer true."""
    found: list[Finding] = []
    owners: dict[tuple[str, int], str] = {}
    servers: set[tuple[str, int]] = set()
    engines = {engine.endpoint.name: engine for engine in facts.engines}
    for claim, seen in _with_own_server(facts):
        if seen is None or not seen.style or (seen.host, seen.port) in servers:
            continue
        servers.add((seen.host, seen.port))
        found += _shared_rank_addresses(claim, seen, owners)
        found += _replaced(claim, seen, engines[claim.prefill])
    return found or _seen_all(facts)


def _shared_rank_addresses(claim: Claims, seen: Bootstrap, owners: dict[tuple[str, int], str]) -> Iterator[Finding]:
    """Findings for rank addresses that two prefills list: one of the two lists is stale."""
    for one in seen.ranks:
        at = f"{host_key(claim.host)} {one.ip}" if is_loopback(one.ip) else one.ip
        owner = owners.setdefault((at, one.port), claim.prefill)
        if owner != claim.prefill:
            yield finding(
                "PD211",
                claim.prefill,
                observed=f"{seen.host}:{seen.port}",
                expected="rank addresses of its own",
                evidence=(f"rank {one.ip}:{one.port} is listed by {owner} as well",),
            )
            return


def _replaced(claim: Claims, seen: Bootstrap, engine: ObservedEngine) -> Iterator[Finding]:
    known = release(engine)
    more = seen.registered is not None and seen.expected is not None and seen.registered > seen.expected
    if more:
        why = f"{seen.registered} registrations for {seen.expected} ranks: some have registered again"
    elif claim.host.endswith(SERVICE) and (known is None or STALE_RANKS_KEPT_BEHIND_A_SERVICE.holds(known)):
        why = f"{claim.host} is a Service: it stays when the pod behind it is replaced"
    else:
        return
    yield finding(
        "PD211",
        claim.prefill,
        observed=claim.host,
        expected="an address that changes with the process",
        evidence=(why, *shorten_lines([f"rank at {one.ip}:{one.port}" for one in seen.ranks])),
    )


def wildcard(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD212: listens on a wildcard address, in a release that registers that address, and is not complete."""
    owned = {claim.prefill: seen for claim, seen in _with_own_server(facts)}
    found: list[Finding] = []
    unknown: list[str] = []
    for engine in facts.engines:
        if (
            engine.endpoint.role != "prefill"
            or engine.text("host") not in WILDCARD
            or engine.info.get("dist_init_addr")
        ):
            continue
        known = release(engine)
        if known is None:
            unknown.append(engine.endpoint.name)
        elif WILDCARD_REGISTERS_ITSELF.holds(known) and not _complete(owned.get(engine.endpoint.name)):
            found.append(_wildcard(engine))
    if found or not unknown:
        return found or _read(facts.engines)
    return Unknown(f"the release of {names(unknown)} is not known")


def _complete(seen: Bootstrap | None) -> bool:
    return seen is not None and _sized(seen) and not seen.unranked


def _wildcard(engine: ObservedEngine) -> Finding:
    return finding(
        "PD212",
        engine.endpoint.name,
        observed=f"--host {engine.text('host')}",
        expected="--host with the node's own address, or SGLang 0.5.14",
        evidence=(f"{engine.endpoint.url}/server_info: version {engine.version}, host {engine.text('host')}",),
    )


def rendezvous(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD217: the ranks of several nodes register at the rendezvous host, but decodes are sent to the URL's host."""
    spread = [
        engine
        for engine in facts.engines
        if engine.endpoint.role == "prefill" and (engine.number("nnodes") or 1) > 1 and engine.text("dist_init_addr")
    ]
    if not spread:
        return _read(facts.engines)
    found: list[Finding] = []
    for engine in spread:
        given = engine.text("dist_init_addr") or ""
        meets, host = given.rpartition(":")[0].strip("[]"), address(engine.endpoint.url)[0]
        if meets and host_key(meets) != host_key(host):
            found.append(
                finding(
                    "PD217",
                    engine.endpoint.name,
                    observed=meets,
                    expected=host,
                    evidence=(
                        f"{engine.endpoint.url}/server_info: dist_init_addr {given}, nnodes {engine.number('nnodes')}",
                    ),
                )
            )
    return found


def _read(engines: Iterable[ObservedEngine]) -> list[Finding] | Skipped | Unknown:
    prefills = [engine for engine in engines if engine.endpoint.role == "prefill"]
    silent = [engine.endpoint.name for engine in prefills if not engine.info]
    if silent:
        return Unknown(f"{names(silent)} could not be read")
    return [] if prefills else Skipped("no prefill was given")


LIVE = (Needs.ENDPOINT,)
CHECKS = (
    Check("PD205", LIVE, unreachable),
    Check("PD208", LIVE, loopback_by_url),
    Check("PD208", (Needs.ENDPOINT, Needs.ROUTER), loopback_by_router),
    Check("PD209", LIVE, unregistered),
    Check("PD210", LIVE, rank_unreachable),
    Check("PD211", LIVE, stale),
    Check("PD212", LIVE, wildcard),
    Check("PD217", LIVE, rendezvous),
)
