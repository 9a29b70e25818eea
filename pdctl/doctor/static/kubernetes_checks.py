"""Checks of a manifest around its engines: Services and ports, probes, images, variables, leader and worker."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

from pdctl.catalogue.entry import Severity
from pdctl.doctor.check import Skipped, finding, names
from pdctl.doctor.static.listen_addresses import listened_ports
from pdctl.doctor.static.server_sources import templates, written
from pdctl.fleet.address import host_and_port
from pdctl.loopback import is_loopback
from pdctl.manifests.command_lines import program
from pdctl.manifests.manifest import COMPOSE, CORE, PLAIN, SCRIPT, pinned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pdctl.doctor.check import Finding, Verdict
    from pdctl.doctor.static.servers import RouterLine, Server, Servers
    from pdctl.manifests.command_lines import Listed, ServerProgram
    from pdctl.manifests.manifest import Container, Exposed, Manifest, ManifestPod, Probe, Service

NO_PODS = Skipped("no pods: this is no manifest")
GRACE = 30  # Kubernetes' default, in seconds
DRAIN = 180  # seconds that sglang-router 0.3.2 waits for requests in flight (--shutdown-grace-period-secs)
EXPANDED = re.compile(r"\$\((\w+)\)")
SHELLED = re.compile(r"\$\{(\w+)\}|\$([A-Za-z_]\w*)")
OWN = re.compile(r".*(_SERVICE_HOST|_SERVICE_PORT\w*|_PORT\w*)")  # Kubernetes adds them for every Service
GIVEN = re.compile(r"(LWS|RBG_LWP)_\w+")  # the operator sets these in every pod, whether written or not
PER_RANK = ("node-rank", "host", "port", "base-gpu-id")  # only node 0 serves
TAGGED = "a tag that names the release"
NO_SERVICES = Skipped("no Services: this is no manifest")
ALIKE = 0.7  # similarity from which on two words count as one, mistyped


def of_pods(judge: Callable[[Manifest], Iterator[Finding]]) -> Callable[[Servers], Verdict]:
    def ask(servers: Servers) -> Verdict:
        if servers.manifest is None or all(pod.kind in PLAIN for pod in servers.manifest.pods):
            return NO_PODS
        return _without_repeats(judge(servers.manifest))

    return ask


def _without_repeats(found: Iterator[Finding]) -> list[Finding]:
    """`found` with one finding per line of evidence, because two pods may share a template."""
    return list({one.evidence: one for one in reversed(list(found))}.values())[::-1]


def _started(
    manifest: Manifest, besides: tuple[str, ...] = PLAIN
) -> Iterator[tuple[str, ManifestPod, Container, ServerProgram]]:
    for pod, container, started in templates(manifest):
        if pod.kind not in besides:
            yield pod.name, pod, container, started


def probes(manifest: Manifest) -> Iterator[Finding]:
    for name, pod, container, started in _started(manifest):
        for probe in container.probes:
            said = _probe(probe, started.role)
            if said:
                where = f"{pod.at(probe.line)}: {probe.purpose}Probe: {probe.how} {probe.target}".rstrip()
                yield finding("PD607", name, said[0], said[1], [where], fix=said[2])


def _probe(probe: Probe, role: str) -> tuple[str, str, str] | None:
    """What is wrong with the probe, what it should be, and what to write instead; None if nothing is wrong."""
    what = f"{probe.purpose} probe"
    get = "httpGet: {path: /health, port: PORT}"
    if probe.how == "tcpSocket" and probe.purpose == "readiness":
        return (
            f"its {what} asks for an open port, which is there before the model is loaded",
            "GET /health, which answers 200 when it can serve",
            f"set readinessProbe to {get}",
        )
    if probe.how == "exec" and probe.target.replace('"', "").split(" -c ")[-1].strip() in ("exit 0", "true", ":"):
        expected = "GET /health, which fails when the server does"
        return f"its {what} always succeeds (`{probe.target}`)", expected, f"set {probe.purpose}Probe to {get}"
    if role != "engine" or probe.purpose != "liveness":
        return None
    if probe.target.startswith("/health_generate"):
        observed = f"its {what} runs a generation and kills a pod that is only busy"
        return observed, "GET /health, which waits for no generation", f"set livenessProbe to {get}"
    if probe.failures == 1:
        observed = f"its {what} kills the pod after a single miss"
        return observed, "three misses in a row", "set failureThreshold of the livenessProbe to 3"
    return None


def images(servers: Servers) -> list[Finding]:
    return _without_repeats(_unpinned_images(servers))


def _unpinned_images(servers: Servers) -> Iterator[Finding]:
    """PD608: images of containers, and of the targets of a topology, without a tag or digest or with :latest."""
    for name, pod, container, _ in _started(servers.manifest, (SCRIPT,)) if servers.manifest is not None else ():
        if _is_unpinned(container.image):
            evidence = [f"{pod.at(container.image_line)}: image: {container.image}"]
            yield finding("PD608", name, container.image, TAGGED, evidence, image=_bare(container.image))
    if servers.topology is None:
        return
    targets = servers.topology.targets
    inner = targets.slurm.get("container")
    slurm = inner.get("image") if isinstance(inner, dict) else None
    said = (("targets.kubernetes.image", targets.kubernetes.get("image")), ("targets.slurm.container.image", slurm))
    for path, image in said:
        if isinstance(image, str) and _is_unpinned(image):
            span = servers.topology.spans.get(path)
            evidence = [f"{span.file}:{span.line}: image: {image}" if span is not None else f"{path}: {image}"]
            yield finding("PD608", "every instance", image, TAGGED, evidence, image=_bare(image))


def _is_unpinned(image: str) -> bool:
    known = bool(image) and "$" not in image and "{{" not in image and not image.endswith((".sqsh", ".sif"))
    return known and not pinned(image)


def _bare(image: str) -> str:
    return image.removesuffix(":latest")


def grace(manifest: Manifest) -> Iterator[Finding]:
    for name, pod, container, _ in _started(manifest):
        seconds = GRACE if pod.grace is None else pod.grace
        if seconds < DRAIN:
            where = (
                "no terminationGracePeriodSeconds" if pod.grace is None else f"terminationGracePeriodSeconds: {seconds}"
            )
            line = container.image_line or pod.line
            evidence = [f"{pod.at(pod.line if pod.grace is not None else line)}: {where}"]
            yield finding("PD609", name, f"{seconds} s", f"{DRAIN} s", evidence, seconds=DRAIN)


def variables(manifest: Manifest) -> Iterator[Finding]:
    """$(NAME) that nothing defines, in kinds that no operator adds to, and shell syntax where no shell runs."""
    for name, pod, container, started in _started(manifest):
        defined = {said.name for said in container.env}
        for word in started.flags:
            found = [] if container.shell else [one or other for one, other in SHELLED.findall(word.text)]
            if pod.kind in CORE and not container.env_open:
                found += [
                    each for each in EXPANDED.findall(word.text) if each not in defined and not OWN.fullmatch(each)
                ]
            for variable in found:
                evidence = [f"{pod.at(word.line)}: {word.text}"]
                yield finding("PD619", f"{name}", f"`{word.text}`", "its value", evidence, name=variable)
        yield from _placeholders(name, pod, container)


def _placeholders(name: str, pod: ManifestPod, container: Container) -> Iterator[Finding]:
    """PD619: a template's placeholders, applied as they are. Nothing is ever expanded in an image's name."""
    found = SHELLED.search(container.image)
    if found is not None:
        evidence, variable = [f"{pod.at(container.image_line)}: image: {container.image}"], found[1] or found[2]
        yield finding("PD619", name, f"`{container.image}`", "its tag", evidence, Severity.WARNING, name=variable)
    for said in container.env if not container.shell else ():
        if said.value is not None and SHELLED.fullmatch(said.value):
            evidence = [f"{pod.at(said.line)}: {said.name}: {said.value}"]
            yield finding("PD619", name, f"`{said.value}`", "its value", evidence, Severity.WARNING, name=said.name)


def dns(servers: Servers) -> Verdict:
    """A hostNetwork pod needs a DNS policy only if it calls something by name."""
    if servers.manifest is None:
        return NO_PODS
    found = []
    for name, pod, _, started in _started(servers.manifest):
        if pod.host_network and pod.dns_policy != "ClusterFirstWithHostNet":
            called = [word for word in started.flags if _has_name(word.text)]
            if called:
                evidence = [f"{pod.at(called[0].line)}: {called[0].text}", f"{pod.at(0)}: hostNetwork: true"]
                observed = pod.dns_policy or "ClusterFirst (unset)"
                found.append(finding("PD621", name, observed, "ClusterFirstWithHostNet", evidence))
    return found


def _has_name(text: str) -> bool:
    """Whether it is an address with a host name: a URL, or host:port with a variable or a letter."""
    host, port = host_and_port(text.split("$(")[0] + "name" + text.rpartition(")")[2] if "$(" in text else text)
    return port is not None and not is_loopback(host) and not re.fullmatch(r"[\d.]+|[0-9a-f:]*:[0-9a-f:]*", host)


def copies(servers: Servers) -> Iterator[Finding]:
    """Differences between the leader and the worker of one object: environment, image and flags."""
    workers = {side.name.removesuffix("/worker"): side for side in servers.engines if side.follows}
    for leader in servers.sides:
        worker = workers.get(leader.name)
        if worker is None or (leader.pod is not None and leader.pod.size == 1):  # no worker is ever started
            continue
        for what, one, other, evidence in _drift(leader, worker):
            observed = f"{what} is {one or 'not set'} on the leader and {other or 'not set'} on the worker"
            fix = f"write the same {what} in leaderTemplate and workerTemplate"
            yield finding("PD616", leader.name, observed, "the same on both", evidence, fix=fix)


def _drift(leader: Server, worker: Server) -> Iterator[tuple[str, str, str, list[str]]]:
    for name in sorted(leader.env.keys() | worker.env.keys()):
        if GIVEN.fullmatch(name):
            continue
        one, other = leader.env.get(name), worker.env.get(name)
        values = [said.value if said is not None else "" for said in (one, other)]
        if values[0] != values[1]:
            evidence = [said.evidence for said in (one, other) if said is not None]
            yield name, values[0] or "", values[1] or "", evidence
    flags = sorted({said.name for side in (leader, worker) for said in side.flags.given} - set(PER_RANK))
    for name in flags:
        first, second = leader.flags.find(name), worker.flags.find(name)
        texts = [" ".join(said.values) or "set" if said is not None else "" for said in (first, second)]
        if texts[0] != texts[1]:
            evidence = [said.evidence for said in (first, second) if said is not None]
            yield f"--{name}", texts[0], texts[1], evidence
    both = [side.container.image if side.container is not None else "" for side in (leader, worker)]
    if both[0] != both[1]:
        yield "image", both[0], both[1], [leader.place(), worker.place()]


def selects_nothing(servers: Servers) -> Verdict:
    """PD221: no pod template in these files has labels that match the Service's selector."""
    if servers.manifest is None:
        return NO_SERVICES
    return list(_selects_nothing(servers, servers.manifest))


