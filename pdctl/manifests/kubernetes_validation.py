"""Check whether a Kubernetes cluster would accept an object: by its schemas, those of the CRDs, and further rules.

A null counts as a value here, whereas a cluster treats it as an absent field.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from jsonschema import Draft202012Validator

from pdctl.errors import UsageError
from pdctl.manifests import kubernetes_rules
from pdctl.manifests.kubernetes_rules import spelt
from pdctl.package_data import data
from pdctl.quick_definitions import NamedTuple
from pdctl.suggestions import similar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jsonschema import ValidationError

    from pdctl.manifests.kubernetes_rules import Path
    from pdctl.manifests.write.objects import Object


SCHEMAS = data("manifests/schemas")
VERSIONS = tuple(f"1.{minor}" for minor in range(27, 38))
CORE = {
    ("v1", "Service"): "Service",
    ("v1", "ServiceAccount"): "ServiceAccount",
    ("apps/v1", "Deployment"): "Deployment",
    ("rbac.authorization.k8s.io/v1", "Role"): "Role",
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): "RoleBinding",
}
CUSTOM = {
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): "leaderworkerset-v1.json",
    ("disaggregatedset.x-k8s.io/v1", "DisaggregatedSet"): "disaggregatedset-v1.json",
    ("workloads.x-k8s.io/v1alpha2", "RoleBasedGroup"): "rolebasedgroup-v1alpha2.json",
}
KINDS = {**CORE, **CUSTOM}
WORDS = {
    "integer": "an integer", "string": "a string", "object": "a map", "array": "a list", "boolean": "true or false",
    "number": "a number",
}  # fmt: skip


class ObjectFault(NamedTuple):
    """`path`: from the object's root, for example `spec.leaderWorkerTemplate.size`. `versions`: the Kubernetes versions
    with this fault; () if it occurs in all that were checked."""

    where: str
    path: str
    message: str
    versions: tuple[str, ...] = ()

    def __str__(self) -> str:
        only = f" (Kubernetes {_span(self.versions)})" if self.versions else ""
        return f"{self.where}: {self.path}: {self.message}{only}"


def validate(objects: Sequence[Object], versions: Sequence[str] = VERSIONS) -> tuple[ObjectFault, ...]:
    """Everything that is wrong with the objects, for each of the Kubernetes `versions` (`1.30`)."""
    return tuple(fault for each in objects for fault in _faults(each, versions))


def check_objects(objects: Sequence[Object], versions: Sequence[str] = VERSIONS) -> None:
    """Raise UsageError with every fault of the objects, if there is any."""
    found = validate(objects, versions)
    if found:
        raise UsageError("a cluster would refuse this:\n" + "\n".join(f"  {fault}" for fault in found))


def schema_version(version: str) -> str:
    """The schemas' name of a version: `v1.30.4` is 1.30. Raise UsageError if there is no schema for it."""
    short = ".".join(version.removeprefix("v").split(".")[:2])
    if short not in VERSIONS:
        raise UsageError(
            f"no schemas of Kubernetes {version}",
            f"--kubernetes-version {VERSIONS[-1]}: {VERSIONS[0]} to {VERSIONS[-1]}",
        )
    return short


def _faults(value: Object, versions: Sequence[str]) -> list[ObjectFault]:
    """The faults of one object. The further rules are checked only if the object matches its schema."""
    about = value.get("metadata")
    name = about.get("name", "") if isinstance(about, dict) else ""
    where = f"{value.get('kind', 'an object without a kind')} {name}".strip()
    by_fault: dict[tuple[str, str], list[str]] = {}
    for version in versions:
        for path, message in faults(value, version):
            by_fault.setdefault((spelt(path), message), []).append(version)
    if not by_fault:
        return [ObjectFault(where, spelt(path), message) for path, message in kubernetes_rules.broken(value)]
    every = len(versions)
    return [
        ObjectFault(where, path, message, () if len(found) == every else tuple(found))
        for (path, message), found in by_fault.items()
    ]


