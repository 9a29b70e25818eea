"""The pod of an engine: container, resources, devices, shared memory, probes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.manifests.write.objects import Object
    from pdctl.manifests.write.settings import Probing, Settings

GRACE = 300  # seconds for requests in flight: sglang finishes them after SIGTERM, and sglang-router waits 180
HEALTH = "/health"  # what sglang's nodes other than the first answer too
STARTUP = 10  # seconds between two questions while loading
READINESS = {"periodSeconds": 10, "timeoutSeconds": 20, "failureThreshold": 3}  # sglang's /health may take 20 s
LIVENESS = {"periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6}


class Ports(NamedTuple):
    http: int
    bootstrap: int | None


def engine_spec(
    role: str, words: Sequence[str], env: list[Object], gpus: int, ports: Ports, settings: Settings, leads: bool
) -> Object:
    """`leads`: node 0 of its instance, the only one that serves requests."""
    container: Object = {
        "name": role,
        "image": settings.image,
        "command": list(words[:3]),
        "args": list(words[3:]),
        "env": env,
        "ports": _ports(ports),
        "resources": _resources(gpus, settings),
        "volumeMounts": _mounts(settings),
    }
    if settings.rdma:
        container["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}  # to register memory with the NIC
    if settings.probing is not None:
        container |= probes(settings.probing, leads)
    container = {key: value for key, value in container.items() if value}
    spec: Object = {"containers": [container], "volumes": _volumes(settings), "terminationGracePeriodSeconds": GRACE}
    if settings.node_selector[role]:
        spec["nodeSelector"] = dict(sorted(settings.node_selector[role].items()))
    if settings.host_network:
        spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}  # or names of Services are not found
    return {**shared_spec(settings), **spec}


def shared_spec(settings: Settings) -> Object:
    """What pods of servers and of the router have in common."""
    # Variables that Kubernetes makes of every Service's name could be taken for the engine's own (SGLANG_…, MC_…).
    spec: Object = {"enableServiceLinks": False}
    if settings.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in settings.pull_secrets]
    if settings.tolerations:
        spec["tolerations"] = [{"key": key, "operator": "Exists"} for key in settings.tolerations]
    if settings.scheduler:
        spec["schedulerName"] = settings.scheduler
    return spec


def probes(probing: Probing, leads: bool) -> Object:
    """A server that loads is left alone, one that is busy or waits for its peer only gets no new requests.

    Alive is a server whose port is open: sglang's /health generates, and fails while a peer's death blocks it.
    """
    path = probing.path if leads else HEALTH
    return {
        "startupProbe": {
            **_asked(path),
            "periodSeconds": STARTUP,
            "timeoutSeconds": READINESS["timeoutSeconds"],
            "failureThreshold": max(1, math.ceil(probing.patience / STARTUP)),
        },
        "readinessProbe": {**_asked(path), **READINESS},
        "livenessProbe": {"tcpSocket": {"port": "http"}, **LIVENESS},
    }


def _asked(path: str) -> Object:
    return {"httpGet": {"path": path, "port": "http"}}


def _ports(ports: Ports) -> list[Object]:
    found: list[Object] = [{"name": "http", "containerPort": ports.http, "protocol": "TCP"}]
    if ports.bootstrap is not None:
        found.append({"name": "bootstrap", "containerPort": ports.bootstrap, "protocol": "TCP"})
    return found


def _resources(gpus: int, settings: Settings) -> Object:
    """Devices are asked for as they are limited: Kubernetes wants both alike."""
    devices = {settings.gpu_resource: gpus} if gpus else {}
    counted = {name: str(count) for name, count in sorted({**devices, **settings.rdma}.items())}
    return {"limits": counted, "requests": dict(counted)} if counted else {}


def _mounts(settings: Settings) -> list[Object]:
    found: list[Object] = [{"name": "shm", "mountPath": "/dev/shm"}]
    for volume in settings.volumes:
        mount: Object = {"name": volume.name, "mountPath": volume.mount}
        found.append({**mount, "readOnly": True} if volume.read_only else mount)
    return found


def _volumes(settings: Settings) -> list[Object]:
    found: list[Object] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": quantity(settings.shm)}}]
    for volume in settings.volumes:
        if volume.claim is not None:
            claim: Object = {"claimName": volume.claim, **({"readOnly": True} if volume.read_only else {})}
            found.append({"name": volume.name, "persistentVolumeClaim": claim})
        else:
            found.append({"name": volume.name, "hostPath": {"path": volume.host_path, "type": "Directory"}})
    return found


def quantity(size: int) -> str:
    """Bytes as Kubernetes writes them: `16Gi`."""
    for unit, factor in (("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
        if size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)