def _selects_nothing(servers: Servers, manifest: Manifest) -> Iterator[Finding]:
    called = {
        host_and_port(each.url)[0].split(".")[0] for router in servers.routers for each in _listed_workers(router)
    }
    for service in manifest.services:
        if service.kind == COMPOSE or not service.selector or not _can_tell(manifest, service):
            continue
        if any(pod.carries(service.selector) for pod in manifest.pods):
            continue
        if any(service.selector.items() <= labels.items() for labels in manifest.others):
            continue
        nearest = max(manifest.pods, key=lambda pod: _label_likeness(_labels(pod), service.selector))
        if service.name not in called and not _label_likeness(_labels(nearest), service.selector):
            continue  # it selects something that is not in these files
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
    """Whether a missing match is certain: there are pods, and no label of a domain that a controller may add."""
    known = {key for pod in manifest.pods for key in _labels(pod)}
    return bool(manifest.pods) and all("/" not in key or key in known for key in service.selector)


def _labels(pod: ManifestPod) -> Mapping[str, str]:
    return {**pod.added, **pod.labels}


def _label_likeness(labels: Mapping[str, str], selector: Mapping[str, str]) -> int:
    """How well the labels match the selector: an equal pair counts most, then a similar value."""
    import difflib  # late: only a mistake needs it

    score = 0
    for key, value in selector.items():
        said = labels.get(key)
        if said == value:
            score += 3
        elif said is not None and difflib.SequenceMatcher(None, said, value).ratio() > ALIKE:
            score += 1
    return score