def _span(versions: tuple[str, ...]) -> str:
    return versions[0] if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"


def faults(value: dict[str, Any], version: str) -> Iterator[tuple[Path, str]]:
    """Where and why the object does not match the schema of Kubernetes `version` (`1.30`)."""
    kind = (str(value.get("apiVersion")), str(value.get("kind")))
    if kind not in KINDS:
        yield from _unknown(*kind)
        return
    for error in _validator(kind, version).iter_errors(value):
        yield from _lines_of_error(error)


def _unknown(api: str, kind: str) -> Iterator[tuple[Path, str]]:
    apis = [version for version, of in KINDS if of == kind]
    if apis:
        yield ("apiVersion",), f"'{api}' has no {kind}: {' or '.join(apis)}"
    else:
        yield ("kind",), f"no schema for {kind} of {api}; known are {', '.join(of for _, of in KINDS)}"


def _lines_of_error(error: ValidationError) -> Iterator[tuple[Path, str]]:
    """One line for each thing to fix: every unknown or missing field has a path of its own."""
    path: Path = tuple(error.absolute_path)
    value, wanted = error.instance, error.validator_value
    if error.validator == "additionalProperties":
        fields = error.schema.get("properties", {})
        for name in sorted(set(value) - set(fields)):
            near = similar(name, fields)
            yield (*path, name), "no such field" + (f": did you mean `{near[0]}`?" if near else "")
    elif error.validator == "required":
        for name in wanted:
            if name not in value:
                yield (*path, name), "missing"
    elif error.validator == "type":
        names = wanted if isinstance(wanted, list) else [wanted]
        yield path, f"{value!r} is not {' or '.join(WORDS[name] for name in names)}"
    elif error.validator == "enum":
        yield path, f"{value!r} is not one of {', '.join(map(repr, wanted))}"
    else:
        yield path, _bound(error)


def _bound(error: ValidationError) -> str:
    said = {
        "minimum": "{value} is less than {wanted}",
        "maximum": "{value} is more than {wanted}",
        "minItems": "{count} of at least {wanted}",
        "maxItems": "{count} of at most {wanted}",
        "minLength": "{value!r} is shorter than {wanted}",
        "maxLength": "{value!r} is longer than {wanted}",
        "pattern": "{value!r} does not match {wanted}",
    }
    count = len(error.instance) if isinstance(error.instance, (list, str)) else 0
    form = said.get(str(error.validator))
    return (
        str(error.message)
        if form is None
        else form.format(value=error.instance, wanted=error.validator_value, count=count)
    )


@cache
def _validator(kind: tuple[str, str], version: str) -> Draft202012Validator:
    """A validator with all definitions in one schema, which jsonschema before 4.18 (pure Python) can resolve too."""
    if kind in CORE:
        schema: dict[str, Any] = {"$ref": f"#/$defs/{CORE[kind]}"}
    else:
        schema = json.loads((SCHEMAS / CUSTOM[kind]).read_text(encoding="utf-8"))
        schema.pop("source")
    return Draft202012Validator({**schema, **_required(kind), "$defs": _definitions(version)})


def _required(kind: tuple[str, str]) -> dict[str, Any]:
    """A schema that requires a name: without one, only `kubectl create` with generateName can create the object."""
    named = {"type": "object", "required": ["name"]}
    return {"allOf": [{"required": ["metadata"], "properties": {"metadata": named}}]} if kind in KINDS else {}


@cache
def _definitions(version: str) -> dict[str, Any]:
    """The definitions of that version: for each, the last span that begins no later."""
    at = VERSIONS.index(version)
    found: dict[str, Any] = {}
    for name, spans in _spans().items():
        schema = [each for since, each in spans if VERSIONS.index(since) <= at]
        if schema and schema[-1] is not None:
            found[name] = schema[-1]
    return found


@cache
def _spans() -> dict[str, list[tuple[str, Any]]]:
    loaded: dict[str, list[tuple[str, Any]]] = json.loads((SCHEMAS / "core.json").read_text(encoding="utf-8"))
    return loaded
