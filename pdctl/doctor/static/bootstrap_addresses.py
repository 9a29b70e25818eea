"""Where engines listen, by which names they are reached, and each prefill's bootstrap port at the router."""

from __future__ import annotations

import ipaddress
from dataclasses import replace
from functools import lru_cache, partial
from itertools import combinations, count
from typing import TYPE_CHECKING

from pdctl.catalogue.entry import Severity
from pdctl.doctor.check import Skipped, finding
from pdctl.doctor.static.server_sources import engines_behind, service_of, written, written_hosts
from pdctl.doctor.static.servers import RouterLine
from pdctl.engines.kinds import router_kind
from pdctl.engines.sglang.behaviour import WILDCARD_REGISTERS_ITSELF
from pdctl.fleet.address import host_and_port
from pdctl.loopback import bracketed, is_loopback
from pdctl.manifests.manifest import COMPOSE, SCRIPT
from pdctl.quick_definitions import NamedTuple
from pdctl.shell_quoting import pasteable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.doctor.check import Finding, Verdict
    from pdctl.doctor.static.servers import Server, Servers
    from pdctl.manifests.command_lines import Listed
    from pdctl.manifests.manifest import SaidSetting

RUST = "SGLANG_RUST_SERVER"
ANNOTATION = "sglang.ai/bootstrap-port"  # sglang_router 0.3.2, smg 1.13.0
FORMER = "sglang.ai/mooncake.bootstrap-port"
LOOPBACK_HOST = "127.0.0.1"  # sglang's default of --host
WILDCARD = ("0.0.0.0", "::", "[::]")


class ListedPort(NamedTuple):
    """What one router says about one prefill. `engine` None: the address leads to no engine in these files."""

    router: RouterLine
    listed: Listed
    engine: Server | None

    @property
    def name(self) -> str:
        return self.engine.name if self.engine is not None else self.listed.url

    @property
    def true(self) -> int | None:
        """The port its bootstrap server listens on; with the Rust server, its HTTP port."""
        if self.engine is None:
            return None
        return self.engine.port if self.engine.on(RUST) else self.engine.bootstrap_port


@lru_cache(maxsize=2)
def claims(servers: Servers) -> tuple[ListedPort, ...]:
    """Every prefill on every router's command line, except those whose port depends on a variable."""
    found = []
    for router in servers.routers:
        for listed in filter(lambda each: each.clear, router.prefills):
            engines = engines_behind(servers, listed.url, router.network)
            prefills = tuple(one for one in engines if one.role == "prefill") or engines
            found.append(ListedPort(router, listed, prefills[0] if prefills else None))
    return tuple(found)


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


def loopback(servers: Servers) -> Iterator[Finding]:
    """A router's loopback URL works only for engines on its own host or in its own pod, and decodes there too."""
    for router in servers.routers:
        elsewhere = [one for one in servers.engines if one.network != router.network and _is_placed(one, router)]
        for role, listed in (("prefill", router.prefills), ("decode", router.decodes)):
            for each in listed:
                host, port = host_and_port(each.url)
                if not is_loopback(host) or not any(one.role in (role, "decode") for one in elsewhere):
                    continue
                found = engines_behind(servers, each.url, router.network)
                name = found[0].name if found else f"the {role}s"
                yield finding("PD208", name, each.url, "a routable address", [each.evidence], port=port or "PORT")


def _is_placed(engine: Server, router: RouterLine) -> bool:
    """Whether it is known on which hosts both run."""
    return all(one.container is None or one.container.host is not None for one in (engine, router))


def wildcard(servers: Servers) -> Iterator[Finding]:
    for engine in servers.of("prefill"):
        listens = engine.flags.find("host")
        old = engine.version is not None and WILDCARD_REGISTERS_ITSELF.holds(engine.version)
        old = old and not engine.flags.has("dist-init-addr")
        if old and listens is not None and engine.flags.text("host") in WILDCARD:
            yield finding("PD212", engine.name, listens.values[0], "its own address", [listens.evidence])


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


def missed(servers: Servers) -> Iterator[Finding]:
    """PD216. Engines can be counted only if every address of the role leads to engines in these files."""
    for router in servers.routers:
        if router.discovers:
            continue
        for role, listed in (("prefill", router.prefills), ("decode", router.decodes)):
            found = [engines_behind(servers, each.url, router.network) for each in listed]
            have = sum(one.count or 0 for one in servers.sides if one.role == role)
            if listed and all(found) and have > len(listed):
                evidence = [each.evidence for each in listed]
                yield finding("PD216", router.name, str(len(listed)), str(have), evidence, role=role)


