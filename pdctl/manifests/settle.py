"""Objects that only their operator can read, as the plain templates it would make of them.

A RoleBasedGroup (sgl-project/rbg v1alpha1, v1alpha2) puts a role together from a template and patches; a
DynamoGraphDeployment (Dynamo 0.9 to 1.3) writes containers without a pod around them. Line numbers are kept: every
value still stands where it was written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from pdctl.manifests.nodes import get, items, pairs, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NAMED = ("containers", "initContainers", "env", "volumes", "envs")  # lists whose items are told apart by `name`
SOURCES = (  # what templates are put together from
    "template", "templateRef", "templatePatch", "leaderTemplatePatch", "workerTemplatePatch", "patchLeaderTemplate",
    "patchWorkerTemplate",
)  # fmt: skip
MAP, LIST = "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"
DEEPEST = 40
GPU = "nvidia.com/gpu"


def settled(document: Node) -> Node:
    """The object with its roles as an operator would start them; any other object as it is."""
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
    """A role's own template, or the shared one it names with the role's patch over it."""
    own, name = get(node, "template"), text(get(node, "templateRef", "name"))
    if own is None and name is not None:
        own = get(shared.get(name), "template")
    for patch in (get(node, "templateRef", "patch"), get(node, "templatePatch")):
        own = _merged(own, patch)
    return own


def _group(node: Node, whole: Node | None, leader: Node | None, worker: Node | None) -> Node:
    """One template for all its pods, unless a patch changes what one part of them runs."""
    plain = _without(node, *SOURCES)
    if get(leader, "spec", "containers") is None and get(worker, "spec", "containers") is None:
        return _with(plain, {"template": _merged(whole, leader)})
    return _with(plain, {"leaderTemplate": _merged(whole, leader), "workerTemplate": _merged(whole, worker)})


def _graph(spec: Node) -> Node:
    """`services` by name (v1alpha1) and `components` (v1beta1), each with `size` and the graph's own variables."""
    everywhere = [*items(get(spec, "envs")), *items(get(spec, "env"))]
    components = [_component(each, everywhere) for each in items(get(spec, "components"))]
    components += [
        _component(_service(name, service), everywhere)
        for name, service in pairs(get(spec, "services"))
        if isinstance(service, MappingNode)
    ]
    return _with(_without(spec, "services"), {"components": _list(spec, components)})


def _service(name: str, service: Node) -> Node:
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
    return base if patch is None else _over(base, patch, {}, 0)


def _over(base: Node | None, patch: Node, done: dict[tuple[int, int], Node], depth: int) -> Node:
    """A strategic merge, as far as templates need one: maps by key, the NAMED lists by name, all else replaced."""
    if base is None or depth > DEEPEST or not isinstance(base, MappingNode) or not isinstance(patch, MappingNode):
        return patch
    known = done.get((id(base), id(patch)))  # two maps that aliases repeat are merged once
    if known is not None:
        return known
    values = dict(pairs(base))
    for name, value in pairs(patch):
        old = values.get(name)
        if name in NAMED and isinstance(old, SequenceNode) and isinstance(value, SequenceNode):
            values[name] = _list(old, _by_name(items(old), items(value), done, depth))
        else:
            values[name] = _over(old, value, done, depth + 1)
    done[id(base), id(patch)] = found = _map(base, values)
    return found


def _by_name(base: Iterable[Node], patch: Iterable[Node], done: dict[tuple[int, int], Node], depth: int) -> list[Node]:
    found: dict[object, Node] = {text(get(each, "name")) or id(each): each for each in base}
    for each in patch:
        name: object = text(get(each, "name")) or id(each)
        found[name] = _over(found.get(name), each, done, depth + 1)
    return list(found.values())


def _with(node: Node | None, values: Mapping[str, Node | None]) -> Node:
    """A copy of a map with some values set; what is None stays as it was. Anything but a map is left alone."""
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
