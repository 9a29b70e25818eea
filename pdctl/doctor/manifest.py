"""What Kubernetes manifests and start scripts say about engines and routers, as it stands there, line by line.

Any pod template is read, whatever the kind of object around it: a Deployment, a StatefulSet, a LeaderWorkerSet, a
RoleBasedGroup. A start script is read as one pod: its commands share a host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

SCRIPT = "script"  # Pod.kind of a start script


class Word(NamedTuple):
    """One word of a command line. `line` is 1-based."""

    text: str
    line: int


class Said(NamedTuple):
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


class Container(NamedTuple):
    """`argv` is command and args in one, a shell's text taken apart. `shell`: a shell expands its variables.

    env_open: envFrom, or a script's surroundings, may define more than `env` shows.
    """

    name: str
    image: str
    image_line: int
    argv: tuple[Word, ...]
    env: tuple[Said, ...] = ()
    probes: tuple[Probe, ...] = ()
    gpus: int | None = None
    shell: bool = False
    env_open: bool = False


class Pod(NamedTuple):
    """One pod template. `part` is leader or worker where an object has both; `size`: pods of one group.

    replicas None: not written, which Kubernetes takes for one.
    """

    name: str
    kind: str
    file: str
    line: int
    part: str
    replicas: int | None
    size: int | None
    labels: Mapping[str, str]
    annotations: tuple[Said, ...]
    host_network: bool
    dns_policy: str
    grace: int | None
    containers: tuple[Container, ...]

    def at(self, line: int) -> str:
        return f"{self.file}:{line or self.line}"


class Service(NamedTuple):
    """`ports` are the pods' own (targetPort where it is a number, else port)."""

    name: str
    file: str
    line: int
    kind: str  # ClusterIP | NodePort | LoadBalancer
    headless: bool
    selector: Mapping[str, str]
    ports: tuple[int, ...]


class Manifest(NamedTuple):
    files: tuple[str, ...]
    pods: tuple[Pod, ...]
    services: tuple[Service, ...]
