"""The addresses at which routers call engines: whether anybody is there, and whether all engines are called."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pdctl.doctor.check import Skipped, Unknown, finding, names
from pdctl.doctor.static.listen_addresses import WILDCARD, is_ip, port_collisions
from pdctl.doctor.static.server_sources import (
    engines_behind,
    service_of,
    uncalled_in_script,
    written,
    written_hosts,
)
from pdctl.engines import numerals
from pdctl.fleet.address import host_and_port
from pdctl.loopback import bracketed, is_loopback
from pdctl.manifests.manifest import COMPOSE, CORE, SCRIPT
from pdctl.quick_definitions import NamedTuple
from pdctl.shell_quoting import pasteable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pdctl.doctor.check import Finding, Verdict
    from pdctl.doctor.static.servers import RouterLine, Server, Servers
    from pdctl.manifests.command_lines import Listed
    from pdctl.manifests.manifest import Manifest, ManifestPod, Service

NAME = re.compile(r"[a-z0-9_]([\w.-]*[a-z0-9])?", re.IGNORECASE)
KNOWN_KINDS = (*CORE, "LeaderWorkerSet")  # no operator of its own gives their pods a Service of another name
MOST_PODS = 256  # of one object, and of one group of it


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
                problem = _unpublished(servers, router, each, host, port, near, role)
                if problem is not None:
                    found.append(problem)
    return found


def _unpublished(
    servers: Servers, router: RouterLine, each: Listed, host: str, port: int, near: tuple[Server, ...], role: str
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
    if not engines:
        engines = tuple(one for one in uncalled_in_script(servers, router, role) if host in written_hosts(one))
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
    return finding("PD223", each.url, str(port), str(right), evidence, url=each.url, right=url, why=there)


def _port_of(engine: Server) -> Iterator[str]:
    said = engine.flags.find("port")
    yield said.evidence if said is not None else f"{engine.place()}: no --port, so {engine.port}"


class NamedHost(NamedTuple):
    """What a name of the cluster's DNS says. `pod` and `namespace`: "" if it has none."""

    service: str
    pod: str = ""
    namespace: str = ""


class MissingHost(NamedTuple):
    """A host that no Service and no pod has. `sure`: also where other files may belong to these; `fix`: "" if none."""

    why: str
    sure: bool = False
    fix: str = ""


def unknown_hosts(servers: Servers) -> Verdict:
    """PD226: a router calls a host that is not there, although an engine of that role is, which it does not call."""
    manifest = servers.manifest
    routers = [one for one in servers.routers if one.pod is not None and one.pod.kind != SCRIPT]
    scripts = [one for one in servers.routers if one.pod is not None and one.pod.kind == SCRIPT]
    if manifest is None or not (routers or scripts):
        return Skipped("no router in a manifest, a compose file or a script")
    found = [problem for router in scripts for problem in _unknown_in_script(servers, router)]
    doubts: list[str] = []
    for router in routers:
        for role, listed in (("prefill", router.prefills), ("decode", router.decodes)):
            uncalled = _uncalled(servers, router, role, listed)
            for each in listed:
                missing = _missing(manifest, router, each)
                if isinstance(missing, str):
                    doubts.append(missing)
                elif missing is not None and (missing.sure or uncalled):
                    fix = missing.fix or _call_instead(manifest, each, uncalled)
                    evidence = [each.evidence]
                    expected = "a host of these files"
                    problem = finding(
                        "PD226", router.name, each.url, expected, evidence, fix=fix, url=each.url, why=missing.why
                    )
                    found.append(problem)
                elif missing is not None:
                    doubts.append(f"{missing.why}; name the file that has it as well")
    return found or (Unknown(doubts[0]) if doubts else [])


def _unknown_in_script(servers: Servers, router: RouterLine) -> Iterator[Finding]:
    """PD226 for IP addresses: each engine of the role listens on one address alone, and a router calls another one."""
    for role, listed in (("prefill", router.prefills), ("decode", router.decodes)):
        uncalled = uncalled_in_script(servers, router, role)
        if not uncalled or not all(_listens_on_one_address(one) for one in uncalled):
            continue
        there = {host for one in servers.engines for host in written_hosts(one)}
        for each in listed:
            host, port = host_and_port(each.url)
            if port is None or not is_ip(host) or is_loopback(host) or host in there:
                continue
            near = next((one for one in uncalled if one.port == port), uncalled[0])
            right = f"http://{bracketed(near.flags.text('host') or '')}:{near.port}"
            why = f"no engine of these files listens on {host}, and {near.name} at {right} is called by no router"
            fix = f"give the router {pasteable(right)} instead, or start {pasteable(near.name)} with --host {host}"
            evidence = [each.evidence, *_host_of(near)]
            yield finding("PD226", router.name, each.url, right, evidence, fix=fix, url=each.url, why=why)


