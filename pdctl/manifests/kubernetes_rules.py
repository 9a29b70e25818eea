"""What Kubernetes API servers and operators' admission reject beyond schemas: names, references, sums, CEL, pods."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pdctl.manifests.manifest import pinned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


Found = tuple["Path", str]
Value = dict[str, Any]


Path = tuple[str | int, ...]

PLAIN = re.compile(r"[A-Za-z_$][\w$-]*")
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
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")  # RFC 1123
SERVICE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # RFC 1035
STATEFULSET = 52  # maximum length: the name and a hash of eleven characters form a label of every pod
REVISION = 8  # characters of the hash that a DisaggregatedSet puts into the names it generates
PATTERNS = ("standalonePattern", "leaderWorkerPattern", "customComponentsPattern")


def spelt(path: Path) -> str:
    """A path as text: `spec.roles[0].name`; a key with dots or slashes in brackets: `metadata.labels["a.b/c"]`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif PLAIN.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f'["{step}"]'
    return text or "(the object)"


def broken_pod_rules(path: Path, template: Value) -> Iterator[Found]:
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
    """Check device resources: they must be whole numbers, with requests equal to limits."""
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
    """Check that the bootstrap port annotation, which the router reads, matches the port the prefill listens on."""
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


def broken(value: Value) -> Iterator[Found]:
    yield from _named(value)
    yield from _labelled(("metadata",), value["metadata"])
    yield from RULES[value["kind"]](value)
    for path, template in templates(value):
        yield from _labelled((*path, "metadata"), template.get("metadata", {}))
        yield from broken_pod_rules(path, template)


def templates(value: Value) -> Iterator[tuple[Path, Value]]:
    """Every pod template of an object, with its path."""
    spec, kind = value.get("spec", {}), value["kind"]
    if kind == "Deployment":
        yield ("spec", "template"), spec["template"]
    elif kind == "LeaderWorkerSet":
        yield from _of_lws(("spec",), spec)
    elif kind == "DisaggregatedSet":
        for at, role in enumerate(spec["roles"]):
            yield from _of_lws(("spec", "roles", at, "spec"), role["spec"])
    elif kind == "RoleBasedGroup":
        for key in ("roles", "roleTemplates"):
            for at, role in enumerate(spec.get(key, ())):
                for within in ((), ("standalonePattern",), ("leaderWorkerPattern",)):
                    holder = role.get(within[0], {}) if within else role
                    if "template" in holder:
                        yield ("spec", key, at, *within, "template"), holder["template"]


def _of_lws(path: Path, spec: Value) -> Iterator[tuple[Path, Value]]:
    for key in ("leaderTemplate", "workerTemplate"):
        if key in spec["leaderWorkerTemplate"]:
            yield (*path, "leaderWorkerTemplate", key), spec["leaderWorkerTemplate"][key]


def _named(value: Value) -> Iterator[Found]:
    """Check the object's name. A LeaderWorkerSet's name becomes that of a Service, so it must start with a letter."""
    name, kind = value["metadata"]["name"], value["kind"]
    starts_with_letter = kind in ("Service", "LeaderWorkerSet")
    form = SERVICE if starts_with_letter else LABEL
    if not form.fullmatch(name):
        first = ", beginning with a letter" if starts_with_letter else ""
        yield ("metadata", "name"), f"{name!r} is not a name of a-z, 0-9 and -{first}"
    elif len(name) > LONGEST:
        yield ("metadata", "name"), f"{name!r} has {len(name)} characters of at most {LONGEST}"


def _labelled(path: Path, metadata: Value) -> Iterator[Found]:
    for key, value in metadata.get("labels", {}).items():
        yield from label((*path, "labels", key), key, value)
    for key in metadata.get("annotations", {}):
        if not LABEL_KEY.fullmatch(key):
            yield (*path, "annotations", key), f"{key!r} is no key of an annotation"


def service(value: Value) -> Iterator[Found]:
    spec = value["spec"]
    ports = spec.get("ports", [])
    for at, port in enumerate(ports):
        yield from numbered(("spec", "ports", at, "port"), port["port"])
        if len(ports) > 1 and not port.get("name"):
            yield ("spec", "ports", at, "name"), "missing: a Service with several ports names them"
    yield from repeated_entries(("spec", "ports"), "name", ports)
    for key, said in spec.get("selector", {}).items():
        yield from label(("spec", "selector", key), key, said)
    if spec.get("clusterIP") == "None" and spec.get("type", "ClusterIP") != "ClusterIP":
        yield ("spec", "clusterIP"), f"'None' does not go with type {spec['type']}"


def deployment(value: Value) -> Iterator[Found]:
    spec = value["spec"]
    wanted = spec["selector"].get("matchLabels", {})
    given = spec["template"].get("metadata", {}).get("labels", {})
    if not wanted and not spec["selector"].get("matchExpressions"):
        yield ("spec", "selector"), "empty: it would select every pod"
    for key, said in wanted.items():
        if given.get(key) != said:
            path = ("spec", "template", "metadata", "labels", key)
            yield path, f"{given.get(key, 'not set')!r}, but spec.selector wants {said!r}"


def binding(value: Value) -> Iterator[Found]:
    for at, subject in enumerate(value.get("subjects", [])):
        if subject["kind"] == "ServiceAccount" and not subject.get("namespace"):
            yield ("subjects", at, "namespace"), "missing: a ServiceAccount has one"


def leader_worker_set(value: Value) -> Iterator[Found]:
    yield from _long(("metadata", "name"), value["metadata"]["name"], value["metadata"]["name"], value["spec"])
    yield from _lws(("spec",), value["spec"])


