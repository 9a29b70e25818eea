"""Pod templates and Services in YAML documents, in any kind of object, including operators' own kinds."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from pdctl.manifests import shell
from pdctl.manifests.command_lines import behind_entrypoint, program
from pdctl.manifests.lenient_yaml import first_line, get, items, labels, line, number, pairs, text
from pdctl.manifests.manifest import Container, Exposed, ManifestPod, Mount, PlacedWord, Probe, SaidSetting, Service

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

DEEPEST = 40


NAMED = ("containers", "initContainers", "env", "volumes", "envs")  # lists whose items are identified by `name`
SOURCES = (  # the fields that templates are composed of
    "template", "templateRef", "templatePatch", "leaderTemplatePatch", "workerTemplatePatch", "patchLeaderTemplate",
    "patchWorkerTemplate",
)  # fmt: skip
MAP, LIST = "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"
GPU = "nvidia.com/gpu"
SHELLS = ("sh", "bash", "dash", "ash", "zsh")
PARTS = {"leaderTemplate": "leader", "workerTemplate": "worker"}
PROBES = ("readiness", "liveness", "startup")
# Labels that controllers put on the pods they create; {0} is the object's name, {1} the name of the role in it.
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
GROUPS = ("LeaderWorkerSet", "DisaggregatedSet")  # kinds whose pods have an index; the leader's is 0
INDEX = "leaderworkerset.sigs.k8s.io/worker-index"


def expand_roles(document: Node) -> Node:
    """The object with its roles expanded as its operator would start them; any other object unchanged."""
    kind = text(get(document, "kind"))
    spec = get(document, "spec")
    if kind == "RoleBasedGroup" and isinstance(spec, MappingNode):
        shared = {text(get(each, "name")) or "": each for each in items(get(spec, "roleTemplates"))}
        roles = [_role(each, shared) for each in items(get(spec, "roles"))]
        return _with(document, {"spec": _with(_without(spec, "roleTemplates"), {"roles": _list(spec, roles)})})
    if kind == "DynamoGraphDeployment" and isinstance(spec, MappingNode):
        return _with(document, {"spec": _graph(spec)})
    return document


def _role(role: Node, shared: dict[str, Node]) -> Node:
    for pattern in ("standalonePattern", "leaderWorkerPattern"):  # v1alpha2
        inner = get(role, pattern)
        if isinstance(inner, MappingNode):
            whole = _template(inner, shared)
            patches = (get(inner, "leaderTemplatePatch"), get(inner, "workerTemplatePatch"))
            return _with(role, {pattern: _group(inner, whole, *patches)})
    group = get(role, "leaderWorkerSet")  # v1alpha1
    whole = _template(role, shared)
    if not isinstance(group, MappingNode):
        return _with(_without(role, *SOURCES), {"template": whole})
    patches = (get(group, "patchLeaderTemplate"), get(group, "patchWorkerTemplate"))
    return _with(_without(role, *SOURCES), {"leaderWorkerSet": _group(group, whole, *patches)})


def _template(node: Node, shared: dict[str, Node]) -> Node | None:
    """A role's own template, or the shared one it refers to, with the role's patches applied."""
    own, name = get(node, "template"), text(get(node, "templateRef", "name"))
    if own is None and name is not None:
        own = get(shared.get(name), "template")
    for patch in (get(node, "templateRef", "patch"), get(node, "templatePatch")):
        own = _merged(own, patch)
    return own


def _group(node: Node, whole: Node | None, leader: Node | None, worker: Node | None) -> Node:
    """A group with one template for all its pods, or with two if a patch changes what its leader or workers run."""
    plain = _without(node, *SOURCES)
    if get(leader, "spec", "containers") is None and get(worker, "spec", "containers") is None:
        return _with(plain, {"template": _merged(whole, leader)})
    return _with(plain, {"leaderTemplate": _merged(whole, leader), "workerTemplate": _merged(whole, worker)})


def _graph(spec: Node) -> Node:
    """The graph with `services` (v1alpha1) as `components` (v1beta1), each with `size` and the graph's variables."""
    everywhere = [*items(get(spec, "envs")), *items(get(spec, "env"))]
    components = [_component(each, everywhere) for each in items(get(spec, "components"))]
    components += [
        _component(_settled_service(name, service), everywhere)
        for name, service in pairs(get(spec, "services"))
        if isinstance(service, MappingNode)
    ]
    return _with(_without(spec, "services"), {"components": _list(spec, components)})


