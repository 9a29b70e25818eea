"""The addresses at which routers call engines: whether anybody is there, and whether all engines are called."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pdctl.doctor.check import finding, names
from pdctl.doctor.static.listen_addresses import port_collisions
from pdctl.doctor.static.server_sources import engines_behind, service_of, written
from pdctl.fleet.address import host_and_port
from pdctl.loopback import is_loopback
from pdctl.manifests.manifest import COMPOSE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.doctor.check import Finding, Verdict
    from pdctl.doctor.static.servers import RouterLine, Server, Servers
    from pdctl.manifests.command_lines import Listed


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


def unpublished(servers: Servers) -> Verdict:
    """PD223: a router calls an engine on a port on which its Service, or the engine itself, does not listen."""
    found = []
    contested = [each for met in port_collisions(servers) for each in (met.kept.engine, met.moved.engine)]
    for router in servers.routers:
        for role, listed in (("prefill", router.prefills), ("decode", router.decodes)):
            for each in listed:
                host, port = host_and_port(each.url)
                if port is None or "$" in each.url:
                    continue
                beside = [one for one in servers.engines if one.network == router.network and one.role == role]
                unsure = any(one is other for one in beside for other in contested)  # PD218 moves one of them
                near = tuple(beside) if len(beside) >= len(listed) and not unsure else ()
                problem = _unpublished(servers, router, each, host, port, near)
                if problem is not None:
                    found.append(problem)
    return found


def _unpublished(
    servers: Servers, router: RouterLine, each: Listed, host: str, port: int, near: tuple[Server, ...]
) -> Finding | None:
    """PD223 for one address. `near`: engines of its role in the router's network, if all are in these files."""
    manifest = servers.manifest
    service = service_of(manifest, host) if manifest is not None else None
    if service is not None and service.kind != COMPOSE and not service.headless:
        published = [one.port for one in service.exposed]
        if not published or port in published:
            return None
        there = f"Service {service.name} publishes {names([str(one) for one in published])}"
        evidence = [each.evidence, f"{service.file}:{service.line}: {there}"]
        return _dials(each, port, there, published[0], evidence)
    if manifest is None:
        return None
    engines = engines_behind(servers, each.url, router.network)
    if is_loopback(host) and not engines:
        engines = near
    ports = [one.port for one in engines]
    if not engines or None in ports or port in ports:
        return None
    first = engines[0]
    evidence = [each.evidence, *_port_of(first)]
    listens = f"{names([one.name for one in engines])} {'listen' if len(engines) > 1 else 'listens'} on " + names(
        [str(one) for one in dict.fromkeys(ports)]
    )
    return _dials(each, port, listens, first.port or 0, evidence)


def _dials(each: Listed, port: int, there: str, right: int, evidence: list[str]) -> Finding:
    url = re.sub(rf":{port}(?!\d)", f":{right}", each.url, count=1)
    return finding("PD223", each.url, str(port), there, evidence, url=each.url, right=url)


def _port_of(engine: Server) -> Iterator[str]:
    said = engine.flags.find("port")
    yield said.evidence if said is not None else f"{engine.place()}: no --port, so {engine.port}"


CHECKS = (
    written("PD208", loopback),
    written("PD216", missed),
    written("PD223", unpublished),
)
