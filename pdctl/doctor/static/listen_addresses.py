"""Where engines and routers listen: ports that two want, hosts that cannot be, loopback, addresses open to all."""

from __future__ import annotations

import ipaddress
from dataclasses import replace
from functools import lru_cache, partial
from itertools import combinations, count, islice
from typing import TYPE_CHECKING

from pdctl.catalogue.entry import Severity
from pdctl.doctor.check import finding
from pdctl.doctor.static.server_sources import claims, engines_behind, uncalled_in_script, written, written_hosts
from pdctl.doctor.static.servers import RouterLine, Server
from pdctl.engines import numerals
from pdctl.engines.kinds import EMBEDDED, RELEASED, RELEASED_ROUTER, ROUTERS, router_kind
from pdctl.engines.sglang.behaviour import WILDCARD_REGISTERS_ITSELF
from pdctl.engines.sglang.endpoints import DEFAULT_BOOTSTRAP_PORT as BOOTSTRAP
from pdctl.engines.sglang.endpoints import DEFAULT_PORT as HTTP
from pdctl.fleet.address import host_and_port
from pdctl.loopback import is_loopback
from pdctl.manifests.command_lines import parse, program
from pdctl.manifests.manifest import SCRIPT
from pdctl.quick_definitions import NamedTuple
from pdctl.shell_quoting import pasteable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.doctor.check import Finding
    from pdctl.doctor.static.servers import Servers
    from pdctl.manifests.command_lines import Listed
    from pdctl.manifests.manifest import Container, Exposed, ManifestPod

LOOPBACK_HOST = "127.0.0.1"  # sglang's default of --host
WILDCARD = ("0.0.0.0", "::", "[::]")


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


def wildcard(servers: Servers) -> Iterator[Finding]:
    for engine in servers.of("prefill"):
        listens = engine.flags.find("host")
        if _registers_wildcard(engine) and listens is not None and engine.flags.text("host") in WILDCARD:
            yield finding("PD212", engine.name, listens.values[0], "its own address", [listens.evidence])


def unreached(servers: Servers) -> Iterator[Finding]:
    """PD224: what listens on loopback alone is called from outside its pod or host."""
    released = [one for one in servers.engines if one.engine in (RELEASED, EMBEDDED) and not one.follows]
    listening: tuple[Server | RouterLine, ...] = (*released, *servers.routers)
    for server in listening:
        said, host = server.flags.find("host"), server.flags.text("host")
        if said is None and isinstance(server, Server) and "host" not in server.mistyped:
            host = LOOPBACK_HOST
        if host is None or not is_loopback(host) or server.pod is None or server.container is None:
            continue
        line = server.container.argv[0].line if server.pod.kind == SCRIPT and server.container.argv else 0
        here = said.evidence if said is not None else f"{server.pod.at(line)}: no --host, so {LOOPBACK_HOST}"
        for caller, evidence, address in islice(_callers(servers, server, server.pod, server.container), 1):
            expected = f"an address to which {caller} can connect"
            yield finding("PD224", server.name, host, expected, [here, evidence], host=address, caller=caller)