def _settled_service(name: str, service: Node) -> Node:
    main = get(service, "extraPodSpec", "mainContainer")
    container: Node = main if isinstance(main, MappingNode) else _map(service, {})
    gpus = get(service, "resources", "limits", "gpu") or get(service, "resources", "requests", "gpu")
    if gpus is not None and get(container, "resources") is None:
        container = _with(container, {"resources": _map(gpus, {"limits": _map(gpus, {GPU: gpus})})})
    env = [*items(get(service, "envs")), *items(get(container, "env"))]
    container = _with(container, {"env": _list(container, env), "envFrom": get(service, "envFromSecret")})
    extra = get(service, "extraPodSpec")
    pod = _with(
        _without(extra, "mainContainer") if isinstance(extra, MappingNode) else _map(service, {}),
        {"containers": _list(container, [container])},
    )
    plain = _without(service, "extraPodSpec", "resources", "envs", "envFromSecret")
    return _with(plain, {"name": _scalar(service, name), "template": _map(pod, {"spec": pod})})


def _component(node: Node, everywhere: list[Node]) -> Node:
    found = _with(node, {"size": get(node, "multinode", "nodeCount")})
    for key in ("podTemplate", "template"):
        inner = get(found, key, "spec")
        held = items(get(inner, "containers"))
        if everywhere and isinstance(inner, MappingNode) and held:
            filled = [_with(each, {"env": _list(each, [*everywhere, *items(get(each, "env"))])}) for each in held]
            spec = _with(inner, {"containers": _list(inner, filled)})
            return _with(found, {key: _with(get(found, key), {"spec": spec})})
    return found


def _merged(base: Node | None, patch: Node | None) -> Node | None:
    return base if patch is None else _merge_patch(base, patch, {}, 0)


def _merge_patch(base: Node | None, patch: Node, done: dict[tuple[int, int], Node], depth: int) -> Node:
    """A strategic merge as far as templates need it: maps by key, the NAMED lists by name; all else is replaced."""
    if base is None or depth > DEEPEST or not isinstance(base, MappingNode) or not isinstance(patch, MappingNode):
        return patch
    known = done.get((id(base), id(patch)))  # a pair of maps that aliases repeat is merged once
    if known is not None:
        return known
    values = dict(pairs(base))
    for name, value in pairs(patch):
        old = values.get(name)
        if name in NAMED and isinstance(old, SequenceNode) and isinstance(value, SequenceNode):
            values[name] = _list(old, _by_name(items(old), items(value), done, depth))
        else:
            values[name] = _merge_patch(old, value, done, depth + 1)
    done[id(base), id(patch)] = found = _map(base, values)
    return found


def _by_name(base: Iterable[Node], patch: Iterable[Node], done: dict[tuple[int, int], Node], depth: int) -> list[Node]:
    found: dict[object, Node] = {text(get(each, "name")) or id(each): each for each in base}
    for each in patch:
        name: object = text(get(each, "name")) or id(each)
        found[name] = _merge_patch(found.get(name), each, done, depth + 1)
    return list(found.values())


def _with(node: Node | None, values: Mapping[str, Node | None]) -> Node:
    """A copy of a map with some values set, except those that are None. Any other node is returned unchanged."""
    assert node is not None
    if not isinstance(node, MappingNode):
        return node
    return _map(node, dict(pairs(node)) | {name: value for name, value in values.items() if value is not None})


