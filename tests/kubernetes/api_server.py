"""An API server for kubectl: discovery, objects checked against the schemas, server-side apply, and pods that a
stand-in for the operators makes of them. No scheduler, no kubelet: a pod is as ready as the test says.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import yaml

from pdctl.manifests.kubernetes_rules import spelt
from pdctl.manifests.kubernetes_validation import faults

Object = dict[str, Any]


class Resource(NamedTuple):
    version: str  # v1, or group/version
    plural: str
    kind: str

    @property
    def root(self) -> str:
        return f"/api/{self.version}" if "/" not in self.version else f"/apis/{self.version}"


BUILT_IN = (
    Resource("v1", "pods", "Pod"),
    Resource("v1", "services", "Service"),
    Resource("v1", "serviceaccounts", "ServiceAccount"),
    Resource("v1", "namespaces", "Namespace"),
    Resource("v1", "events", "Event"),
    Resource("apps/v1", "deployments", "Deployment"),
    Resource("rbac.authorization.k8s.io/v1", "roles", "Role"),
    Resource("rbac.authorization.k8s.io/v1", "rolebindings", "RoleBinding"),
)
CUSTOM = (
    Resource("leaderworkerset.x-k8s.io/v1", "leaderworkersets", "LeaderWorkerSet"),
    Resource("disaggregatedset.x-k8s.io/v1", "disaggregatedsets", "DisaggregatedSet"),
    Resource("workloads.x-k8s.io/v1alpha2", "rolebasedgroups", "RoleBasedGroup"),
)
VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


class Refusal(Exception):
    def __init__(
        self, code: int, reason: str, message: str, causes: list[Object] | None = None, of: Object | None = None
    ) -> None:
        super().__init__(message)
        details: Object = {"causes": causes} if causes else {}
        if of is not None:
            details |= {"kind": of["kind"], "name": of["metadata"]["name"]}
        self.code = code
        self.status = {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
            "reason": reason, "code": code, "details": details,
        }  # fmt: skip


class Cluster:
    """What stands in the store, and how its pods fare. `trouble` turns a pod's name into the reason it waits for."""

    def __init__(self, version: str = "1.32", operators: tuple[Resource, ...] = CUSTOM) -> None:
        self.version = version
        self.resources = (*BUILT_IN, *operators)
        self.objects: dict[tuple[str, str, str], Object] = {}  # (plural, namespace, name)
        self.requests: list[str] = []
        self.logs: dict[str, str] = {}
        self.trouble: dict[str, str] = {}
        self.lock = threading.Lock()
        self._revision = 0
        for name in ("default", "llm"):
            self.add("namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    def add(self, plural: str, value: Object) -> None:
        self._revision += 1
        about = value["metadata"]
        about.setdefault("uid", f"uid-{self._revision}")
        about.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        about["resourceVersion"] = str(self._revision)
        self.objects[plural, about.get("namespace", ""), about["name"]] = value

    def selected(self, plural: str, namespace: str, selector: str) -> list[Object]:
        wanted = dict(each.split("=", 1) for each in selector.split(",") if "=" in each)
        return [
            value
            for (of, inside, _), value in sorted(self.objects.items())
            if of == plural
            and namespace in ("", inside)
            and wanted.items() <= value["metadata"].get("labels", {}).items()
        ]

    def apply(self, resource: Resource, namespace: str, name: str, value: Object, dry: bool) -> tuple[int, Object]:
        """Server-side apply: checked, then stored with what the operators would make of it."""
        if ("namespaces", "", namespace) not in self.objects:
            raise Refusal(404, "NotFound", f'namespaces "{namespace}" not found')
        self._check(resource, namespace, value)
        known = (resource.plural, namespace, name) in self.objects
        if dry:
            return (200 if known else 201), value
        value = copy.deepcopy(value)
        value["metadata"] |= {"namespace": namespace, "name": name}
        self.add(resource.plural, value)
        for pod in pods_of(value):
            self.add("pods", self._running(pod))
        return (200 if known else 201), value

    def _check(self, resource: Resource, namespace: str, value: Object) -> None:
        found = list(faults(value, self.version))
        if value.get("metadata", {}).get("namespace", namespace) != namespace:
            raise Refusal(400, "BadRequest", "the namespace of the object does not match that of the request")
        if found:
            causes = [{"reason": "FieldValueInvalid", "message": said, "field": spelt(path)} for path, said in found]
            told = ", ".join(f"{cause['field']}: Invalid value: {cause['message']}" for cause in causes)
            named = f'{resource.kind} "{value["metadata"].get("name")}"'
            raise Refusal(422, "Invalid", f"{named} is invalid: {told}", causes, value)

    def _running(self, pod: Object) -> Object:
        reason = next((said for part, said in self.trouble.items() if part in pod["metadata"]["name"]), "")
        names = [each["name"] for each in pod["spec"]["containers"]]
        pod["status"] = {"phase": "Running", "podIP": "10.0.0.1", "startTime": "2026-01-01T00:00:00Z"}
        waiting = {"waiting": {"reason": reason, "message": f"told by the test: {reason}"}}
        running = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        if reason == "Unschedulable":
            why = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."
            pod["status"] = {
                "phase": "Pending",
                "conditions": [{"type": "PodScheduled", "status": "False", "reason": reason, "message": why}],
            }
            return pod
        if reason:
            pod["status"]["phase"] = "Pending"
        pod["status"]["containerStatuses"] = [
            {"name": name, "ready": not reason, "restartCount": 0, "image": "", "imageID": "",
             "state": waiting if reason else running}
            for name in names
        ]  # fmt: skip
        pod["status"]["conditions"] = [{"type": "Ready", "status": "False" if reason else "True"}]
        return pod

    def delete(self, plural: str, namespace: str, name: str) -> Object:
        value = self.objects.pop((plural, namespace, name), None)
        if value is None:
            raise Refusal(404, "NotFound", f'{plural} "{name}" not found')
        uid = value["metadata"]["uid"]
        owned = [key for key, each in self.objects.items() if each["metadata"].get("ownerReferences") == [{"uid": uid}]]
        for key in owned:
            del self.objects[key]
        return value


def pods_of(value: Object) -> Iterator[Object]:
    """What lws v0.9.0, rbg v0.8.0-alpha.5 and the Deployment controller would make, by name and label."""
    name, kind, spec = value["metadata"]["name"], value["kind"], value.get("spec", {})
    if kind == "Deployment":
        for number in range(spec.get("replicas", 1)):
            yield _pod(f"{name}-7d4b9c5f6-x{number}", spec["template"], value, {})
    elif kind == "LeaderWorkerSet":
        yield from _groups(name, spec, value)
    elif kind == "DisaggregatedSet":
        for role in spec["roles"]:
            yield from _groups(f"{name}-1a2b3c4d-{role['name']}", role["spec"], value)
    elif kind == "RoleBasedGroup":
        for role in spec["roles"]:
            pattern = role["leaderWorkerPattern"]
            for number in range(role["replicas"]):
                for index in range(pattern["size"]):
                    marks = {"role-instance-index": str(number), "component-index": str(index)}
                    marks = {f"rbg.workloads.x-k8s.io/{key}": said for key, said in marks.items()}
                    yield _pod(f"{name}-{role['name']}-{number}-{index}", pattern["template"], value, marks)


def _groups(name: str, spec: Object, owner: Object) -> Iterator[Object]:
    template = spec["leaderWorkerTemplate"]
    for number in range(spec["replicas"]):
        for index in range(template["size"]):
            marks = {"group-index": str(number), "worker-index": str(index)}
            marks = {f"leaderworkerset.sigs.k8s.io/{key}": said for key, said in marks.items()}
            made = template.get("leaderTemplate") if index == 0 else None
            called = f"{name}-{number}" + (f"-{index}" if index else "")
            yield _pod(called, made or template["workerTemplate"], owner, marks)


def _pod(name: str, template: Object, owner: Object, marks: dict[str, str]) -> Object:
    about = copy.deepcopy(template["metadata"])
    about |= {"name": name, "namespace": owner["metadata"]["namespace"]}
    about["labels"] = {**about.get("labels", {}), **marks}
    about["ownerReferences"] = [{"uid": owner["metadata"].get("uid", "")}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": copy.deepcopy(template["spec"])}


class _Handler(BaseHTTPRequestHandler):
    cluster: Cluster
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """The test asks `Cluster.requests` instead."""

    def _answer(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length)
        with self.cluster.lock:
            self.cluster.requests.append(f"{self.command} {self.path}")
            try:
                code, value = self._route(url.path, query, body)
            except Refusal as refusal:
                code, value = refusal.code, refusal.status
        text = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        self.send_response(code)
        self.send_header("content-type", "text/plain" if isinstance(value, str) else "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _answer

    def _route(self, path: str, query: dict[str, str], body: bytes) -> tuple[int, Object | str]:
        known = self._discovery(path)
        if known is not None:
            return 200, known
        for resource in self.cluster.resources:
            inside = path.removeprefix(resource.root + "/").split("/")
            if not path.startswith(resource.root + "/"):
                continue
            namespace = ""
            if inside[0] == "namespaces" and len(inside) > 2:
                namespace, inside = inside[1], inside[2:]
            if inside[0] == resource.plural:
                return self._object(resource, namespace, inside[1:], query, body)
        raise Refusal(404, "NotFound", "the server could not find the requested resource")

    def _object(
        self, resource: Resource, namespace: str, inside: list[str], query: dict[str, str], body: bytes
    ) -> tuple[int, Object | str]:
        cluster = self.cluster
        if not inside:
            if self.command == "GET":
                items = cluster.selected(resource.plural, namespace, query.get("labelSelector", ""))
                about = {"resourceVersion": "1"}
                return 200, {
                    "apiVersion": resource.version, "kind": f"{resource.kind}List", "metadata": about, "items": items
                }  # fmt: skip
            value = yaml.safe_load(body)
            return cluster.apply(resource, namespace, value["metadata"]["name"], value, "dryRun" in query)
        if inside[1:] == ["log"]:
            return 200, cluster.logs.get(inside[0], "")
        if self.command == "PATCH":
            return cluster.apply(resource, namespace, inside[0], yaml.safe_load(body), "dryRun" in query)
        if self.command == "DELETE":
            return 200, cluster.delete(resource.plural, namespace, inside[0])
        value = cluster.objects.get((resource.plural, namespace, inside[0]))
        if value is None:
            raise Refusal(404, "NotFound", f'{resource.plural} "{inside[0]}" not found')
        return 200, value

    def _discovery(self, path: str) -> Object | None:
        cluster = self.cluster
        versions = sorted({each.version for each in cluster.resources})
        if path == "/version":
            major, minor = cluster.version.split(".")
            return {"major": major, "minor": minor, "gitVersion": f"v{cluster.version}.0", "platform": "linux/amd64"}
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            groups = [_group(version) for version in versions if "/" in version]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        if path == "/openapi/v3":
            roots = {each.root.strip("/") for each in cluster.resources}
            return {"paths": {root: {"serverRelativeURL": f"/openapi/v3/{root}"} for root in sorted(roots)}}
        for version in versions:
            found = [each for each in cluster.resources if each.version == version]
            if path == found[0].root:
                return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version,
                        "resources": [_resource(each) for each in found]}  # fmt: skip
            if path == f"/openapi/v3{found[0].root}":
                return _openapi(found)
        return None


def _group(version: str) -> Object:
    name, _, short = version.partition("/")
    entry = {"groupVersion": version, "version": short}
    return {"name": name, "versions": [entry], "preferredVersion": entry}


def _resource(each: Resource) -> Object:
    namespaced = each.kind != "Namespace"
    return {
        "name": each.plural, "singularName": each.kind.lower(), "namespaced": namespaced, "kind": each.kind,
        "verbs": VERBS,
    }  # fmt: skip


def _openapi(resources: list[Resource]) -> Object:
    """As much as kubectl looks for: that a PATCH takes fieldValidation, and says what is wrong with it itself."""
    paths = {}
    for each in resources:
        group, _, version = each.version.rpartition("/")
        kind = {"group": group, "kind": each.kind, "version": version}
        parameters = [{"name": name, "in": "query"} for name in ("fieldValidation", "dryRun", "fieldManager", "force")]
        paths[f"{each.root}/namespaces/{{namespace}}/{each.plural}/{{name}}"] = {
            "patch": {"parameters": parameters, "x-kubernetes-group-version-kind": kind}
        }
    return {"openapi": "3.0.0", "info": {"title": "test", "version": "1"}, "paths": paths, "components": {}}


@contextmanager
def serving(cluster: Cluster) -> Iterator[str]:
    """Runs until left; the URL to put into a kubeconfig."""
    handler = type("Handler", (_Handler,), {"cluster": cluster})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def kubeconfig(url: str) -> str:
    return yaml.safe_dump(
        {
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": url}}],
            "users": [{"name": "test", "user": {}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "default"}}],
        }
    )  # fmt: skip
