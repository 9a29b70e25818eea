"""Pod templates and Services of YAML documents, whatever kind of object they stand in."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from yaml.nodes import Node, ScalarNode

from pdctl.doctor.manifest import Container, Pod, Probe, Said, Service, Word
from pdctl.doctor.manifests import shell
from pdctl.doctor.manifests.nodes import first_line, get, items, labels, line, number, pairs, text
from pdctl.doctor.manifests.programs import program

if TYPE_CHECKING:
    from collections.abc import Iterator

SHELLS = ("sh", "bash", "dash", "ash", "zsh")
PARTS = {"leaderTemplate": "leader", "workerTemplate": "worker"}
PROBES = ("readiness", "liveness", "startup")
DEEPEST = 40
GPU = "nvidia.com/gpu"


def pods(document: Node, file: str) -> Iterator[Pod]:
    """Every template with a container that starts an engine or a router."""
    yield from _walk(document, (), file, set())


def services(document: Node, file: str) -> Iterator[Service]:
    listed = items(get(document, "items")) if text(get(document, "kind")) == "List" else (document,)
    for each in listed:
        if text(get(each, "kind")) == "Service":
            yield _service(each, file)


def _service(node: Node, file: str) -> Service:
    spec = get(node, "spec")
    ports = (number(get(port, "targetPort")) or number(get(port, "port")) for port in items(get(spec, "ports")))
    return Service(
        name=text(get(node, "metadata", "name")) or "",
        file=file,
        line=line(node),
        kind=text(get(spec, "type")) or "ClusterIP",
        headless=text(get(spec, "clusterIP")) == "None",
        selector=labels(get(spec, "selector")),
        ports=tuple(port for port in ports if port is not None),
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
    return Pod(
        name=_name(thing, above, part),
        kind=text(get(thing, "kind")) or "Pod",
        file=file,
        line=line(spec),
        part=part,
        replicas=_nearest(holders, "replicas"),
        size=_nearest(holders, "size"),
        labels=labels(get(template, "metadata", "labels")),
        annotations=_said(get(template, "metadata", "annotations")),
        host_network=text(get(spec, "hostNetwork")) == "true",
        dns_policy=text(get(spec, "dnsPolicy")) or "",
        grace=number(grace),
        containers=tuple(_container(each) for each in items(get(spec, "containers"))),
    )


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


def _container(node: Node) -> Container:
    env = tuple(
        Said(name, text(get(each, "value")), line(each))
        for each in items(get(node, "env"))
        if (name := text(get(each, "name"))) is not None
    )
    argv, shelled, own = _argv(node)
    image = get(node, "image")
    return Container(
        name=text(get(node, "name")) or "",
        image=text(image) or "",
        image_line=line(image),
        argv=argv,
        env=(*env, *own),
        probes=tuple(_probes(node)),
        gpus=number(get(node, "resources", "limits", GPU)) or number(get(node, "resources", "requests", GPU)),
        shell=shelled,
        env_open=get(node, "envFrom") is not None,
    )


def _argv(node: Node) -> tuple[tuple[Word, ...], bool, tuple[Said, ...]]:
    """The words of the engine or router, whether a shell reads them, and what that shell exports before."""
    said = [each for key in ("command", "args") for each in _listed(get(node, key))]
    words = [text(each) or "" for each in said]
    name = words[0].rpartition("/")[2] if words else ""
    at = next((n for n, word in enumerate(words[1:], 1) if word.startswith("-") and word.endswith("c")), 0)
    if name in SHELLS and at and len(said) > at + 1:
        for command in shell.commands(words[at + 1], first_line(said[at + 1])):
            if program(command.words):
                return command.words, True, command.env
    return tuple(Word(word, line(each)) for word, each in zip(words, said, strict=True)), name in SHELLS, ()


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