def _without(node: Node, *names: str) -> Node:
    if not isinstance(node, MappingNode):
        return node
    return _map(node, {name: value for name, value in pairs(node) if name not in names})


def _map(place: Node, values: Mapping[str, Node]) -> MappingNode:
    keys = [(_scalar(value, name), value) for name, value in values.items()]
    return MappingNode(MAP, keys, place.start_mark, place.end_mark)


def _list(place: Node, values: list[Node]) -> SequenceNode:
    return SequenceNode(LIST, values, place.start_mark, place.end_mark)


def _scalar(place: Node, value: str) -> ScalarNode:
    return ScalarNode("tag:yaml.org,2002:str", value, place.start_mark, place.end_mark)


def pods(document: Node, file: str) -> Iterator[ManifestPod]:
    """Every template, whatever its containers start."""
    yield from _walk(expand_roles(document), (), file, set())


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
        namespace=text(get(node, "metadata", "namespace")) or "",
    )


def host_names(document: Node) -> Iterator[str]:
    """The names in `hostAliases`, of any pod template."""
    pending = [(document, 0)]
    seen: set[int] = set()
    while pending:
        node, depth = pending.pop()
        if id(node) in seen or depth > DEEPEST:
            continue
        seen.add(id(node))
        for alias in items(get(node, "hostAliases")):
            yield from filter(None, map(text, items(get(alias, "hostnames"))))
        pending += [(value, depth + 1) for _, value in pairs(node)] + [(value, depth + 1) for value in items(node)]


Step = tuple[str, Node]  # (key that leads to a child, or "" in a list; the node that holds the child)


def _walk(node: Node, above: tuple[Step, ...], file: str, seen: set[int]) -> Iterator[ManifestPod]:
    """Find pods below `node`. `seen`: a template shared through anchors counts once, and an alias bomb ends here."""
    if id(node) in seen or len(above) > DEEPEST:
        return
    seen.add(id(node))
    if items(get(node, "containers")):
        yield _pod(node, above, file)
        return
    for key, value in pairs(node):
        yield from _walk(value, (*above, (key, node)), file, seen)
    for value in items(node):
        yield from _walk(value, (*above, ("", node)), file, seen)


def _pod(spec: Node, above: tuple[Step, ...], file: str) -> ManifestPod:
    holders = [node for _, node in reversed(above)]
    template = holders[0] if holders and above[-1][0] == "spec" else None
    thing = next((node for node in holders if get(node, "kind") and get(node, "metadata")), None)
    # Without a leaderTemplate, the workerTemplate applies to all pods.
    part = next((PARTS[key] for key, node in reversed(above) if key in PARTS and get(node, "leaderTemplate")), "")
    grace = get(spec, "terminationGracePeriodSeconds")
    kind, name = text(get(thing, "kind")) or "Pod", _name(thing, above, part)
    return ManifestPod(
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
        domain=text(get(thing, "spec", "serviceName")) or "",
        first=number(get(thing, "spec", "ordinals", "start")) or 0,
    )


def _added(kind: str, name: str, part: str) -> dict[str, str]:
    group, _, role = name.partition("/")
    found = {label: value.format(group, role) for label, value in ADDED.get(kind, {}).items()}
    return found | {INDEX: "0"} if kind in GROUPS and part != "worker" else found


def _replicas(holders: list[Node]) -> int | None:
    """The replicas of the role, multiplied by the slices of a DisaggregatedSet."""
    replicas, slices = _nearest(holders, "replicas"), _nearest(holders, "slices")
    return replicas if slices is None else slices * (1 if replicas is None else replicas)


def _shm(spec: Node) -> str:
    """The size limit of the first memory volume, which is /dev/shm in every manifest that has one; "" if none."""
    volumes = (get(each, "emptyDir") for each in items(get(spec, "volumes")))
    return next((text(get(each, "sizeLimit")) or "" for each in volumes if text(get(each, "medium")) == "Memory"), "")


