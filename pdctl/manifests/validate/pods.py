"""What of a pod no schema says: references inside it, numbers of ports, devices, probes, the bootstrap port."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pdctl.manifests.images import pinned

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.manifests.validate.path import Path

Found = tuple["Path", str]
Value = dict[str, Any]

NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?")
PORT = "sglang.ai/bootstrap-port"
BOOTSTRAP_FLAG = "--disaggregation-bootstrap-port"
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
HANDLERS = ("httpGet", "tcpSocket", "exec", "grpc")
DNS_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
STANDARD = ("cpu", "memory", "ephemeral-storage")
LAST_PORT = 65535
LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-\w.]*[A-Za-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-\w.]*[A-Za-z0-9])?)?")
LONGEST = 63


def broken(path: Path, template: Value) -> Iterator[Found]:
    spec = template.get("spec", {})
    inner = (*path, "spec")
    if not spec.get("containers"):
        yield (*inner, "containers"), "empty: a pod has at least one"
    names: set[str] = set()
    volumes: set[str] = set()
    for at, volume in enumerate(spec.get("volumes", ())):
        if not NAME.fullmatch(volume["name"]) or volume["name"] in volumes:
            yield (*inner, "volumes", at, "name"), f"{volume['name']!r} is taken, or no name of a-z, 0-9 and -"
        volumes.add(volume["name"])
    for key, said in spec.get("nodeSelector", {}).items():
        yield from label((*inner, "nodeSelector", key), key, said)
    for at, container in enumerate(spec.get("containers", ())):
        where = (*inner, "containers", at)
        if not NAME.fullmatch(container["name"]) or container["name"] in names:
            yield (*where, "name"), f"{container['name']!r} is taken, or no name of a-z, 0-9 and -"
        names.add(container["name"])
        yield from _container(where, container, volumes)
    if spec.get("dnsPolicy", "ClusterFirst") not in DNS_POLICIES:
        yield (*inner, "dnsPolicy"), f"{spec['dnsPolicy']!r} is not one of {', '.join(map(repr, DNS_POLICIES))}"
    if spec.get("terminationGracePeriodSeconds", 0) < 0:
        yield (*inner, "terminationGracePeriodSeconds"), f"{spec['terminationGracePeriodSeconds']} is less than 0"
    yield from _bootstrap(path, template)


def _container(path: Path, container: Value, volumes: set[str]) -> Iterator[Found]:
    if not pinned(container.get("image", "")):
        yield (*path, "image"), f"{container.get('image', '')!r} is not pinned: no tag but latest, and no digest"
    for at, variable in enumerate(container.get("env", ())):
        if not VARIABLE.fullmatch(variable["name"]):
            yield (*path, "env", at, "name"), f"{variable['name']!r} is no name of a variable"
        if "value" in variable and "valueFrom" in variable:
            yield (*path, "env", at, "valueFrom"), "does not go with value"
    places: set[str] = set()
    for at, mount in enumerate(container.get("volumeMounts", ())):
        if mount["name"] not in volumes:
            yield (*path, "volumeMounts", at, "name"), f"{mount['name']!r} is no volume of this pod"
        if mount["mountPath"] in places:
            yield (*path, "volumeMounts", at, "mountPath"), f"{mount['mountPath']!r} a second time"
        places.add(mount["mountPath"])
    yield from _ports(path, container)
    yield from _devices((*path, "resources"), container.get("resources", {}))
    ports = {port.get("name") for port in container.get("ports", ())}
    for name in PROBES:
        if name in container:
            yield from _probe((*path, name), container[name], ports)


def _ports(path: Path, container: Value) -> Iterator[Found]:
    names: set[str] = set()
    for at, port in enumerate(container.get("ports", ())):
        yield from numbered((*path, "ports", at, "containerPort"), port["containerPort"])
        name = port.get("name")
        if name is not None and (name in names or not PORT_NAME.fullmatch(name)):
            yield (*path, "ports", at, "name"), f"{name!r} is taken, or longer than 15 or not of a-z, 0-9 and -"
        names.add(name)


def label(path: Path, key: str, value: str) -> Iterator[Found]:
    if not LABEL_KEY.fullmatch(key):
        yield path, f"{key!r} is no key of a label"
    if not LABEL_VALUE.fullmatch(value) or len(value) > LONGEST:
        yield path, f"{value!r} is no value of a label"


def numbered(path: Path, port: int) -> Iterator[Found]:
    if not 0 < port <= LAST_PORT:
        yield path, f"{port} is not a port from 1 to {LAST_PORT}"


def _devices(path: Path, resources: Value) -> Iterator[Found]:
    """Resources of a device plugin are whole, and asked for as they are limited."""
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    for name, count in limits.items():
        if "/" not in name:
            if name not in STANDARD and not name.startswith("hugepages-"):
                yield (*path, "limits", name), f"{name!r} is no resource of Kubernetes: a device's has a domain"
        elif not str(count).isdigit():
            yield (*path, "limits", name), f"{count!r} is not a whole number of devices"
        elif str(requests.get(name, count)) != str(count):
            yield (*path, "requests", name), f"{requests[name]!r} is not the limit, {count!r}"
    for name in requests.keys() - limits.keys():
        if "/" in name:
            yield (*path, "limits", name), "missing: devices that are requested are limited too"


def _probe(path: Path, probe: Value, ports: set[str | None]) -> Iterator[Found]:
    handlers = [key for key in HANDLERS if key in probe]
    if len(handlers) != 1:
        yield path, f"needs one of {', '.join(HANDLERS)}" if not handlers else f"has both {' and '.join(handlers)}"
    for key in handlers:
        port = probe[key].get("port")
        if isinstance(port, str) and port not in ports:
            yield (*path, key, "port"), f"{port!r} is no port of this container"
        elif isinstance(port, int):
            yield from numbered((*path, key, "port"), port)
    for key in ("periodSeconds", "timeoutSeconds", "failureThreshold", "successThreshold"):
        if probe.get(key, 1) < 1:
            yield (*path, key), f"{probe[key]} is less than 1"
    if path[-1] != "readinessProbe" and probe.get("successThreshold", 1) != 1:
        yield (*path, "successThreshold"), f"{probe['successThreshold']} is not 1"


def _bootstrap(path: Path, template: Value) -> Iterator[Found]:
    """What the router reads at a prefill's pod is where the prefill listens."""
    said = template.get("metadata", {}).get("annotations", {}).get(PORT)
    given = [port for each in template.get("spec", {}).get("containers", ()) if (port := _given(each)) is not None]
    where = (*path, "metadata", "annotations", PORT)
    if said is not None and not (said.isdigit() and 0 < int(said) <= LAST_PORT):
        yield where, f"{said!r} is not a port from 1 to {LAST_PORT}"
    elif said is not None and given and said != given[0]:
        yield where, f"{said!r}, but the server is started with {BOOTSTRAP_FLAG} {given[0]}"


def _given(container: Value) -> str | None:
    words = [*container.get("command", ()), *container.get("args", ())]
    return next((after for word, after in pairwise(words) if word == BOOTSTRAP_FLAG), None)
