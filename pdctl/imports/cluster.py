"""What manifests say besides the engines, as `targets.kubernetes`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pdctl.engines import numerals
from pdctl.imports.found import ROLES
from pdctl.manifests.manifest import pinned
from pdctl.topology.units import UnitError, parse_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.imports.found import Found, Router
    from pdctl.imports.notes import Notes
    from pdctl.manifests.manifest import ManifestPod, Mount

FLAVOURS = {"LeaderWorkerSet": "lws", "RoleBasedGroup": "rbg", "DisaggregatedSet": "disaggregatedset"}
USUAL = "disaggregatedset"
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
SECRET = re.compile(rf"{NAME.pattern}/[-._a-zA-Z0-9]+")
PLAIN = ("cpu", "memory", "ephemeral-storage")
GPU = "nvidia.com/gpu"


def kubernetes(found: Found, router: Router | None, notes: Notes) -> dict[str, object]:
    pods = [engine.pod for engine in found.engines if engine.pod is not None and engine.part != "worker"]
    made: dict[str, object] = {"flavour": _flavour(pods, notes)}
    if pods and NAME.fullmatch(pods[0].namespace) and pods[0].namespace != "default":
        made["namespace"] = pods[0].namespace
    images = list(dict.fromkeys(engine.image for engine in found.engines if engine.image and "$" not in engine.image))
    if images:
        made["image"] = images[0]
        if not pinned(images[0]):
            place = next(engine.place for engine in found.engines if engine.image == images[0])
            notes.suspect(place, f"image {images[0]} is not pinned: two pods may run two releases of it")
    for other in images[1:]:
        engine = next(each for each in found.engines if each.image == other)
        notes.suspect(engine.place, f"image {other} beside {images[0]}: all engines get the latter")
    if router is not None and router.image and router.image not in images and "$" not in router.image:
        made["router-image"] = router.image
    made |= _pod(pods, notes)
    made |= _storage(found, notes)
    if router is not None and router.flags.has("service-discovery"):
        made["discovery"] = "pods"
    notes.left_out("", "probes, affinities and security settings of the pods: pdctl renders its own")
    return made


def _flavour(pods: Sequence[ManifestPod], notes: Notes) -> str:
    kinds = list(dict.fromkeys(pod.kind for pod in pods))
    known = [FLAVOURS[kind] for kind in kinds if kind in FLAVOURS]
    if known:
        return known[0]
    notes.changed(pods[0].at(0) if pods else "", f"{', '.join(kinds)}: rendered as a {USUAL}")
    return USUAL


def _pod(pods: Sequence[ManifestPod], notes: Notes) -> dict[str, object]:
    made: dict[str, object] = {}
    if any(pod.host_network for pod in pods):
        made["host-network"] = True
    shm = next((pod.shm for pod in pods if pod.shm), "")
    if _is_size(shm):
        made["shm"] = shm
    selectors = {role: dict(pod.node_selector) for role, pod in _by_role(pods).items() if pod.node_selector}
    if selectors:
        some = next(iter(selectors.values()))
        if all(each == some for each in selectors.values()):
            notes.left_out(
                _by_role(pods)[next(iter(selectors))].at(0),
                f"nodeSelector {', '.join(f'{key}={value}' for key, value in some.items())}: "
                "write it under targets.kubernetes.node-selector, by pool",
            )
    tolerations = list(dict.fromkeys(key for pod in pods for key in pod.tolerations if "$" not in key))
    if tolerations:
        made["tolerations"] = tolerations
    devices: dict[str, object] = {}
    for pod in pods:
        for said in (each for container in pod.containers for each in container.resources):
            count = numerals.whole(said.value)
            if "/" in said.name and said.name != GPU and said.name not in PLAIN and count:
                devices[said.name] = count
    if devices:
        made["rdma-resource"] = devices
    return made


def _storage(found: Found, notes: Notes) -> dict[str, object]:
    """Volumes and Secrets of the engines; the first pod's where two call different things by one name."""
    volumes: dict[str, dict[str, object]] = {}
    secrets: dict[str, str] = {}
    for engine in found.engines:
        for container in engine.pod.containers if engine.pod is not None and engine.part != "worker" else ():
            for mount in container.mounts:
                source = {"claim": mount.claim} if mount.claim else {"host-path": mount.host_path}
                told = {"mount": mount.path, **source, "read-only": mount.read_only}
                sound = NAME.fullmatch(mount.name) and mount.path.startswith("/") and not re.search(r"\s", mount.path)
                if not sound or volumes.setdefault(mount.name, told) != told or not _is_source(mount):
                    volumes.pop(mount.name, None)
                    notes.left_out(engine.place, f"volume {mount.name} at {mount.path}")
            secrets |= {said.name: said.value or "" for said in container.secrets if SECRET.fullmatch(said.value or "")}
    made: dict[str, object] = {}
    if volumes:
        made["volumes"] = volumes
    if secrets:
        made["secrets"] = secrets
    return made


def _is_source(mount: Mount) -> bool:
    return bool(NAME.fullmatch(mount.claim)) if mount.claim else bool(re.fullmatch(r"/\S*", mount.host_path))


def _is_size(text: str) -> bool:
    """A topology writes sizes as Kubernetes does, but for those without a B or an i."""
    try:
        return parse_size(text) > 0
    except UnitError:
        return False


def _by_role(pods: Sequence[ManifestPod]) -> dict[str, ManifestPod]:
    return {
        role: pod for role in ROLES for pod in pods for container in pod.containers
        if any(word.text == role for word in container.argv)
    }  # fmt: skip