def _name(thing: Node | None, above: tuple[Step, ...], part: str) -> str:
    """The object's name, the names of list items on the path (the roles of a group), and the part, joined by "/"."""
    name = text(get(thing, "metadata", "name")) or "pod"
    inner = [
        said
        for (key, _), (_, node) in pairwise(above)
        if key == "" and (said := text(get(node, "name"))) and node is not thing
    ]
    return "/".join((name, *inner, *([part] if part else [])))


def _nearest(holders: list[Node], key: str) -> int | None:
    return next((found for node in holders if (found := number(get(node, key))) is not None), None)


def _said(node: Node | None) -> tuple[SaidSetting, ...]:
    return tuple(SaidSetting(name, text(value), line(value)) for name, value in pairs(node))


def _container(node: Node, pod: Node) -> Container:
    env = tuple(
        SaidSetting(name, text(get(each, "value")), line(get(each, "value")) or line(each))
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
            SaidSetting(text(get(each, "name")) or "", text(get(each, "containerPort")), line(each))
            for each in items(get(node, "ports"))
        ),
    )


def _secrets(node: Node) -> Iterator[SaidSetting]:
    for each in items(get(node, "env")):
        name, key = text(get(each, "name")), get(each, "valueFrom", "secretKeyRef")
        if name and key is not None:
            yield SaidSetting(name, f"{text(get(key, 'name')) or ''}/{text(get(key, 'key')) or ''}", line(each))


def _mounts(node: Node, pod: Node) -> Iterator[Mount]:
    """The mounts of claims and host directories. Memory and configuration volumes do not count as storage."""
    volumes = {text(get(each, "name")) or "": each for each in items(get(pod, "volumes"))}
    for each in items(get(node, "volumeMounts")):
        name, path = text(get(each, "name")) or "", text(get(each, "mountPath")) or ""
        volume = volumes.get(name)
        claim = text(get(volume, "persistentVolumeClaim", "claimName")) or ""
        host = text(get(volume, "hostPath", "path")) or ""
        if path and (claim or host):
            yield Mount(name, path, claim, host, text(get(each, "readOnly")) == "true")


def _argv(node: Node, known: Mapping[str, str]) -> tuple[tuple[PlacedWord, ...], bool, tuple[SaidSetting, ...]]:
    """The command line of the engine or router, whether a shell expands it, and the variables that shell exports."""
    said = [each for key in ("command", "args") for each in _listed(get(node, key))]
    words = tuple(PlacedWord(text(each) or "", line(each)) for each in said)
    lines = [first_line(each) for each in said]
    image = get(node, "image")
    argv, in_shell, own = shelled(words, lines, known)
    return behind_entrypoint(argv, text(image) or "", line(image)), in_shell, own


def shelled(
    words: tuple[PlacedWord, ...], lines: Sequence[int], known: Mapping[str, str]
) -> tuple[tuple[PlacedWord, ...], bool, tuple[SaidSetting, ...]]:
    """`sh -c TEXT` replaced by what TEXT starts. `lines`: where each word's text begins; `known`: its environment."""
    name = words[0].text.rpartition("/")[2] if words else ""
    at = next((n for n, word in enumerate(words[1:], 1) if word.text.startswith("-") and word.text.endswith("c")), 0)
    if name in SHELLS and at and len(words) > at + 1:
        for command in shell.commands(words[at + 1].text, lines[at + 1], known):
            if program(command.words):
                return command.words, True, command.env
    return words, name in SHELLS, ()


def _listed(node: Node | None) -> tuple[Node, ...]:
    """The items of a list; a scalar such as `command: sleep`, invalid in Kubernetes but common, counts as one item."""
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
            yield Probe(purpose, how, target, failures or 3, timeout or 1, line(probe), text(get(inner, "host")) or "")
