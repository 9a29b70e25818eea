"""Is there somebody behind each Service, and does a router call a port that is there? PD221 to PD223."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

from pdctl.catalogue.entry import Severity
from pdctl.doctor.check import Skipped, finding
from pdctl.doctor.static.deployed import LOOPBACK, behind, service_of, split
from pdctl.doctor.static.question import written
from pdctl.doctor.words import names
from pdctl.manifests.command_lines import program
from pdctl.manifests.manifest import COMPOSE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pdctl.doctor.check import Verdict
    from pdctl.doctor.finding import Finding
    from pdctl.doctor.static.servers import RouterLine, Server, Servers
    from pdctl.manifests.command_lines import Listed
    from pdctl.manifests.manifest import Container, Exposed, Manifest, ManifestPod, Service

NO_SERVICES = Skipped("no Services: this is no manifest")
ROUTER_METRICS = 29000  # of sglang-router 0.3.2 and smg 1.13.0, unless --prometheus-port says otherwise
ROUTER_PORT = 30000  # --port of sglang_router 0.3.2
ENGINE_PORT = 30000


def selects_nothing(servers: Servers) -> Verdict:
    """PD221: the labels of no pod template in these files match its selector."""
    if servers.manifest is None:
        return NO_SERVICES
    return list(_selects_nothing(servers, servers.manifest))


def _selects_nothing(servers: Servers, manifest: Manifest) -> Iterator[Finding]:
    called = {split(each.url)[0].split(".")[0] for router in servers.routers for each in _listed(router)}
    for service in manifest.services:
        if service.kind == COMPOSE or not service.selector or not _can_tell(manifest, service):
            continue
        if any(pod.carries(service.selector) for pod in manifest.pods):
            continue
        if any(service.selector.items() <= labels.items() for labels in manifest.others):
            continue
        nearest = max(manifest.pods, key=lambda pod: _alike(_labels(pod), service.selector))
        if service.name not in called and not _alike(_labels(nearest), service.selector):
            continue  # of something that these files do not have
        yield finding(
            "PD221",
            service.name,
            _spelt(service.selector),
            f"{_spelt(_labels(nearest))} ({nearest.name})",
            [f"{service.file}:{service.line}: Service {service.name}, selector {_spelt(service.selector)}",
             f"{nearest.at(0)}: {nearest.name} has labels {_spelt(_labels(nearest))}"],
            None if service.name in called else Severity.WARNING,
            labels=_spelt({key: value for key, value in _labels(nearest).items() if key in service.selector}
                          or _labels(nearest)),
        )  # fmt: skip


def _can_tell(manifest: Manifest, service: Service) -> bool:
    """A label with a domain may be one that a controller adds; without pods nothing can be missed."""
    known = {key for pod in manifest.pods for key in _labels(pod)}
    return bool(manifest.pods) and all("/" not in key or key in known for key in service.selector)


def _labels(pod: ManifestPod) -> Mapping[str, str]:
    return {**pod.added, **pod.labels}


def _alike(labels: Mapping[str, str], selector: Mapping[str, str]) -> int:
    """How much of the selector the labels have: a pair counts most, then a value that begins alike."""
    import difflib  # late: only a mistake needs it

    score = 0
    for key, value in selector.items():
        said = labels.get(key)
        if said == value:
            score += 3
        elif said is not None and difflib.SequenceMatcher(None, said, value).ratio() > ALIKE:
            score += 1
    return score


ALIKE = 0.7  # of two words that are one, mistyped


def _spelt(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}: {value}" for key, value in labels.items()) or "none"


def target_ports(servers: Servers) -> Verdict:
    """PD222: a targetPort at which nothing in the selected pods listens. Headless Services have none."""
    if servers.manifest is None:
        return NO_SERVICES
    found = []
    for service in servers.manifest.services:
        pods = [pod for pod in servers.manifest.pods if pod.carries(service.selector)]
        for each in service.exposed if pods and not service.headless else ():
            closed = [pod for pod in pods if not _opens(pod, each)]
            if len(closed) == len(pods):
                found.append(_closed(service, each, closed[0]))
    return found


def _closed(service: Service, each: Exposed, pod: ManifestPod) -> Finding:
    target = each.target or str(each.port)
    opened = list(dict.fromkeys(port for container in pod.containers for port in _ports(container)))
    right = each.port if each.port in opened else opened[0] if opened else "PORT"
    listens = names([str(port) for port in opened])
    return finding(
        "PD222",
        service.name,
        target,
        listens,
        [f"{service.file}:{each.line}: Service {service.name}, port {each.port}, targetPort {target}",
         f"{pod.at(0)}: {pod.name} listens on {listens}"],
        port=right,
        pod=pod.name,
    )  # fmt: skip


def _opens(pod: ManifestPod, each: Exposed) -> bool:
    """Whether some container may listen there. A number that stands anywhere on its command line is taken for one."""
    if each.target and not each.target.isdigit():
        return any(said.name == each.target for container in pod.containers for said in container.ports)
    number = int(each.target) if each.target else each.port
    for container in pod.containers:
        said = [word.text for word in container.argv] + [said.value or "" for said in container.env]
        if number in _ports(container) or any(re.search(rf"(?<!\d){number}(?!\d)", text) for text in said):
            return True
        if program(container.argv) is None:  # what a sidecar listens on, its image alone may know
            return not container.ports or any(port.value == str(number) for port in container.ports)
        if _open_ended(container):
            return True
    return False


def _open_ended(container: Container) -> bool:
    """A port of its command line hangs on a variable."""
    words = [word.text for word in container.argv]
    flags = [(one, other) for one, other in pairwise((*words, "")) if one.startswith("--") and "port" in one]
    return any("$" in word for flag in flags for word in flag)


def _ports(container: Container) -> tuple[int, ...]:
    """What an engine or a router listens on, as its command line says or by default."""
    started = program(container.argv)
    if started is None:
        return tuple(int(said.value) for said in container.ports if said.value and said.value.isdigit())
    from pdctl.manifests.command_lines import parse  # late: few manifests have a Service

    flags = parse((word.text, "") for word in started.flags)
    default = ROUTER_PORT if started.role == "router" else ENGINE_PORT
    port = flags.number("port") or default
    if started.role == "router":
        return (port, flags.number("prometheus-port") or ROUTER_METRICS)
    bootstrap = flags.number("disaggregation-bootstrap-port") or BOOTSTRAP
    return (port, bootstrap) if flags.text("disaggregation-mode") == "prefill" else (port,)


BOOTSTRAP = 8998


def unpublished(servers: Servers) -> Verdict:
    """PD223: a router calls an engine at a port where its Service, or the engine itself, does not listen."""
    found = []
    for router in servers.routers:
        for role, listed in (("prefill", router.prefills), ("decode", router.decodes)):
            for each in listed:
                host, port = split(each.url)
                if port is None or "$" in each.url:
                    continue
                beside = [one for one in servers.engines if one.network == router.network and one.role == role]
                near = tuple(beside) if len(beside) >= len(listed) else ()
                problem = _unpublished(servers, router, each, host, port, near)
                if problem is not None:
                    found.append(problem)
    return found


def _unpublished(
    servers: Servers, router: RouterLine, each: Listed, host: str, port: int, near: tuple[Server, ...]
) -> Finding | None:
    """`near`: the engines of its role in the router's own network, where all of them are in these files."""
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
    engines = behind(servers, each.url, router.network)
    if host in LOOPBACK and not engines:
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


def _listed(router: RouterLine) -> tuple[Listed, ...]:
    return (*router.prefills, *router.decodes)


CHECKS = (
    written("PD221", selects_nothing),
    written("PD222", target_ports),
    written("PD223", unpublished),
)
