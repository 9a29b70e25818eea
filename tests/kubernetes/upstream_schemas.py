"""Write pdctl/manifests/schemas from upstream: the built-in kinds from PyPI's kubernetes-validate, the rest from CRDs.

    pip install kubernetes-validate==1.37.0
    python -m tests.kubernetes.upstream_schemas lws.yaml disaggregatedset.yaml rolebasedgroup.yaml

What is kept is what manifests of pdctl can hold; words (descriptions), defaults and status go. A pod template inside a
CRD is pruned to a reference: the built-in kinds say what a pod is, for each Kubernetes version.
"""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

SCHEMAS = Path(__file__).resolve().parents[2] / "pdctl" / "manifests" / "schemas"
VERSIONS = tuple(f"1.{minor}" for minor in range(27, 38))
ROOTS = (
    "core.v1.Service", "core.v1.ServiceAccount", "core.v1.PodTemplateSpec", "core.v1.PersistentVolumeClaim",
    "apps.v1.Deployment", "rbac.v1.Role", "rbac.v1.RoleBinding",
)  # fmt: skip
API = "io.k8s.api."
QUANTITY = {
    "type": ["string", "number"],
    "pattern": r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+|[numkMGTPE]|[KMGTPE]i)?$",
}
INLINE = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": QUANTITY,
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": ["string", "integer"]},
    "io.k8s.apimachinery.pkg.apis.meta.v1.Time": {"type": "string"},
    "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime": {"type": "string"},
}
KEPT = (
    "type", "required", "enum", "minimum", "maximum", "minItems", "maxItems", "minLength", "maxLength", "pattern",
    "additionalProperties",
)  # fmt: skip
PODS = ("template", "leaderTemplate", "workerTemplate")
CRDS = {
    "LeaderWorkerSet": ("leaderworkerset-v1.json", "v1", "kubernetes-sigs/lws v0.9.0"),
    "DisaggregatedSet": ("disaggregatedset-v1.json", "v1", "kubernetes-sigs/lws v0.9.0"),
    "RoleBasedGroup": ("rolebasedgroup-v1alpha2.json", "v1alpha2", "sgl-project/rbg v0.8.0-alpha.5"),
}


def built_in(directory: Path) -> dict[str, Any]:
    """Every definition the roots reach, each with the versions from which it reads as it does; null: not there."""
    found: dict[str, list[tuple[str, Any]]] = {}
    for version in VERSIONS:
        file = directory / f"v{version}.0-local-strict" / "_definitions.json"
        definitions = json.loads(file.read_text(encoding="utf-8"))["$defs"]
        reached = _reached(definitions)
        for name in found.keys() | reached.keys():
            schema, spans = reached.get(name), found.setdefault(name, [])
            if not spans and version != VERSIONS[0]:
                spans.append((VERSIONS[0], None))
            if not spans or spans[-1][1] != schema:
                spans.append((version, schema))
    return {name: found[name] for name in sorted(found)}


def _reached(definitions: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    wanted = [API + root for root in ROOTS]
    origin: dict[str, str] = {}
    while wanted:
        full = wanted.pop()
        name = full.rpartition(".")[2]
        if origin.setdefault(name, full) != full:
            raise SystemExit(f"two definitions are called {name}: {origin[name]} and {full}")
        if name not in found:
            found[name] = _pruned(definitions[full], wanted)
    return found


def _pruned(schema: dict[str, Any], wanted: list[str]) -> dict[str, Any]:
    """What a JSON schema says, without words; the names it refers to join `wanted`."""
    if "$ref" in schema:
        full = schema["$ref"].rpartition("/")[2]
        if full in INLINE:
            return INLINE[full]
        wanted.append(full)
        return {"$ref": f"#/$defs/{full.rpartition('.')[2]}"}
    kept = {key: _typed(key, schema[key]) for key in KEPT if key in schema}
    if isinstance(kept.get("additionalProperties"), dict):
        kept["additionalProperties"] = _pruned(kept["additionalProperties"], wanted)
    if "items" in schema:
        kept["items"] = _pruned(schema["items"], wanted)
    if "properties" in schema:
        kept["properties"] = {
            key: _pruned(value, wanted) for key, value in sorted(schema["properties"].items()) if key != "status"
        }
    return kept


def _typed(key: str, value: Any) -> Any:
    """Null counts as left out, and pdctl writes none."""
    if key != "type" or isinstance(value, str):
        return value
    plain = [each for each in value if each != "null"]
    return plain[0] if len(plain) == 1 else plain


def custom(document: dict[str, Any], version: str) -> dict[str, Any]:
    """The JSON schema of one version of a CRD."""
    spec = document["spec"]
    chosen = next(each for each in spec["versions"] if each["name"] == version)
    schema = _structural(chosen["schema"]["openAPIV3Schema"], "")
    properties = {key: value for key, value in schema["properties"].items() if key != "status"}
    properties["metadata"] = {"$ref": "#/$defs/ObjectMeta"}
    properties["apiVersion"]["enum"] = [f"{spec['group']}/{version}"]
    properties["kind"]["enum"] = [spec["names"]["kind"]]
    return {**schema, "properties": properties, "required": ["apiVersion", "kind", "metadata", "spec"]}


def _structural(schema: dict[str, Any], key: str) -> dict[str, Any]:
    """An object that lists its properties has no others, except where the CRD lets anything through."""
    if key in PODS and "spec" in schema.get("properties", {}):
        return {"$ref": "#/$defs/PodTemplateSpec"}
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["string", "integer"]}
    kept = {each: schema[each] for each in KEPT if each in schema}
    if isinstance(kept.get("additionalProperties"), dict):
        kept["additionalProperties"] = _structural(kept["additionalProperties"], "")
    if "items" in schema:
        kept["items"] = _items(key, schema["items"])
    if "properties" in schema:
        kept["properties"] = {name: _structural(value, name) for name, value in sorted(schema["properties"].items())}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            kept["additionalProperties"] = False
    return kept


def _items(key: str, schema: dict[str, Any]) -> dict[str, Any]:
    shared = {"containers": "Container", "servicePorts": "ServicePort", "volumeClaimTemplates": "PersistentVolumeClaim"}
    return {"$ref": f"#/$defs/{shared[key]}"} if key in shared else _structural(schema, "")


def _lines(values: dict[str, Any]) -> str:
    """One line each, so that a change of a version shows as a change of a line."""
    rows = [f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in values.items()]
    return "{\n" + ",\n".join(rows) + "\n}\n"


def main(files: list[str]) -> None:
    package = find_spec("kubernetes_validate")
    if package is None or package.origin is None:
        raise SystemExit("kubernetes-validate is not installed: pip install kubernetes-validate==1.37.0")
    directory = Path(package.origin).parent / "kubernetes-json-schema"
    SCHEMAS.joinpath("core.json").write_text(_lines(built_in(directory)), encoding="utf-8")
    for file in files:
        document = yaml.load(Path(file).read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        name, version, source = CRDS[document["spec"]["names"]["kind"]]
        schema = {"source": source, **custom(document, version)}
        SCHEMAS.joinpath(name).write_text(_lines(schema), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