def _callers(
    servers: Servers, server: Server | RouterLine, pod: ManifestPod, container: Container
) -> Iterator[tuple[str, str, str]]:
    """Who calls it from outside, where that is written, and a host to listen on instead."""
    old = isinstance(server, Server) and server.role == "prefill" and _registers_wildcard(server)
    wide = "$(POD_IP)" if old else "0.0.0.0"
    ports = {*listened_ports(container)}
    for service in servers.manifest.services if servers.manifest is not None else ():
        for each in service.exposed if pod.carries(service.selector) else ():
            if _target(each, pod) in ports and not _has_proxy(pod, each):
                yield f"Service {service.name}", f"{service.file}:{each.line}: Service {service.name}", wide
    for probe in container.probes:
        if probe.how != "exec" and not is_loopback(probe.host):
            name = f"{probe.purpose}Probe"
            yield f"the kubelet with its {name}", f"{pod.at(probe.line)}: {name}: {probe.how} {probe.target}", wide
    for router in servers.routers:
        for listed in (*router.prefills, *router.decodes):
            host = host_and_port(listed.url)[0]
            behind = engines_behind(servers, listed.url, router.network)
            if not is_loopback(host) and any(one is server for one in behind):
                yield "the router", listed.evidence, host if pod.kind == SCRIPT and is_ip(host) else wide
        for role, listed in _dialled_elsewhere(servers, router):
            meant = (
                one for one in uncalled_in_script(servers, router, role) if one.port == host_and_port(listed.url)[1]
            )
            if any(one is server for one in meant):
                yield "the router", listed.evidence, host_and_port(listed.url)[0]


def _dialled_elsewhere(servers: Servers, router: RouterLine) -> Iterator[tuple[str, Listed]]:
    """The IP addresses a router calls on which no engine of these files is told to listen, each with its role."""
    there = {host for one in servers.engines for host in written_hosts(one)}
    for role, workers in (("prefill", router.prefills), ("decode", router.decodes)):
        for listed in workers:
            host = host_and_port(listed.url)[0]
            if is_ip(host) and not is_loopback(host) and host not in there:
                yield role, listed


def _target(each: Exposed, pod: ManifestPod) -> int | None:
    """The number of a Service's targetPort; None if no container declares its name."""
    named = (said.value for container in pod.containers for said in container.ports if said.name == each.target)
    return numerals.port(each.target or str(each.port)) or numerals.port(next(named, None))


def _has_proxy(pod: ManifestPod, each: Exposed) -> bool:
    """Whether a container that is neither an engine nor a router may listen on the port in their place."""
    others = (one for one in pod.containers if program(one.argv) is None)
    return any(not one.ports or _target(each, pod) in listened_ports(one) for one in others)


def _registers_wildcard(engine: Server) -> bool:
    known = engine.version is not None and WILDCARD_REGISTERS_ITSELF.holds(engine.version)
    return known and not engine.flags.has("dist-init-addr")


def listened_ports(container: Container) -> tuple[int, ...]:
    """The ports an engine or router listens on, by its command line or by default."""
    started = program(container.argv)
    if started is None:
        return tuple(int(said.value) for said in container.ports if said.value and said.value.isdigit())
    flags = parse((word.text, "") for word in started.flags)
    if started.role == "router":
        usual, released = ROUTERS[started.kind], ROUTERS[RELEASED_ROUTER]
        port, metrics = usual.port or released.port or HTTP, usual.metrics or released.metrics or 0
        return (flags.number("port") or port, flags.number("prometheus-port") or metrics)
    port = flags.number("port") or HTTP
    bootstrap = flags.number("disaggregation-bootstrap-port") or BOOTSTRAP
    return (port, bootstrap) if flags.text("disaggregation-mode") == "prefill" else (port,)


def router_host(servers: Servers) -> Iterator[Finding]:
    """A --host that must be an IP address: measured with sglang-router 0.3.2; other routers accept names."""
    for router in servers.routers:
        said = router.flags.find("host")
        host = router.flags.text("host")
        known = router_kind(router.kind)
        if known is None or not known.ip_only or said is None or host is None:
            continue
        bare = host.removeprefix("[").removesuffix("]")
        if not is_ip(bare) or (":" in host and not host.startswith("[")):
            wanted = f"[{host}]" if is_ip(host) else "127.0.0.1" if host == "localhost" else "0.0.0.0"
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


def is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


CHECKS = (
    written("PD204", partial(collisions, code="PD204")),
    written("PD212", wildcard, embedded=False),
    written("PD218", partial(collisions, code="PD218")),
    written("PD220", router_host),
    written("PD224", unreached),
    written("PD614", public),
)
