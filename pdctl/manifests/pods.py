"""Pod templates and Services of YAML documents, whatever kind of object they stand in."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from yaml.nodes import Node, ScalarNode

from pdctl.manifests import shell
from pdctl.manifests.manifest import Container, Exposed, Mount, Pod, Probe, Said, Service, Word
from pdctl.manifests.nodes import first_line, get, items, labels, line, number, pairs, text
from pdctl.manifests.programs import program
from pdctl.manifests.settle import GPU, settled

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SHELLS = ("sh", "bash", "dash", "ash", "zsh")
PARTS = {"leaderTemplate": "leader", "workerTemplate": "worker"}
PROBES = ("readiness", "liveness", "startup")
DEEPEST = 40


def pods(document: Node, file: str) -> Iterator[Pod]:
    """Every template with a container that starts an engine or a router."""
    yield from _walk(settled(document), (), file, set())


def others(document: Node) -> Iterator[Mapping[str, str]]:
    """The labels of every template that starts neither an engine nor a router."""
    yield from _others(settled(document), None, 0, set())


def _others(node: Node, template: Node | None, depth: int, seen: set[int]) -> Iterator[Mapping[str, str]]:
    if id(node) in seen or depth > DEEPEST:
        return
    seen.add(id(node))
    containers = items(get(node, "containers"))
    if containers:
        if not any(program(_argv(each, {})[0]) for each in containers):
            yield labels(get(template, "metadata", "labels"))
        return
    for _, value in pairs(node):
        yield from _others(value, node, depth + 1, seen)
    for value in items(node):
        yield from _others(value, node, depth + 1, seen)


def services(document: Node, file: str) -> Iterator[Service]:
    listed = items(get(document, "items")) if text(get(document, "kind")) == "List" else (document,)
    for each in listed:
        if text(get(each, "kind")) == "Service":
            yield _service(each, file)


def _service(node: Node, file: str) -> Service:
    spec = get(node, "spec")
    listed = items(get(spec, "ports"))
    ports = (number(get(port, "targetPort")) or number(get(port, "port")) for port in listed)
    exposed = (
        Exposed(said, text(get(port, "targetPort")) or "", line(get(port, "targetPort")) or line(port))
        for port in listed
        if (said := number(get(port, "port"))) is not None
    )
    return Service(
        name=text(get(node, "metadata", "name")) or "",
        file=file,
        line=line(node),
        kind=text(get(spec, "type")) or "ClusterIP",
        headless=text(get(spec, "clusterIP")) == "None",
        selector=labels(get(spec, "selector")),
        ports=tuple(port for port in ports if port is not None),
        exposed=tuple(exposed),
    )


Step = tuple[str, Node]  # the key (or "" of a list) that leads to a node


def _walk(node: Node, above: tuple[Step, ...], file: str, seen: set[int]) -> Iterator[Pod]:
    """`seen`: a template that several anchors share is one template, and an alias bomb ends here."""
    if id(node) in seen or len(above) > DEEPEST:
        return
    seen.add(id(node))
    containers = items(get(node, "containers"))
    if containers:
        pod = _pod(node, above, file)
        if any(program(each.argv) for each in pod.containers):
            yield pod
        return
    for key, value in pairs(node):
        yield from _walk(value, (*above, (key, node)), file, seen)
    for value in items(node):
        yield from _walk(value, (*above, ("", node)), file, seen)


def _pod(spec: Node, above: tuple[Step, ...], file: str) -> Pod:
    holders = [node for _, node in reversed(above)]
    template = holders[0] if holders and above[-1][0] == "spec" else None
    thing = next((node for node in holders if get(node, "kind") and get(node, "metadata")), None)
    # Without a leaderTemplate the worker's is everybody's.
    part = next((PARTS[key] for key, node in reversed(above) if key in PARTS and get(node, "leaderTemplate")), "")
    grace = get(spec, "terminationGracePeriodSeconds")
    kind, name = text(get(thing, "kind")) or "Pod", _name(thing, above, part)
    return Pod(
        name=name,
        kind=kind,
        file=file,
        line=line(spec),
        part=part,
        replicas=_replicas(holders),
        size=_nearest(holders, "size"),
        labels=labels(get(template, "metadata", "labels")),
        annotations=_said(get(template, "metadata", "annotations")),
        host_network=text(get(spec, "hostNetwork")) == "true",
        dns_policy=text(get(spec, "dnsPolicy")) or "",
        grace=number(grace),
        containers=tuple(_container(each, spec) for each in items(get(spec, "containers"))),
        added=_added(kind, name.removesuffix(f"/{part}") if part else name, part),
        namespace=text(get(thing, "metadata", "namespace")) or "",
        node_selector=labels(get(spec, "nodeSelector")),
        shm=_shm(spec),
        tolerations=tuple(key for each in items(get(spec, "tolerations")) if (key := text(get(each, "key")))),
    )


# Labels that controllers put on the pods they make; {0} is the object's name, {1} the role's in it.
ADDED: dict[str, dict[str, str]] = {
    "LeaderWorkerSet": {"leaderworkerset.sigs.k8s.io/name": "{0}"},
    "DisaggregatedSet": {
        "disaggregatedset.x-k8s.io/name": "{0}",
        "disaggregatedset.x-k8s.io/role": "{1}",
        "disaggregatedset.x-k8s.io/slice": "0",
    },
    "RoleBasedGroup": {
        "rolebasedgroup.workloads.x-k8s.io/name": "{0}",
        "rolebasedgroup.workloads.x-k8s.io/role": "{1}",
        "rbg.workloads.x-k8s.io/group-name": "{0}",
        "rbg.workloads.x-k8s.io/role-name": "{1}",
    },
}
GROUPS = ("LeaderWorkerSet", "DisaggregatedSet")  # of pods with an index; the leader's is 0
INDEX = "leaderworkerset.sigs.k8s.io/worker-index"


def _added(kind: str, name: str, part: str) -> dict[str, str]:
    group, _, role = name.partition("/")
    found = {label: value.format(group, role) for label, value in ADDED.get(kind, {}).items()}
    return found | {INDEX: "0"} if kind in GROUPS and part != "worker" else found


def _replicas(holders: list[Node]) -> int | None:
    """Those of the role, for each slice of a DisaggregatedSet."""
    replicas, slices = _nearest(holders, "replicas"), _nearest(holders, "slices")
    return replicas if slices is None else slices * (1 if replicas is None else replicas)


def _shm(spec: Node) -> str:
    """The size limit of a volume in memory: /dev/shm, in every manifest that has one."""
    volumes = (get(each, "emptyDir") for each in items(get(spec, "volumes")))
    return next((text(get(each, "sizeLimit")) or "" for each in volumes if text(get(each, "medium")) == "Memory"), "")


def _name(thing: Node | None, above: tuple[Step, ...], part: str) -> str:
    """The object's, with the names of the list items on the way (the roles of a group) and the part."""
    name = text(get(thing, "metadata", "name")) or "pod"
    inner = [
        said
        for (key, _), (_, node) in pairwise(above)
        if key == "" and (said := text(get(node, "name"))) and node is not thing
    ]
    return "/".join((name, *inner, *([part] if part else [])))