def _long(path: Path, name: str, base: str, spec: Value) -> Iterator[Found]:
    """Check the length of a name: the workers of a group are a StatefulSet named after their leader."""
    longest = f"{base}-{max(spec.get('replicas', 1) - 1, 0)}"
    if len(longest) > STATEFULSET:
        room = len(name) - (len(longest) - STATEFULSET)
        yield path, f"{name!r} is too long by {len(longest) - STATEFULSET}: at most {room} characters"


def _lws(path: Path, spec: Value) -> Iterator[Found]:
    template = spec["leaderWorkerTemplate"]
    if template.get("size", 1) < 1:
        yield (*path, "leaderWorkerTemplate", "size"), f"{template['size']} is less than 1"
    if spec.get("replicas", 1) < 0:
        yield (*path, "replicas"), f"{spec['replicas']} is less than 0"
    rolling = spec.get("rolloutStrategy", {}).get("rollingUpdateConfiguration")
    if rolling is not None:
        yield from _rolling((*path, "rolloutStrategy", "rollingUpdateConfiguration"), rolling)
    groups = template.get("subGroupPolicy", {}).get("subGroupSize")
    size = template.get("size", 1)
    if groups is not None and (groups < 1 or (size % groups and (size - 1) % groups)):
        where = (*path, "leaderWorkerTemplate", "subGroupPolicy", "subGroupSize")
        yield where, f"{groups} divides neither size {size} nor {size - 1}"


def _rolling(path: Path, rolling: Value) -> Iterator[Found]:
    unavailable, surge = rolling.get("maxUnavailable", 1), rolling.get("maxSurge", 0)
    if unavailable in (0, "0%") and surge in (0, "0%"):
        yield (*path, "maxUnavailable"), "0 while maxSurge is 0: nothing could ever be replaced"


def disaggregated_set(value: Value) -> Iterator[Found]:
    roles, name = value["spec"]["roles"], value["metadata"]["name"]
    yield from repeated_entries(("spec", "roles"), "name", roles)
    counts = [role["spec"].get("replicas", 0) for role in roles]
    if any(counts) and not all(counts):
        at = counts.index(0)
        yield ("spec", "roles", at, "spec", "replicas"), "0 while another role has some: all have some, or none has"
    for at, role in enumerate(roles):
        path: Path = ("spec", "roles", at, "spec")
        yield from _lws(path, role["spec"])
        rolling = role["spec"].get("rolloutStrategy", {}).get("rollingUpdateConfiguration", {})
        if rolling.get("partition"):
            where = (*path, "rolloutStrategy", "rollingUpdateConfiguration", "partition")
            yield where, "not allowed: the DisaggregatedSet rolls its roles out together"
    yield from _made(name, roles)


def _made(name: str, roles: Iterable[Value]) -> Iterator[Found]:
    """Check the length of generated names: NAME-REVISION-ROLE in v0.9.0, NAME-SLICE-REVISION-ROLE in later releases."""
    longest = max(roles, key=lambda role: len(role["name"]))
    made = f"{name}-0-{'x' * REVISION}-{longest['name']}"
    yield from _long(("metadata", "name"), name, made, longest["spec"])


def role_based_group(value: Value) -> Iterator[Found]:
    spec = value["spec"]
    roles = spec["roles"]
    yield from repeated_entries(("spec", "roles"), "name", roles)
    names = {role["name"] for role in roles}
    shared = {each["name"] for each in spec.get("roleTemplates", ())}
    for at, role in enumerate(roles):
        path: Path = ("spec", "roles", at)
        patterns = [key for key in PATTERNS if key in role]
        if len(patterns) > 1:
            yield (*path, patterns[1]), f"does not go with {patterns[0]}"
        for pattern in patterns:
            yield from _pattern((*path, pattern), role[pattern], shared)
        for number, other in enumerate(role.get("dependencies", ())):
            if other not in names or other == role["name"]:
                yield (*path, "dependencies", number), f"{other!r} is no other role of this group"
        rolling = role.get("rolloutStrategy", {}).get("rollingUpdate")
        if rolling is not None:
            yield from _rolling((*path, "rolloutStrategy", "rollingUpdate"), rolling)


def _pattern(path: Path, pattern: Value, shared: set[str]) -> Iterator[Found]:
    if "template" in pattern and "templateRef" in pattern:
        yield (*path, "templateRef"), "does not go with template"
    named = pattern.get("templateRef", {}).get("name")
    if named is not None and named not in shared:
        yield (*path, "templateRef", "name"), f"{named!r} is not in spec.roleTemplates"
    if pattern.get("size", 1) < 1:
        yield (*path, "size"), f"{pattern['size']} is less than 1"
    delays = pattern.get("restartPolicyConfig", {})
    base, most = delays.get("baseDelaySeconds"), delays.get("maxDelaySeconds")
    if base is not None and most is not None and most < base:
        yield (*path, "restartPolicyConfig", "maxDelaySeconds"), f"{most} is less than baseDelaySeconds {base}"


def repeated_entries(path: Path, key: str, items: Iterable[Value]) -> Iterator[Found]:
    """Find duplicates in a list whose entries Kubernetes distinguishes by `key`."""
    found = [each.get(key) for each in items]
    counts = Counter(found)
    for at, name in enumerate(found):
        if name is not None and counts[name] > 1 and found.index(name) != at:
            yield (*path, at, key), f"{name!r} a second time"


def nothing(_: Value) -> Iterator[Found]:
    return iter(())


RULES: dict[str, Callable[[Value], Iterator[Found]]] = {
    "Service": service,
    "ServiceAccount": nothing,
    "Role": nothing,
    "RoleBinding": binding,
    "Deployment": deployment,
    "LeaderWorkerSet": leader_worker_set,
    "DisaggregatedSet": disaggregated_set,
    "RoleBasedGroup": role_based_group,
}