def dist_init(servers: Servers) -> Iterator[Finding]:
    """Only literal addresses are compared; different names may mean the same machine."""
    for claim in claims(servers):
        dist = claim.engine.flags.find("dist-init-addr") if claim.engine is not None else None
        if dist is None or not dist.values:
            continue
        host, called = host_and_port(dist.values[0])[0], host_and_port(claim.listed.url)[0]
        apart = host != called and _ip(host) and _ip(called)
        if apart and host not in WILDCARD and not is_loopback(host) and not is_loopback(called):
            yield finding("PD217", claim.name, host, called, [dist.evidence, claim.listed.evidence])


def _ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def router_host(servers: Servers) -> Iterator[Finding]:
    """A --host that must be an IP address: measured with sglang-router 0.3.2; other routers accept names."""
    for router in servers.routers:
        said = router.flags.find("host")
        host = router.flags.text("host")
        known = router_kind(router.kind)
        if known is None or not known.ip_only or said is None or host is None:
            continue
        bare = host.removeprefix("[").removesuffix("]")
        if not _ip(bare) or (":" in host and not host.startswith("[")):
            wanted = f"[{host}]" if _ip(host) else "127.0.0.1" if host == "localhost" else "0.0.0.0"
            yield finding("PD220", router.name, host, wanted, [said.evidence])


def public(servers: Servers) -> Iterator[Finding]:
    """Wildcards are usual in a pod, where the network around it decides; on a host they expose the engine."""
    for engine in servers.sides:
        said = engine.flags.find("host")
        if said is None or engine.flags.text("host") not in WILDCARD:
            continue
        exposed = _exposed(servers, engine)
        on_host = engine.pod is not None and (engine.pod.host_network or engine.pod.kind == SCRIPT)
        severity = None if exposed or on_host else Severity.INFO
        observed = f"{said.values[0]}{exposed}"
        yield finding("PD614", engine.name, observed, "the private network", [said.evidence], severity)


def _exposed(servers: Servers, engine: Server) -> str:
    """The Service that exposes the engine outside the cluster, as a phrase; "" if none does."""
    found = servers.manifest.services if servers.manifest is not None else ()
    for service in found:
        picked = engine.pod is not None and engine.pod.carries(service.selector)
        if picked and service.kind in ("NodePort", "LoadBalancer"):
            return f" behind Service {service.name} ({service.kind})"
    return ""


class WantedPort(NamedTuple):
    """A port that an engine or a router is told to listen on. `place` says where."""

    engine: Server | RouterLine
    port: int
    kind: str  # http | bootstrap
    place: str


class PortCollision(NamedTuple):
    """Two that want one port. `moved`: the later one, which should take the port `free` instead."""

    kept: WantedPort
    moved: WantedPort
    free: int

    @property
    def code(self) -> str:
        return "PD204" if self.kept.kind == self.moved.kind == "bootstrap" else "PD218"


@lru_cache(maxsize=2)
def port_collisions(servers: Servers) -> tuple[PortCollision, ...]:
    """Ports that two engines, or an engine and a router, of one pod or host are given.

    The layout finds those of a plan (see arithmetic.py).

    Only the fixed ports: the blocks that SGLang derives from them are checked by the plan. Each port that should move
    has one free port, which no other is given.
    """
    if servers.manifest is None:
        return ()
    wanted = [each for engine in servers.engines for each in _bound(engine)]
    wanted += [each for router in servers.routers for each in _bound_by_router(router)]
    found: list[PortCollision] = []
    free: dict[tuple[int, str], int] = {}
    for one, other in combinations(wanted, 2):
        if one.engine.network != other.engine.network or one.port != other.port:
            continue
        if one.engine is not other.engine and _are_two_addresses(one.engine, other.engine):
            continue
        key = id(other.engine), other.kind
        if key not in free:
            used = {each.port for each in wanted if each.engine.network == other.engine.network} | {*free.values()}
            both = one.kind == other.kind == "bootstrap"
            least = one.port if both else max(_http(one), _http(other), one.port)
            dialled = (port for port in _dialled_for(servers, other) if port not in used)
            free[key] = next(dialled, None) or next(port for port in count(least + 1) if port not in used)
        found.append(PortCollision(one, other, free[key]))
    firsts = {(each.code, id(each.moved.engine), each.moved.kind): each for each in reversed(found)}
    return tuple(each for each in found if each in firsts.values())