def _listens_on_one_address(engine: Server) -> bool:
    host = engine.flags.text("host") or ""
    return is_ip(host) and not is_loopback(host) and host not in WILDCARD


def _host_of(engine: Server) -> Iterator[str]:
    said = engine.flags.find("host")
    if said is not None:
        yield said.evidence


def _uncalled(servers: Servers, router: RouterLine, role: str, listed: Sequence[Listed]) -> list[Server]:
    called = {id(one) for each in listed for one in engines_behind(servers, each.url, router.network)}
    return [one for one in servers.sides if one.role == role and id(one) not in called]


def _missing(manifest: Manifest, router: RouterLine, each: Listed) -> MissingHost | str | None:
    """None if the host of the URL is there, or is none of these files' business; why that cannot be told."""
    host = host_and_port(each.url)[0].rstrip(".")
    if not NAME.fullmatch(host) or is_ip(host) or is_loopback(host) or host in manifest.host_names:
        return None
    assert router.pod is not None
    if router.pod.kind != COMPOSE:
        return _missing_in_cluster(manifest, router.pod, host)
    if "." in host or router.pod.host_network or service_of(manifest, host) is not None:
        return None
    if manifest.joined:
        return f"{host} may be a service of another compose file, with which this one shares a network"
    return MissingHost(f"no service of {router.pod.file} is named {host}")


def _missing_in_cluster(manifest: Manifest, caller: ManifestPod, host: str) -> MissingHost | str | None:
    named = _parse(manifest, host)
    if named is None:
        return f"{host} is not a name of the cluster"
    namespace = named.namespace or caller.namespace
    services = [one for one in manifest.services if one.name == named.service]
    near = [one for one in services if _is_same(one.namespace, namespace)]
    sets = [one for one in manifest.pods if _is_set_named(one, named.service) and _is_same(one.namespace, namespace)]
    if any(one.kind == "ExternalName" for one in near):
        return f"Service {named.service} is an ExternalName: it leads out of these files"
    if near or sets:
        return _missing_pod(manifest, near, sets, named) if named.pod else None
    if named.namespace and named.namespace not in _namespaces(manifest):
        return f"namespace {named.namespace} is not in these files"
    if services:
        right = f"{named.pod}.{named.service}".lstrip(".") + f".{services[0].namespace}"
        why = f"Service {named.service} is in namespace {services[0].namespace}, and not in {namespace}"
        return MissingHost(why, True, f"give the router the host {right} instead")
    foreign = next((pod.kind for pod in manifest.pods if pod.kind not in KNOWN_KINDS), "")
    if foreign:
        return f"what Services a {foreign} creates, and by which names, is its operator's choice"
    elsewhere = _under_other_service(manifest.pods, named) if named.pod else None
    return elsewhere or MissingHost(f"no Service of these files is named {named.service}")


def _parse(manifest: Manifest, host: str) -> NamedHost | None:
    """`svc`, `svc.ns`, `pod.svc`, `pod.svc.ns`, each of the last three also with `.svc` and a domain behind it."""
    labels = host.split(".")
    if "svc" in labels[2:]:
        inner = labels[: labels.index("svc", 2)]
    elif len(labels) == 1:
        return NamedHost(host)
    elif len(labels) == 2:
        pods = {name for pod in manifest.pods for name in _pod_names(pod)}
        known = any(one.name == labels[1] for one in manifest.services) or labels[0] in pods
        known = known or any(_is_set_named(pod, labels[1]) for pod in manifest.pods)
        return NamedHost(labels[1], pod=labels[0]) if known else NamedHost(labels[0], namespace=labels[1])
    else:
        inner = labels if labels[-1] in _namespaces(manifest) else []
    if len(inner) not in (2, 3):
        return None
    return NamedHost(inner[-2], inner[0] if len(inner) == 3 else "", inner[-1])


def _namespaces(manifest: Manifest) -> set[str]:
    return {*(one.namespace for one in manifest.pods), *(one.namespace for one in manifest.services)} - {""}