def _spelt(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}: {value}" for key, value in labels.items()) or "none"


def target_ports(servers: Servers) -> Verdict:
    """PD222: a targetPort on which nothing in the selected pods listens. Headless Services have none."""
    if servers.manifest is None:
        return NO_SERVICES
    found = []
    for service in servers.manifest.services:
        pods = [pod for pod in servers.manifest.pods if pod.carries(service.selector)]
        for each in service.exposed if pods and not service.headless else ():
            closed = [pod for pod in pods if not _opens(pod, each)]
            if len(closed) == len(pods):
                found.append(_closed_port(service, each, closed[0]))
    return found


def _closed_port(service: Service, each: Exposed, pod: ManifestPod) -> Finding:
    target = each.target or str(each.port)
    opened = list(dict.fromkeys(port for container in pod.containers for port in listened_ports(container)))
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
    """Whether a container may listen on the port; any occurrence of the number on its command line counts."""
    if each.target and not each.target.isdigit():
        return any(said.name == each.target for container in pod.containers for said in container.ports)
    number = int(each.target) if each.target else each.port
    for container in pod.containers:
        said = [word.text for word in container.argv] + [said.value or "" for said in container.env]
        if number in listened_ports(container) or any(re.search(rf"(?<!\d){number}(?!\d)", text) for text in said):
            return True
        if program(container.argv) is None:  # only its image may know what a sidecar listens on
            return not container.ports or any(port.value == str(number) for port in container.ports)
        if _open_ended(container):
            return True
    return False


def _open_ended(container: Container) -> bool:
    """Whether a port on its command line depends on a variable."""
    words = [word.text for word in container.argv]
    flags = [(one, other) for one, other in pairwise((*words, "")) if one.startswith("--") and "port" in one]
    return any("$" in word for flag in flags for word in flag)


def unread(servers: Servers) -> Verdict:
    """PD905: flags that read like an engine's or a router's behind an entrypoint that the files do not hold."""
    if servers.manifest is None:
        return NO_PODS
    return [
        finding("PD905", each.name, each.flags, "a command that names its program", [f"{each.place}: {each}"])
        for each in servers.manifest.unread
    ]


def _listed_workers(router: RouterLine) -> tuple[Listed, ...]:
    return (*router.prefills, *router.decodes)


CHECKS = (
    written("PD221", selects_nothing),
    written("PD222", target_ports),
    written("PD607", of_pods(probes)),
    written("PD608", images),
    written("PD609", of_pods(grace)),
    written("PD616", copies),
    written("PD619", of_pods(variables)),
    written("PD621", dns),
    written("PD905", unread),
)
