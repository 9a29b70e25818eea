"""What Kubernetes manifests and start scripts say about engines and routers, as it stands there, line by line.

Any pod template is read, whatever the kind of object around it: a Deployment, a StatefulSet, a LeaderWorkerSet, a
RoleBasedGroup. A start script is read as one pod: its commands share a host.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


SCRIPT = "script"  # Pod.kind of a start script
COMPOSE = "compose"  # of a service of a compose file; Service.kind of its name
PLAIN = (SCRIPT, COMPOSE)  # without probes, times to end and fields that Kubernetes fills in
PINNED = re.compile(r"@sha256:[0-9a-f]+$|:[\w][\w.-]{0,127}$")


class PlacedWord(NamedTuple):
    """One word of a command line. `line` is 1-based."""

    text: str
    line: int


class SaidSetting(NamedTuple):
    """An environment variable or an annotation. `value` None: taken from a secret, a field or a config map."""

    name: str
    value: str | None
    line: int


class Probe(NamedTuple):
    """`how` is httpGet, tcpSocket, exec or grpc; `target` the path, port or command. Times in seconds."""

    purpose: str  # readiness | liveness | startup
    how: str
    target: str
    failures: int
    timeout: int
    line: int


class Mount(NamedTuple):
    """Storage in a container: a claim's, or a directory of the host; the other of both is ""."""

    name: str
    path: str
    claim: str
    host_path: str
    read_only: bool


class Container(NamedTuple):
    """`argv` is command and args in one, a shell's text taken apart. `shell`: a shell expands its variables.

    env_open: envFrom, or a script's surroundings, may define more than `env` shows. resources: the limits.
    secrets: variables from a key of a Secret, as `secret/key`.
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


class ManifestPod(NamedTuple):
    """One pod template. `part` is leader or worker where an object has both; `size`: pods of one group.

    replicas None: not written, which Kubernetes takes for one. `added`: labels its controller puts on the pods.
    shm: the size of a memory volume, as written. tolerations: by key.
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

    def carries(self, selector: Mapping[str, str]) -> bool:
        """A Service with this selector finds it; one without a selector finds nobody."""
        return bool(selector) and selector.items() <= {**self.added, **self.labels}.items()

    def at(self, line: int) -> str:
        return f"{self.file}:{line or self.line}"


class Exposed(NamedTuple):
    """One port of a Service: `port` is what callers dial, `target` the pods' own: a number, a name, "" for `port`."""

    port: int
    target: str
    line: int


class Service(NamedTuple):
    """`ports` are the pods' own (targetPort where it is a number, else port); `exposed` has both ends of each."""

    name: str
    file: str
    line: int
    kind: str  # ClusterIP | NodePort | LoadBalancer
    headless: bool
    selector: Mapping[str, str]
    ports: tuple[int, ...]
    exposed: tuple[Exposed, ...] = ()


class Manifest(NamedTuple):
    """`others`: the labels of pod templates that start neither an engine nor a router."""

    files: tuple[str, ...]
    pods: tuple[ManifestPod, ...]
    services: tuple[Service, ...]
    others: tuple[Mapping[str, str], ...] = ()


def pinned(image: str) -> bool:
    """Whether the name says which image it is: a tag other than latest, or a digest."""
    return bool(PINNED.search(image)) and not image.endswith(":latest")