def _is_same(one: str, other: str) -> bool:
    """Whether two namespaces may be the same; one that is not written may be any."""
    return not one or not other or one == other


def _is_set_named(pod: ManifestPod, service: str) -> bool:
    """Whether it is a LeaderWorkerSet that has this headless Service: of its name, or one for each group."""
    name = pod.name.partition("/")[0]
    return pod.kind == "LeaderWorkerSet" and re.fullmatch(rf"{re.escape(name)}(-\d+)?", service) is not None


def _pod_names(pod: ManifestPod) -> Iterator[str]:
    """The names that its pods have in DNS, if its kind gives them any."""
    name, copies = pod.name.partition("/")[0], 1 if pod.replicas is None else pod.replicas
    if pod.kind not in ("StatefulSet", "LeaderWorkerSet"):
        return
    for number in range(pod.first, pod.first + min(copies, MOST_PODS)):
        yield f"{name}-{number}"
        if pod.kind == "LeaderWorkerSet":
            yield from (f"{name}-{number}-{worker}" for worker in range(1, min(pod.size or 1, MOST_PODS)))


def _missing_pod(
    manifest: Manifest, services: Sequence[Service], sets: Sequence[ManifestPod], named: NamedHost
) -> MissingHost | None:
    """Why a pod has no name under a Service that is there; None if it has, or if that cannot be told."""
    if services and not any(one.headless for one in services):
        why = f"Service {named.service} is not headless, so pods have no names under it"
        return MissingHost(why, True, f"set clusterIP of Service {named.service} to None")
    behind = [pod for pod in manifest.pods if pod in sets or any(pod.carries(one.selector) for one in services)]
    if not behind or any(pod.kind not in ("StatefulSet", "LeaderWorkerSet") for pod in behind):
        return None
    there = [name for pod in behind for name in _pod_names(pod)]
    if named.pod not in there:
        return _no_such_pod(behind, there, named)
    return _under_other_service(behind, named)


def _under_other_service(pods: Sequence[ManifestPod], named: NamedHost) -> MissingHost | None:
    """A pod of a StatefulSet has a name under one Service alone."""
    of_set = (pod for pod in pods if pod.kind == "StatefulSet" and named.pod in _pod_names(pod))
    domain = next((pod.domain for pod in of_set if pod.domain), named.service)
    if domain == named.service:
        return None
    why = f"{named.pod} has its name under serviceName {domain}, and not under {named.service}"
    return MissingHost(why, True, f"give the router the host {named.pod}.{domain} instead")


def _no_such_pod(behind: Sequence[ManifestPod], there: Sequence[str], named: NamedHost) -> MissingHost:
    import difflib  # late: only a mistake needs it

    name, _, number = named.pod.rpartition("-")
    owner = next((pod for pod in behind if pod.name.partition("/")[0] == name), None)
    index = numerals.whole(number)
    if owner is not None and index is not None:
        why = f"{owner.kind} {name} has {names(list(there))} only" if there else f"{owner.kind} {name} has no replicas"
        return MissingHost(why, True, f"set replicas of {owner.kind} {name} to {index - owner.first + 1}")
    nearest = difflib.get_close_matches(named.pod, there, 1, 0.0)
    fix = f"give the router the host {nearest[0]}.{named.service} instead" if nearest else ""
    return MissingHost(f"the pods of Service {named.service} are {names(list(there))}", bool(nearest), fix)


def _call_instead(manifest: Manifest, each: Listed, uncalled: Sequence[Server]) -> str:
    """What to write for an engine that is not called: the most similar name of a Service that leads to one."""
    import difflib  # late: only a mistake needs it

    host, port = host_and_port(each.url)
    leading = {
        one.name: one
        for one in manifest.services
        if any(engine.pod is not None and engine.pod.carries(one.selector) for engine in uncalled)
    }
    if not leading:
        return f"give the router the address of {pasteable(uncalled[0].name)} instead"
    near = difflib.get_close_matches(host.partition(".")[0], leading, 1, 0.0)[0]
    published = [one.port for one in leading[near].exposed]
    right = port if port in published or not published else published[0]
    return f"give the router http://{near}{f':{right}' if right else ''} instead"


CHECKS = (
    written("PD208", loopback),
    written("PD216", missed),
    written("PD223", unpublished),
    written("PD226", unknown_hosts),
)