def _dialled_for(servers: Servers, wanted: WantedPort) -> Iterator[int]:
    """The ports by which routers call an engine's HTTP or bootstrap port, or would if it listened there."""
    if isinstance(wanted.engine, RouterLine):
        return
    for router in servers.routers:
        for each in router.prefills if wanted.engine.role == "prefill" else router.decodes:
            host, port = host_and_port(each.url)
            here = is_loopback(host) and router.network == wanted.engine.network
            dialled = port if wanted.kind == "http" else each.port if port == wanted.engine.port else None
            if (here or host in written_hosts(wanted.engine)) and dialled is not None:
                yield dialled


def collisions(servers: Servers, code: str) -> Iterator[Finding]:
    for each in port_collisions(servers):
        if each.code != code:
            continue
        kept, moved = each.kept, each.moved
        flag = "--port" if moved.kind == "http" else "--disaggregation-bootstrap-port"
        name = kept.engine.name if kept.engine is not moved.engine else f"its own {kept.kind} port"
        fix = f"start {pasteable(moved.engine.name)} with {flag} {each.free}"
        if moved.kind == "bootstrap":
            fix += _and_the_router(servers, each)
        expected = f"a port of its own, such as {each.free}"
        evidence = [kept.place, moved.place]
        made = finding(code, moved.engine.name, str(kept.port), expected, evidence, other=name, port=each.free, fix=fix)
        yield replace(made, fix=fix)


def _and_the_router(servers: Servers, each: PortCollision) -> str:
    """What the router has to be told when a bootstrap port moves; "" if it says so already or lists no such engine."""
    for claim in claims(servers):
        if claim.engine is each.moved.engine and claim.listed.port != each.free:
            return f", and the router with --prefill {pasteable(claim.listed.url)} {each.free}"
    return ""


def _http(wanted: WantedPort) -> int:
    return (wanted.engine.port if not isinstance(wanted.engine, RouterLine) else wanted.port) or 0


def _are_two_addresses(one: Server | RouterLine, other: Server | RouterLine) -> bool:
    """Whether the two bind different addresses, so both may have the port. A wildcard or variable may overlap."""
    hosts = [engine.flags.text("host") if engine.flags.has("host") else LOOPBACK_HOST for engine in (one, other)]
    if None in hosts or any(host in WILDCARD for host in hosts):
        return False
    # 127.0.0.2 is an address of its own here: both may listen on one port.
    first, second = (LOOPBACK_HOST if host in ("localhost", "::1") else host for host in hosts)
    return first != second


def _bound(engine: Server) -> Iterator[WantedPort]:
    wanted = [("http", "port", engine.port)]
    if engine.role == "prefill":
        wanted.append(("bootstrap", "disaggregation-bootstrap-port", engine.bootstrap_port))
    for kind, name, port in wanted:
        said = engine.flags.find(name)
        if port is not None:
            place = said.evidence if said is not None else f"{engine.name}: no --{name}, so {port}"
            yield WantedPort(engine, port, kind, place)


def _bound_by_router(router: RouterLine) -> Iterator[WantedPort]:
    """Only the port that is written: the default differs by router."""
    said, port = router.flags.find("port"), router.flags.number("port")
    if said is not None and port is not None:
        yield WantedPort(router, port, "http", said.evidence)


CHECKS = (
    written("PD201", null_ports),
    written("PD202", wrong),
    written("PD203", swapped),
    written("PD206", is_http),
    written("PD207", lucky),
    written("PD219", rust, embedded=False),
    written("PD204", partial(collisions, code="PD204")),
    written("PD208", loopback),
    written("PD211", stable_names, embedded=False),
    written("PD212", wildcard, embedded=False),
    written("PD213", services),
    written("PD214", annotation_missing),
    written("PD215", annotation_differs),
    written("PD216", missed),
    written("PD217", dist_init, embedded=False),
    written("PD218", partial(collisions, code="PD218")),
    written("PD220", router_host),
    written("PD614", public),
)
