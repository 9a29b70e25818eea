"""What Kubernetes manifests and start scripts say about engines and routers, as written, with line numbers.

Pod templates are read in any kind of object: a Deployment, a StatefulSet, a LeaderWorkerSet, a RoleBasedGroup. A start
script is read as one pod: its commands share a host.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING

from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


SCRIPT = "script"  # ManifestPod.kind of a start script
COMPOSE = "compose"  # ManifestPod.kind of a service in a compose file, and Service.kind of its name
PLAIN = (SCRIPT, COMPOSE)  # kinds without probes, grace periods and fields that Kubernetes fills in
CORE = ("Pod", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob")  # Kubernetes' own kinds
MOST_GPUS = 64  # of one host
UNREAD_FIX = "write the program in front of the flags (python3 -m sglang_router.launch_router …), as the image has it"
PINNED = re.compile(r"@sha256:[0-9a-f]+$|:[\w][\w.-]{0,127}$")


class PlacedWord(NamedTuple):
    """One word of a command line. `line` is 1-based."""

    text: str
    line: int


class SaidSetting(NamedTuple):
    """An environment variable or an annotation. `value` None: it comes from a Secret, a field or a ConfigMap."""

    name: str
    value: str | None
    line: int


class Probe(NamedTuple):
    """A probe. `how`: httpGet, tcpSocket, exec or grpc; `target`: the path, port or command. Times in seconds.

    `host`: where it connects instead of the pod's address, "" if that is not written.
    """

    purpose: str  # readiness | liveness | startup
    how: str
    target: str
    failures: int
    timeout: int
    line: int
    host: str = ""


class Mount(NamedTuple):
    """Storage mounted in a container, from a claim or a directory of the host; the other of the two is ""."""

    name: str
    path: str
    claim: str
    host_path: str
    read_only: bool


class Container(NamedTuple):
    """`argv`: command and args together, with the text of `sh -c` parsed. `shell`: a shell expands its variables.

    `env_open`: envFrom or a script's environment may define more than `env` shows. `resources`: the limits.
    `secrets`: variables set from a key of a Secret, as `secret/key`. `host`: where a script starts it, "" on the
    script's own host, None if that cannot be told. `devices`: the GPUs of its host that it is given, () for all, None
    if that is not written.
    """

    name: str
    image: str
    image_line: int
    argv: tuple[PlacedWord, ...]
    env: tuple[SaidSetting, ...] = ()
    probes: tuple[Probe, ...] = ()
    gpus: int | None = None
    shell: bool = False
    env_open: bool = False
    resources: tuple[SaidSetting, ...] = ()
    secrets: tuple[SaidSetting, ...] = ()
    mounts: tuple[Mount, ...] = ()
    ports: tuple[SaidSetting, ...] = ()  # declared containerPorts: name ("" without one) and number
    host: str | None = ""
    devices: tuple[str, ...] | None = None


class ManifestPod(NamedTuple):
    """One pod template. `part`: leader or worker if an object has both, else ""; `size`: pods per group.

    `replicas` None: not written, which means one to Kubernetes. `added`: labels that its controller puts on the pods.
    `shm`: the size of a memory volume, as written. `tolerations`: their keys. `domain`: of a StatefulSet, the Service
    under which its pods have names; `first`: the ordinal of its first pod.
    """

    name: str
    kind: str
    file: str
    line: int
    part: str
    replicas: int | None
    size: int | None
    labels: Mapping[str, str]
    annotations: tuple[SaidSetting, ...]
    host_network: bool
    dns_policy: str
    grace: int | None
    containers: tuple[Container, ...]
    added: Mapping[str, str] = MappingProxyType({})
    namespace: str = ""
    node_selector: Mapping[str, str] = MappingProxyType({})
    shm: str = ""
    tolerations: tuple[str, ...] = ()
    domain: str = ""
    first: int = 0

    def carries(self, selector: Mapping[str, str]) -> bool:
        """Whether a Service with this selector matches the pod; one without a selector matches none."""
        return bool(selector) and selector.items() <= {**self.added, **self.labels}.items()

    def at(self, line: int) -> str:
        return f"{self.file}:{line or self.line}"


class Exposed(NamedTuple):
    """One port of a Service. `port`: what clients dial; `target`: the pods' own, a number or a name, "" for `port`."""

    port: int
    target: str
    line: int


class Service(NamedTuple):
    """`ports`: the pods' own ports (targetPort if it is a number, else port); `exposed`: both ends of each port.

    `namespace`: "" if it is not written.
    """

    name: str
    file: str
    line: int
    kind: str  # ClusterIP | NodePort | LoadBalancer | ExternalName
    headless: bool
    selector: Mapping[str, str]
    ports: tuple[int, ...]
    exposed: tuple[Exposed, ...] = ()
    namespace: str = ""


class UnreadCommand(NamedTuple):
    """A container of which only the image's entrypoint tells whether it starts an engine or a router."""

    name: str
    place: str  # file:line
    image: str
    flags: str

    def __str__(self) -> str:
        return f"{self.name} has flags alone, for the entrypoint of {self.image or 'its image'}, which is not known"


class Manifest(NamedTuple):
    """`others`: the labels of pod templates that start neither an engine nor a router.

    `host_names`: names of hosts besides those of Services and pods. `joined`: the network is shared with other files.
    """

    files: tuple[str, ...]
    pods: tuple[ManifestPod, ...]
    services: tuple[Service, ...]
    others: tuple[Mapping[str, str], ...] = ()
    unread: tuple[UnreadCommand, ...] = ()
    host_names: frozenset[str] = frozenset()
    joined: bool = False


def pinned(image: str) -> bool:
    """Whether the name identifies one image: it has a tag other than latest, or a digest."""
    return bool(PINNED.search(image)) and not image.endswith(":latest")
