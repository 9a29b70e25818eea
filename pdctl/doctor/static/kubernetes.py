"""What a manifest says around its containers: probes, images, time to end, variables, copies of one template."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pdctl.catalogue.entry import Severity
from pdctl.doctor.check import Skipped, finding
from pdctl.doctor.static.deployed import LOOPBACK, split, templates
from pdctl.doctor.static.question import written
from pdctl.manifests.manifest import PLAIN, SCRIPT, pinned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pdctl.doctor.check import Verdict
    from pdctl.doctor.finding import Finding
    from pdctl.doctor.static.servers import Server, Servers
    from pdctl.manifests.command_lines import ServerProgram
    from pdctl.manifests.manifest import Container, Manifest, ManifestPod, Probe

NO_PODS = Skipped("no pods: this is no manifest")
GRACE = 30  # Kubernetes' default, in seconds
DRAIN = 180  # what sglang-router 0.3.2 waits for requests in flight (--shutdown-grace-period-secs)
CORE = ("Pod", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob")
EXPANDED = re.compile(r"\$\((\w+)\)")
SHELLED = re.compile(r"\$\{(\w+)\}|\$([A-Za-z_]\w*)")
OWN = re.compile(r".*(_SERVICE_HOST|_SERVICE_PORT\w*|_PORT\w*)")  # Kubernetes adds them for every Service
GIVEN = re.compile(r"(LWS|RBG_LWP)_\w+")  # the operator sets them in every pod, whether written or not
PER_RANK = ("node-rank", "host", "port", "base-gpu-id")  # only node 0 serves


def of_pods(judge: Callable[[Manifest], Iterator[Finding]]) -> Callable[[Servers], Verdict]:
    def ask(servers: Servers) -> Verdict:
        if servers.manifest is None or all(pod.kind in PLAIN for pod in servers.manifest.pods):
            return NO_PODS
        return _once(judge(servers.manifest))

    return ask


def _once(found: Iterator[Finding]) -> list[Finding]:
    """Two pods may share a template: what is said of one line is said once."""
    return list({one.evidence: one for one in reversed(list(found))}.values())[::-1]


def _started(
    manifest: Manifest, besides: tuple[str, ...] = PLAIN
) -> Iterator[tuple[str, ManifestPod, Container, ServerProgram]]:
    for pod, container, program in templates(manifest):
        if pod.kind not in besides:
            yield pod.name, pod, container, program


def probes(manifest: Manifest) -> Iterator[Finding]:
    for name, pod, container, program in _started(manifest):
        for probe in container.probes:
            said = _probe(probe, program.role)
            if said:
                where = f"{pod.at(probe.line)}: {probe.purpose}Probe: {probe.how} {probe.target}".rstrip()
                yield finding("PD607", name, said[0], said[1], [where], fix=said[2])


def _probe(probe: Probe, role: str) -> tuple[str, str, str] | None:
    """What is wrong with it, what it should be, and what to write instead."""
    what = f"{probe.purpose} probe"
    get = "httpGet: {path: /health, port: <HTTP port>}"
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


TAGGED = "a tag that names the release"


def images(servers: Servers) -> list[Finding]:
    return _once(_images(servers))


def _images(servers: Servers) -> Iterator[Finding]:
    """Of containers, and of the images a topology's targets name."""
    for name, pod, container, _ in _started(servers.manifest, (SCRIPT,)) if servers.manifest is not None else ():
        if _untagged(container.image):
            evidence = [f"{pod.at(container.image_line)}: image: {container.image}"]
            yield finding("PD608", name, container.image, TAGGED, evidence, image=_bare(container.image))
    if servers.topology is None:
        return
    targets = servers.topology.targets
    inner = targets.slurm.get("container")
    slurm = inner.get("image") if isinstance(inner, dict) else None
    said = (("targets.kubernetes.image", targets.kubernetes.get("image")), ("targets.slurm.container.image", slurm))
    for path, image in said:
        if isinstance(image, str) and _untagged(image):
            span = servers.topology.spans.get(path)
            evidence = [f"{span.file}:{span.line}: image: {image}" if span is not None else f"{path}: {image}"]
            yield finding("PD608", "every instance", image, TAGGED, evidence, image=_bare(image))


def _untagged(image: str) -> bool:
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
    """$(NAME) that nothing defines, in kinds to which no operator adds; a shell's spelling where there is no shell."""
    for name, pod, container, program in _started(manifest):
        defined = {said.name for said in container.env}
        for word in program.flags:
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
    """Of a template: whoever applies it as it is passes on the text. In an image's name nothing is ever expanded."""
    found = SHELLED.search(container.image)
    if found is not None:
        evidence, variable = [f"{pod.at(container.image_line)}: image: {container.image}"], found[1] or found[2]
        yield finding("PD619", name, f"`{container.image}`", "its tag", evidence, Severity.WARNING, name=variable)
    for said in container.env if not container.shell else ():
        if said.value is not None and SHELLED.fullmatch(said.value):
            evidence = [f"{pod.at(said.line)}: {said.name}: {said.value}"]
            yield finding("PD619", name, f"`{said.value}`", "its value", evidence, Severity.WARNING, name=said.name)


def dns(servers: Servers) -> Verdict:
    """Only where the pod itself calls somebody by name."""
    if servers.manifest is None:
        return NO_PODS
    found = []
    for name, pod, _, program in _started(servers.manifest):
        if pod.host_network and pod.dns_policy != "ClusterFirstWithHostNet":
            called = [word for word in program.flags if _named(word.text)]
            if called:
                evidence = [f"{pod.at(called[0].line)}: {called[0].text}", f"{pod.at(0)}: hostNetwork: true"]
                observed = pod.dns_policy or "ClusterFirst (unset)"
                found.append(finding("PD621", name, observed, "ClusterFirstWithHostNet", evidence))
    return found


def _named(text: str) -> bool:
    """An address with a name in it: a URL, or host:port with a variable or a letter."""
    host, port = split(text.split("$(")[0] + "name" + text.rpartition(")")[2] if "$(" in text else text)
    return port is not None and host not in LOOPBACK and not re.fullmatch(r"[\d.]+|[0-9a-f:]*:[0-9a-f:]*", host)


def copies(servers: Servers) -> Iterator[Finding]:
    """Leader and worker of one object: their environment, image and flags."""
    workers = {side.name.removesuffix("/worker"): side for side in servers.engines if side.follows}
    for leader in servers.sides:
        worker = workers.get(leader.name)
        if worker is None or (leader.pod is not None and leader.pod.size == 1):  # no worker is ever started
            continue
        for what, one, other, evidence in _drift(leader, worker):
            observed = f"leader has {what} {one or 'not set'}, worker {other or 'not set'}"
            fix = f"write {what} alike in leaderTemplate and workerTemplate"
            yield finding("PD616", leader.name, observed, "one setting", evidence, fix=fix)


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
        texts = [" ".join(said.values) or "given" if said is not None else "" for said in (first, second)]
        if texts[0] != texts[1]:
            evidence = [said.evidence for said in (first, second) if said is not None]
            yield f"--{name}", texts[0], texts[1], evidence
    both = [side.container.image if side.container is not None else "" for side in (leader, worker)]
    if both[0] != both[1]:
        yield "image", both[0], both[1], [leader.place(), worker.place()]


CHECKS = (
    written("PD607", of_pods(probes)),
    written("PD608", images),
    written("PD609", of_pods(grace)),
    written("PD616", copies),
    written("PD619", of_pods(variables)),
    written("PD621", dns),
)
