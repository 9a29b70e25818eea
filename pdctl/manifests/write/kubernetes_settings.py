"""A topology's Kubernetes settings as typed values, and the checks that reject invalid ones."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pdctl.engines.kinds import ROUTERS
from pdctl.errors import UsageError
from pdctl.manifests.manifest import pinned
from pdctl.quick_definitions import NamedTuple
from pdctl.topology.checked_values import defaults
from pdctl.topology.schema import KUBERNETES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.topology.model import Topology

SECRET = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|PRIVATE_KEY)$")


class Volume(NamedTuple):
    """A volume with either `claim` or `host_path`."""

    name: str
    mount: str
    claim: str | None
    host_path: str | None
    read_only: bool


class Probing(NamedTuple):
    """`path`: what leaders are probed at; `patience`: seconds that a server may take to load."""

    path: str
    patience: float


class KubernetesSettings(NamedTuple):
    """`node_selector`: by role. `secrets`: variable → (Secret, key). `shm`: bytes. `probing` None: no probes."""

    name: str
    flavour: str
    namespace: str
    image: str
    router_image: str
    router_kind: str
    discovery: str  # urls | pods
    context: str | None
    shm: int
    gpu_resource: str
    rdma: Mapping[str, int]
    host_network: bool
    node_selector: Mapping[str, Mapping[str, str]]
    tolerations: tuple[str, ...]
    scheduler: str | None
    gang: bool
    probing: Probing | None
    pull_secrets: tuple[str, ...]
    secrets: Mapping[str, tuple[str, str]]
    volumes: tuple[Volume, ...]


def settings(topology: Topology, flavour: str | None = None) -> KubernetesSettings:
    """The topology's settings with defaults filled in. Raise UsageError for an image that is missing or not pinned, for
    a secret in plain text, and for contradictory settings."""
    given: dict[str, Any] = {**defaults(KUBERNETES), **topology.targets.kubernetes}
    _name(topology.name)
    kind = topology.router.kind
    image = _image("image", given["image"])
    router_image = _image("router-image", given["router-image"] or image)
    _no_secrets(topology)
    readiness = topology.readiness
    return KubernetesSettings(
        name=topology.name,
        flavour=flavour or given["flavour"],
        namespace=given["namespace"],
        image=image,
        router_image=router_image,
        router_kind=kind,
        discovery=_discovery(given["discovery"], kind),
        context=given["context"],
        shm=given["shm"],
        gpu_resource=given["gpu-resource"],
        rdma=given["rdma-resource"],
        host_network=given["host-network"],
        node_selector={role.name: _selector(topology, given, role.pool) for role in topology.roles},
        tolerations=tuple(given["tolerations"]),
        scheduler=given["scheduler"],
        gang=given["gang"],
        probing=Probing(readiness.path, readiness.timeout) if given["probes"] else None,
        pull_secrets=tuple(given["pull-secrets"]),
        secrets={name: _secret(value) for name, value in given["secrets"].items()},
        volumes=tuple(_volume(name, value) for name, value in given["volumes"].items()),
    )


def _name(name: str) -> None:
    if not name[0].isalpha():
        raise UsageError(f"name: {name} begins with a digit, which names of Services may not", f"--set name=pd-{name}")


def _image(key: str, image: str | None) -> str:
    path = f"targets.kubernetes.{key}"
    if not image:
        example = "lmsysorg/sglang:v0.5.23"
        raise UsageError(f"{path} is not set: pods need an image", f"--set {path}={example}")
    if not pinned(image):
        fix = f"--set {path}={image.removesuffix(':latest')}:v0.5.23, or a digest (@sha256:…)"
        raise UsageError(f"{path}: {image} is not pinned: two pods may run two releases of it", fix)
    return image


def _discovery(asked: str | None, router: str) -> str:
    if asked == "pods" and not ROUTERS[router].watches_pods:
        fix = "--set targets.kubernetes.discovery=urls, or --set router.kind=sglang-router"
        raise UsageError(f"targets.kubernetes.discovery: the {router} router cannot look for pods", fix)
    return asked or ("pods" if ROUTERS[router].watches_pods and not any(ROUTERS[router].pods_doubt) else "urls")


def _selector(topology: Topology, given: Mapping[str, Any], pool: str) -> dict[str, str]:
    """The pool's labels, overridden by the target's node-selector for the pool."""
    return {**topology.pool(pool).labels, **given["node-selector"].get(pool, {})}


def _secret(said: str) -> tuple[str, str]:
    name, _, key = said.partition("/")
    return name, key


def _volume(name: str, given: Mapping[str, Any]) -> Volume:
    claim, path = given["claim"], given["host-path"]
    if (claim is None) == (path is None):
        where = f"targets.kubernetes.volumes.{name}"
        raise UsageError(f"{where} needs one of `claim` and `host-path`", f"--set {where}.claim=CLAIM")
    return Volume(name, given["mount"], claim, path, given["read-only"])


def _no_secrets(topology: Topology) -> None:
    """Raise UsageError for secrets in `env`: everyone who can read the object could read them."""
    places = {
        "engine.env": topology.engine.env,
        "transfer.env": topology.transfer.env,
        "roles.prefill.env": topology.prefill.env,
        "roles.decode.env": topology.decode.env,
    }
    for place, env in places.items():
        for name in env:
            if SECRET.search(name):
                fix = f"remove it there, and --set targets.kubernetes.secrets.{name}=SECRET/KEY"
                raise UsageError(f"{place}.{name} would stand in the manifests for everyone to read", fix)