def _nearest(holders: list[Node], key: str) -> int | None:
    return next((found for node in holders if (found := number(get(node, key))) is not None), None)


def _said(node: Node | None) -> tuple[Said, ...]:
    return tuple(Said(name, text(value), line(value)) for name, value in pairs(node))


def _container(node: Node, pod: Node) -> Container:
    env = tuple(
        Said(name, text(get(each, "value")), line(get(each, "value")) or line(each))
        for each in items(get(node, "env"))
        if (name := text(get(each, "name"))) is not None
    )
    argv, in_shell, own = _argv(node, {said.name: said.value for said in env if said.value is not None})
    image = get(node, "image")
    return Container(
        name=text(get(node, "name")) or "",
        image=text(image) or "",
        image_line=line(image),
        argv=argv,
        env=(*env, *own),
        probes=tuple(_probes(node)),
        gpus=number(get(node, "resources", "limits", GPU)) or number(get(node, "resources", "requests", GPU)),
        shell=in_shell,
        env_open=get(node, "envFrom") is not None,
        resources=_said(get(node, "resources", "limits")),
        secrets=tuple(_secrets(node)),
        mounts=tuple(_mounts(node, pod)),
        ports=tuple(
            Said(text(get(each, "name")) or "", text(get(each, "containerPort")), line(each))
            for each in items(get(node, "ports"))
        ),
    )


def _secrets(node: Node) -> Iterator[Said]:
    for each in items(get(node, "env")):
        name, key = text(get(each, "name")), get(each, "valueFrom", "secretKeyRef")
        if name and key is not None:
            yield Said(name, f"{text(get(key, 'name')) or ''}/{text(get(key, 'key')) or ''}", line(each))


def _mounts(node: Node, pod: Node) -> Iterator[Mount]:
    """Claims and directories of the host; what lives in memory and what holds settings is no storage."""
    volumes = {text(get(each, "name")) or "": each for each in items(get(pod, "volumes"))}
    for each in items(get(node, "volumeMounts")):
        name, path = text(get(each, "name")) or "", text(get(each, "mountPath")) or ""
        volume = volumes.get(name)
        claim = text(get(volume, "persistentVolumeClaim", "claimName")) or ""
        host = text(get(volume, "hostPath", "path")) or ""
        if path and (claim or host):
            yield Mount(name, path, claim, host, text(get(each, "readOnly")) == "true")


def _argv(node: Node, known: Mapping[str, str]) -> tuple[tuple[Word, ...], bool, tuple[Said, ...]]:
    """The words of the engine or router, whether a shell reads them, and what that shell exports before."""
    said = [each for key in ("command", "args") for each in _listed(get(node, key))]
    words = tuple(Word(text(each) or "", line(each)) for each in said)
    lines = [first_line(each) for each in said]
    return shelled(words, lines, known)


def shelled(
    words: tuple[Word, ...], lines: Sequence[int], known: Mapping[str, str]
) -> tuple[tuple[Word, ...], bool, tuple[Said, ...]]:
    """`sh -c TEXT` as what the text starts; `lines` are where the words' own texts begin, `known` its environment."""
    name = words[0].text.rpartition("/")[2] if words else ""
    at = next((n for n, word in enumerate(words[1:], 1) if word.text.startswith("-") and word.text.endswith("c")), 0)
    if name in SHELLS and at and len(words) > at + 1:
        for command in shell.commands(words[at + 1].text, lines[at + 1], known):
            if program(command.words):
                return command.words, True, command.env
    return words, name in SHELLS, ()


def _listed(node: Node | None) -> tuple[Node, ...]:
    """`command: sleep` is not what Kubernetes allows, and often written."""
    return (node,) if isinstance(node, ScalarNode) else items(node)


def _probes(node: Node) -> Iterator[Probe]:
    for purpose in PROBES:
        probe = get(node, f"{purpose}Probe")
        for how in ("httpGet", "tcpSocket", "exec", "grpc"):
            inner = get(probe, how)
            if inner is None:
                continue
            words = " ".join(text(each) or "" for each in items(get(inner, "command")))
            target = text(get(inner, "path")) or words or text(get(inner, "port")) or ""
            failures, timeout = number(get(probe, "failureThreshold")), number(get(probe, "timeoutSeconds"))
            yield Probe(purpose, how, target, failures or 3, timeout or 1, line(probe))
