"""What API servers and the operators' admission refuse beyond their schemas: names, references, sums, and CEL rules.

Of Kubernetes 1.37 (pkg/apis/*/validation), lws v0.9.0 (webhooks, x-kubernetes-validations) and rbg v0.8.0-alpha.5.
Every rule may rely on the shape that the schemas have checked.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from pdctl.manifests.validate import pods

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pdctl.manifests.validate.path import Path

Found = tuple["Path", str]
Value = dict[str, Any]

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")  # RFC 1123
SERVICE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # RFC 1035
STATEFULSET = 52  # its name and a hash of eleven characters make a label of every pod
REVISION = 8  # characters of the hash that a DisaggregatedSet puts into the names it makes


def broken(value: Value) -> Iterator[Found]:
    yield from _named(value)
    yield from _labelled(("metadata",), value["metadata"])
    yield from RULES[value["kind"]](value)
    for path, template in templates(value):
        yield from _labelled((*path, "metadata"), template.get("metadata", {}))
        yield from pods.broken(path, template)


def templates(value: Value) -> Iterator[tuple[Path, Value]]:
    """Every pod template of an object, and where it stands."""
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
    """A LeaderWorkerSet's name becomes a Service's."""
    name, kind = value["metadata"]["name"], value["kind"]
    starts_with_letter = kind in ("Service", "LeaderWorkerSet")
    form = SERVICE if starts_with_letter else LABEL
    if not form.fullmatch(name):
        first = ", beginning with a letter" if starts_with_letter else ""
        yield ("metadata", "name"), f"{name!r} is not a name of a-z, 0-9 and -{first}"
    elif len(name) > pods.LONGEST:
        yield ("metadata", "name"), f"{name!r} has {len(name)} characters of at most {pods.LONGEST}"


def _labelled(path: Path, metadata: Value) -> Iterator[Found]:
    for key, value in metadata.get("labels", {}).items():
        yield from pods.label((*path, "labels", key), key, value)
    for key in metadata.get("annotations", {}):
        if not pods.LABEL_KEY.fullmatch(key):
            yield (*path, "annotations", key), f"{key!r} is no key of an annotation"


def service(value: Value) -> Iterator[Found]:
    spec = value["spec"]
    ports = spec.get("ports", [])
    for at, port in enumerate(ports):
        yield from pods.numbered(("spec", "ports", at, "port"), port["port"])
        if len(ports) > 1 and not port.get("name"):
            yield ("spec", "ports", at, "name"), "missing: a Service with several ports names them"
    yield from twice(("spec", "ports"), "name", ports)
    for key, said in spec.get("selector", {}).items():
        yield from pods.label(("spec", "selector", key), key, said)
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
    """The workers of a group are a StatefulSet called after their leader."""
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
    yield from twice(("spec", "roles"), "name", roles)
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
    """v0.9.0 makes NAME-REVISION-ROLE; later releases put the number of a slice between name and revision."""
    longest = max(roles, key=lambda role: len(role["name"]))
    made = f"{name}-0-{'x' * REVISION}-{longest['name']}"
    yield from _long(("metadata", "name"), name, made, longest["spec"])


def role_based_group(value: Value) -> Iterator[Found]:
    spec = value["spec"]
    roles = spec["roles"]
    yield from twice(("spec", "roles"), "name", roles)
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


PATTERNS = ("standalonePattern", "leaderWorkerPattern", "customComponentsPattern")


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


def twice(path: Path, key: str, items: Iterable[Value]) -> Iterator[Found]:
    """Entries of a list that Kubernetes tells apart by `key`."""
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
