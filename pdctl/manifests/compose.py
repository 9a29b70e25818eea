"""Read a docker compose file as pods: one per service that starts an engine or a router (Compose specification)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from yaml.nodes import ScalarNode

from pdctl.manifests.command_lines import behind_entrypoint, program, unread_commands
from pdctl.manifests.lenient_yaml import documents, first_line, get, items, line, number, pairs, text
from pdctl.manifests.manifest import (
    COMPOSE,
    MOST_GPUS,
    Container,
    Manifest,
    ManifestPod,
    PlacedWord,
    SaidSetting,
    Service,
    UnreadCommand,
)
from pdctl.manifests.pod_templates import shelled
from pdctl.manifests.shell import ShellVariables
from pdctl.manifests.shell_words import split

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from yaml.nodes import Node

SERVICE = "com.docker.compose.service"
BROKEN = re.compile(r"\\?\n")  # a command on several lines is one command


def read_compose(body: str, name: str, known: Mapping[str, str]) -> Manifest:
    """Read a compose file. `known`: values for `${…}`, as from the environment. TopologyError if it is not YAML."""
    pods: list[ManifestPod] = []
    unread: list[UnreadCommand] = []
    hosts: set[str] = set()
    joined = False
    for document in documents(body, name):
        networks = [network for _, network in pairs(get(document, "networks"))]
        joined = joined or get(document, "include") is not None or any(get(each, "external") for each in networks)
        for service, node in pairs(get(document, "services")):
            hosts.update(_host_names(service, node))
            pod = _pod(service, node, name, ShellVariables(dict(known)))
            if any(program(each.argv) for each in pod.containers):
                pods.append(pod)
            else:
                unread += unread_commands(pod.containers, service, name)
    return Manifest(
        (name,),
        tuple(pods),
        tuple(_service(pod) for pod in pods),
        unread=tuple(unread),
        host_names=frozenset(hosts),
        joined=joined,
    )


def _host_names(service: str, node: Node) -> Iterator[str]:
    """The names by which other services reach this one, and those that it gives to other hosts."""
    yield service
    yield text(get(node, "container_name")) or service
    for _, network in pairs(get(node, "networks")):
        yield from filter(None, map(text, items(get(network, "aliases"))))
    extra = get(node, "extra_hosts")
    yield from (name for name, _ in pairs(extra))
    for each in (*items(extra), *items(get(node, "links"))):
        first, _, rest = (text(each) or "").replace("=", ":", 1).partition(":")
        yield from (first, rest)  # an extra host stands first, the alias of a link second


def _service(pod: ManifestPod) -> Service:
    """The Service of a pod: compose services reach each other by name, on every port."""
    return Service(pod.name, pod.file, pod.line, COMPOSE, True, {SERVICE: pod.name}, ())


def _pod(service: str, node: Node, file: str, values: ShellVariables) -> ManifestPod:
    env = tuple(_environment(get(node, "environment"), values))
    words, lines = _words(node, values)
    argv, in_shell, own = shelled(words, lines, {said.name: said.value for said in env if said.value is not None})
    image = get(node, "image")
    name = _filled(text(image) or "", values)
    devices = _devices(node)
    container = Container(
        name=service,
        image=name,
        image_line=line(image),
        argv=behind_entrypoint(argv, name, line(image)),
        env=(*env, *own),
        gpus=len(devices) if devices else None,
        devices=devices,
        shell=in_shell,
        env_open=get(node, "env_file") is not None,
    )
    replicas = number(get(node, "scale"))
    return ManifestPod(
        name=service,
        kind=COMPOSE,
        file=file,
        line=line(node),
        part="",
        replicas=number(get(node, "deploy", "replicas")) if replicas is None else replicas,
        size=None,
        labels={},
        annotations=(),
        host_network=text(get(node, "network_mode")) == "host",
        dns_policy="",
        grace=None,
        containers=(container,),
        added={SERVICE: service},
        shm=text(get(node, "shm_size")) or "",
    )


def _words(node: Node, values: ShellVariables) -> tuple[tuple[PlacedWord, ...], list[int]]:
    words: list[PlacedWord] = []
    lines: list[int] = []
    for key in ("entrypoint", "command"):
        said = get(node, key)
        if isinstance(said, ScalarNode):
            for raw in next(split(BROKEN.sub(" ", text(said) or "") + "\n", first_line(said)), []):
                words += [PlacedWord(each.replace("$$", "$"), first_line(said)) for each in values.words(raw)]
        else:
            words += [PlacedWord(_filled(text(each) or "", values), line(each)) for each in items(said)]
        lines += [word.line for word in words[len(lines) :]]
    return tuple(words), lines


def _environment(node: Node | None, values: ShellVariables) -> Iterator[SaidSetting]:
    """Variables from a map or a list of NAME=value; a name without a value comes from compose's own environment."""
    for name, value in pairs(node):
        said = text(value)
        yield SaidSetting(name, None if said is None else _filled(said, values), line(value))
    for each in items(node):
        variable, equals, given = (text(each) or "").partition("=")
        if variable:
            yield SaidSetting(variable, _filled(given, values) if equals else None, line(each))


def _filled(body: str, values: ShellVariables) -> str:
    return values.filled(body.replace("$$", "\0")).replace("\0", "$")


def _devices(node: Node) -> tuple[str, ...] | None:
    """The GPUs that a service reserves, as in Container. Docker takes the first ones where it is told how many."""
    short = get(node, "gpus")
    for device in (*items(get(node, "deploy", "resources", "reservations", "devices")), *items(short)):
        ids = tuple(each for one in items(get(device, "device_ids")) if (each := text(one)))
        count = get(device, "count")
        if ids or count is None or text(count) == "all":
            return ids
        wanted = number(count)
        return tuple(map(str, range(min(wanted, MOST_GPUS)))) if wanted is not None and wanted > 0 else None
    return () if text(short) == "all" else None
