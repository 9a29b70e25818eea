"""What each router knows of each prefill's bootstrap port, against the port on which the prefill has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.catalogue.entry import Severity
from pdctl.doctor.check import Skipped, finding
from pdctl.doctor.static.listen_addresses import WILDCARD, is_ip, port_collisions
from pdctl.doctor.static.server_sources import RUST, claims, service_of, written
from pdctl.fleet.address import host_and_port
from pdctl.loopback import bracketed, is_loopback
from pdctl.manifests.manifest import COMPOSE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.doctor.check import Finding, Verdict
    from pdctl.doctor.static.server_sources import ListedPort
    from pdctl.doctor.static.servers import Server, Servers
    from pdctl.manifests.manifest import SaidSetting

ANNOTATION = "sglang.ai/bootstrap-port"  # sglang_router 0.3.2, smg 1.13.0
FORMER = "sglang.ai/mooncake.bootstrap-port"


def _settled(servers: Servers) -> tuple[ListedPort, ...]:
    """The claims without those about a bootstrap port that another prefill has: PD204 says what both need."""
    moved = [each.moved.engine for each in port_collisions(servers) if each.code == "PD204"]
    return tuple(claim for claim in claims(servers) if not any(claim.engine is one for one in moved))


def null_ports(servers: Servers) -> Iterator[Finding]:
    """PD201: a null is replaced by the decode's own port, which is wrong unless it happens to be the prefill's."""
    for claim in _settled(servers):
        if claim.listed.port is None and not _lucky(servers, claim) and not _may_be_lucky(servers, claim):
            dialled = sorted({_dialled(servers, claim, one.bootstrap_port) for one in servers.of("decode")})
            observed = " or ".join(dialled) or "the decode's own bootstrap port"
            alone = claim.engine is None and len(claim.router.prefills) == 1
            yield finding(
                "PD201",
                claim.name,
                observed,
                _address(claim, claim.true) if claim.true is not None else "the prefill's bootstrap port",
                [claim.listed.evidence, *_flag(claim.engine)],
                Severity.WARNING if alone else None,
                url=claim.listed.url,
                port=claim.true if claim.true is not None else "PORT",
            )


def _address(claim: ListedPort, port: int | None) -> str:
    """host:port as a decode dials it; the host is always that of the prefill's URL."""
    host = host_and_port(claim.listed.url)[0] or "HOST"
    return f"{bracketed(host)}:{'?' if port is None else port}"


def _dialled(servers: Servers, claim: ListedPort, port: int | None) -> str:
    """The address a decode dials, with the name of the prefill that listens there if it is another one."""
    there = (
        each.name
        for each in claims(servers)
        if port is not None and each.true == port and _address(each, port) == _address(claim, port)
    )
    who = next((name for name in there if name != claim.name), "")
    return _address(claim, port) + (f" ({who})" if who else "")


def lucky(servers: Servers) -> Iterator[Finding]:
    for claim in _settled(servers):
        if claim.listed.port is None and _lucky(servers, claim):
            evidence = [claim.listed.evidence, *_flag(claim.engine)]
            yield finding("PD207", claim.name, "null", str(claim.true), evidence, url=claim.listed.url, port=claim.true)


def _lucky(servers: Servers, claim: ListedPort) -> bool:
    """Whether every decode's own port is the prefill's; the host, which comes from the URL, is always right."""
    decodes = servers.of("decode")
    return claim.true is not None and bool(decodes) and all(one.bootstrap_port == claim.true for one in decodes)


def _may_be_lucky(servers: Servers, claim: ListedPort) -> bool:
    """Whether the address leads to no engine here, and every prefill in these files has every decode's own port."""
    ports = {one.bootstrap_port for role in ("prefill", "decode") for one in servers.of(role)}
    known = bool(servers.of("prefill") and servers.of("decode")) and None not in ports
    return claim.engine is None and known and len(ports) == 1


def _flag(engine: Server | None) -> Iterator[str]:
    said = engine.flags.find("disaggregation-bootstrap-port") if engine is not None else None
    if said is not None:
        yield said.evidence


def wrong(servers: Servers) -> Iterator[Finding]:
    """PD202: the port is neither the engine's, nor its HTTP port (PD206), nor another's in the list (PD203)."""
    for claim in _differing(servers):
        assert claim.engine is not None
        if claim.listed.port != claim.engine.port and _other(servers, claim) is None:
            yield _claim_finding("PD202", claim)


def is_http(servers: Servers) -> Iterator[Finding]:
    for claim in _differing(servers):
        assert claim.engine is not None
        if claim.listed.port == claim.engine.port and not claim.engine.on(RUST):
            yield _claim_finding("PD206", claim)


def swapped(servers: Servers) -> Iterator[Finding]:
    for claim in _differing(servers):
        other = _other(servers, claim)
        if other is not None:
            yield finding(
                "PD203",
                claim.name,
                str(claim.listed.port),
                str(claim.true),
                [claim.listed.evidence, other.listed.evidence],
                other=other.name,
                url=claim.listed.url,
                port=claim.true,
                other_url=other.listed.url,
                other_port=other.true,
            )


def _differing(servers: Servers) -> Iterator[ListedPort]:
    """Claims with a wrong port, except for engines with the Rust server, which PD219 judges."""
    for claim in _settled(servers):
        known = claim.engine is not None and claim.true is not None and not claim.engine.on(RUST)
        if known and claim.listed.port not in (None, claim.true):
            yield claim


