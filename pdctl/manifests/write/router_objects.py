"""Services that name the leader of each instance, and the router's Deployment with its rights to discover pods."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines.kinds import ROUTERS
from pdctl.manifests.write.flavours import GRACE, environment, escaped, shared_spec
from pdctl.manifests.write.objects import Object, labels, metadata
from pdctl.program import portable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pdctl.layout.instance_plan import Plan, RouterPlan
    from pdctl.manifests.write.flavours import GroupFlavour, PodGroup
    from pdctl.manifests.write.kubernetes_settings import KubernetesSettings


def leaders(groups: Sequence[PodGroup], settings: KubernetesSettings, flavour: GroupFlavour) -> Iterator[Object]:
    """One Service per instance, under the name that the plan uses as its address. Instances cannot share a Service,
    because only the one that prefilled a room knows it."""
    for group in groups:
        for one in group.instances:
            ports = [("http", group.ports.http), ("bootstrap", group.ports.bootstrap)]
            yield {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": metadata(one.address, settings.namespace, settings.name, group.role),
                "spec": {
                    "clusterIP": "None",
                    # Decodes that wait for KV from a prefill must find it even if it is too busy to be ready.
                    "publishNotReadyAddresses": True,
                    "selector": {**labels(settings.name, group.role), **flavour.instance(one.number)},
                    "ports": [_port(name, number) for name, number in ports if number is not None],
                },
            }


def front(router: RouterPlan, settings: KubernetesSettings) -> Object:
    """The Service that clients use."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(router.address, settings.namespace, settings.name, "router"),
        "spec": {
            "type": "ClusterIP",
            "selector": labels(settings.name, "router"),
            "ports": [_port(purpose, port) for port, purpose in router.ports],
        },
    }


def _port(name: str, number: int) -> Object:
    return {"name": name, "port": number, "targetPort": name, "protocol": "TCP"}


def objects(
    plan: Plan, router: RouterPlan, groups: Sequence[PodGroup], settings: KubernetesSettings, flavour: GroupFlavour
) -> Iterator[Object]:
    name = f"{plan.name}-router"
    if settings.discovery == "pods":
        yield from _rights(name, settings)
    yield front(router, settings)
    yield {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(name, settings.namespace, settings.name, "router"),
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels(settings.name, "router")},
            "template": {
                "metadata": {"labels": labels(settings.name, "router")},
                "spec": _spec(name, router, groups, settings, flavour),
            },
        },
    }


def _spec(
    name: str, router: RouterPlan, groups: Sequence[PodGroup], settings: KubernetesSettings, flavour: GroupFlavour
) -> Object:
    words = _words(router, groups, settings, flavour)
    container: Object = {
        "name": "router",
        "image": settings.router_image,
        "command": list(words[:3]),
        "args": list(words[3:]),
        "env": environment(dict(router.command.env), settings.secrets),
        "ports": [{"name": purpose, "containerPort": port, "protocol": "TCP"} for port, purpose in router.ports],
    }
    if settings.probing is not None:
        kind = settings.router_kind
        container |= {
            "readinessProbe": _probe(ROUTERS[kind].ready, 5, 2),
            "livenessProbe": _probe(ROUTERS[kind].alive, 10, 6),
        }
    container = {key: value for key, value in container.items() if value}
    spec: Object = {"containers": [container], "terminationGracePeriodSeconds": GRACE}
    if settings.discovery == "pods":
        spec["serviceAccountName"] = name
    return {**shared_spec(settings), **spec}


def _probe(path: str, period: int, failures: int) -> Object:
    asked = {"httpGet": {"path": path, "port": "http"}}
    return {**asked, "periodSeconds": period, "timeoutSeconds": 5, "failureThreshold": failures}


def _words(
    router: RouterPlan, groups: Sequence[PodGroup], settings: KubernetesSettings, flavour: GroupFlavour
) -> tuple[str, ...]:
    """The plan's command; if the router discovers pods, without the list of servers."""
    argv = router.command.argv
    words = [*map(escaped, portable(argv))]
    if settings.discovery == "urls":
        return tuple(words)
    kept: list[str] = []
    listed = False
    for word in words:
        listed = word in ("--prefill", "--decode") or (listed and not word.startswith("--"))
        if not listed:
            kept.append(word)
    port = groups[0].ports.http  # the same for both roles: every pod has its own ports
    kept += ["--service-discovery", "--service-discovery-port", str(port)]
    kept += ["--service-discovery-namespace", settings.namespace]
    for group in groups:
        wanted = {**labels(settings.name, group.role), **flavour.leads}
        kept += [f"--{group.role}-selector", *(f"{key}={value}" for key, value in sorted(wanted.items()))]
    return tuple(kept)


def _rights(name: str, settings: KubernetesSettings) -> Iterator[Object]:
    """The right to read pods in its own namespace, and nothing else."""

    def about() -> Object:
        return metadata(name, settings.namespace, settings.name, "router")

    group = "rbac.authorization.k8s.io"
    yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": about()}
    yield {
        "apiVersion": f"{group}/v1",
        "kind": "Role",
        "metadata": about(),
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}],
    }
    yield {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": about(),
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": settings.namespace}],
        "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
    }