def _other(servers: Servers, claim: ListedPort) -> ListedPort | None:
    """The prefill on the same host whose port this one was given, if any."""
    for other in claims(servers):
        here = other.engine is not None and claim.engine is not None and other.engine.network == claim.engine.network
        if here and other.name != claim.name and other.true == claim.listed.port:
            return other
    return None


def _claim_finding(code: str, claim: ListedPort) -> Finding:
    evidence = [claim.listed.evidence, *_flag(claim.engine)]
    return finding(
        code, claim.name, str(claim.listed.port), str(claim.true), evidence, url=claim.listed.url, port=claim.true
    )


def rust(servers: Servers) -> Iterator[Finding]:
    """PD219: the engine's own flag, and the routers' port for it, where given and not the HTTP port."""
    for engine in servers.of("prefill"):
        said = engine.flags.find("disaggregation-bootstrap-port")
        if engine.on(RUST) and said is not None and engine.bootstrap_port not in (None, engine.port):
            yield _rust(engine, said.values[0], [engine.env[RUST].evidence, said.evidence])
    for claim in claims(servers):
        one = claim.engine
        if one is not None and one.on(RUST) and claim.listed.port not in (None, one.port):
            yield _rust(one, str(claim.listed.port), [one.env[RUST].evidence, claim.listed.evidence])


def _rust(engine: Server, observed: str, evidence: list[str]) -> Finding:
    url = engine.url or f"http://HOST:{engine.port}"
    return finding("PD219", engine.name, observed, str(engine.port), evidence, url=url, port=engine.port)


def services(servers: Servers) -> Verdict:
    """A Service by which a router reaches prefills must forward their bootstrap port."""
    if servers.manifest is None:
        return Skipped("no Services: this is no manifest")
    found = []
    for claim in claims(servers):
        service = service_of(servers.manifest, host_and_port(claim.listed.url)[0])
        if service is None or service.headless or claim.true is None or claim.true in service.ports:
            continue
        ports = ", ".join(map(str, service.ports)) or "none"
        evidence = [f"{service.file}:{service.line}: Service {service.name}, ports {ports}", claim.listed.evidence]
        values: dict[str, object] = {"service": service.name, "port": claim.true}
        found.append(finding("PD213", claim.name, f"ports {ports}", f"{claim.true} too", evidence, None, **values))
    return found


def stable_names(servers: Servers) -> Verdict:
    if servers.manifest is None:
        return Skipped("no Services: this is no manifest")
    found = []
    for claim in claims(servers):
        service = service_of(servers.manifest, host_and_port(claim.listed.url)[0])
        if service is not None and service.kind != COMPOSE:
            observed = f"Service {service.name}"
            found.append(finding("PD211", claim.name, observed, "its pod's address", [claim.listed.evidence]))
    return found


def annotation_missing(servers: Servers) -> Verdict:
    if not any(router.discovers for router in servers.routers):
        return Skipped("no router discovers pods")
    found = []
    for engine in _discovered(servers):
        if engine.pod is not None and _annotation(engine) is None:
            former = [said for said in engine.pod.annotations if said.name == FORMER]
            evidence = [f"{engine.pod.at(said.line)}: {FORMER} is not read any more" for said in former]
            port = engine.bootstrap_port if engine.bootstrap_port is not None else "PORT"
            told = evidence or [f"{engine.place()}: no annotation"]
            found.append(finding("PD214", engine.name, "none", str(port), told, port=port))
    return found


def annotation_differs(servers: Servers) -> Verdict:
    if not any(router.discovers for router in servers.routers):
        return Skipped("no router discovers pods")
    found = []
    for engine in _discovered(servers):
        said, port = _annotation(engine), engine.bootstrap_port
        if said is None or said.value is None or port is None or said.value == str(port):
            continue
        evidence = [f"{engine.place(said.line)}: {ANNOTATION}: {said.value}"]
        flag = engine.flags.find("disaggregation-bootstrap-port")
        evidence += [flag.evidence] if flag is not None else []
        found.append(finding("PD215", engine.name, f"`{said.value}`", str(port), evidence, port=port))
    return found


def _discovered(servers: Servers) -> tuple[Server, ...]:
    return tuple(one for one in servers.of("prefill") if one.pod is not None)


def _annotation(engine: Server) -> SaidSetting | None:
    found = engine.pod.annotations if engine.pod is not None else ()
    return next((said for said in found if said.name == ANNOTATION), None)


def dist_init(servers: Servers) -> Iterator[Finding]:
    """Only literal addresses are compared; different names may mean the same machine."""
    for claim in claims(servers):
        dist = claim.engine.flags.find("dist-init-addr") if claim.engine is not None else None
        if dist is None or not dist.values:
            continue
        host, called = host_and_port(dist.values[0])[0], host_and_port(claim.listed.url)[0]
        apart = host != called and is_ip(host) and is_ip(called)
        if apart and host not in WILDCARD and not is_loopback(host) and not is_loopback(called):
            yield finding("PD217", claim.name, host, called, [dist.evidence, claim.listed.evidence])


CHECKS = (
    written("PD201", null_ports),
    written("PD202", wrong),
    written("PD203", swapped),
    written("PD206", is_http),
    written("PD207", lucky),
    written("PD219", rust, embedded=False),
    written("PD211", stable_names, embedded=False),
    written("PD213", services),
    written("PD214", annotation_missing),
    written("PD215", annotation_differs),
    written("PD217", dist_init, embedded=False),
)
