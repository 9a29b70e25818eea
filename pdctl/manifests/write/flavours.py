"""The pods of an instance, and the kinds of object that create groups of them: how each is written, and how its pods
are told apart."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

from pdctl.engines.kinds import EMBEDDED
from pdctl.errors import UsageError
from pdctl.manifests.write.objects import BOOTSTRAP_PORT, Object, labels, metadata
from pdctl.program import portable
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pdctl.layout.instance_plan import InstancePlan, Plan
    from pdctl.layout.serving import NodeCommand
    from pdctl.manifests.write.kubernetes_settings import KubernetesSettings, Probing
    from pdctl.manifests.write.objects import Object


HOST_IP = "SGLANG_HOST_IP"  # sglang 0.5.3 to 0.5.23, and the embedded engine
GRACE = 300  # seconds for requests in flight: sglang finishes them after SIGTERM, and sglang-router waits for 180 s
HEALTH = "/health"  # also answered by sglang's nodes other than the first
STARTUP = 10  # seconds between two probes while loading
READINESS = {"periodSeconds": 10, "timeoutSeconds": 20, "failureThreshold": 3}  # sglang's /health may take 20 s
LIVENESS = {"periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6}


class PodVariables(NamedTuple):
    """The operator's names of the variables with the leader's address and a pod's index in its group."""

    leader: str
    rank: str


def template_words(instances: Sequence[InstancePlan], variables: PodVariables) -> tuple[str, ...]:
    """The command line of every pod of the role.

    Raise UsageError if the plan's commands differ in more than a node's index: one template cannot express that.
    """
    found = {
        tuple(_words(command, one, variables)): f"{one.name} node {command.node}"
        for one in instances
        for command in one.commands
    }
    if len(found) > 1:
        (first, one), (second, other) = list(found.items())[:2]
        differing = sorted(set(first) ^ set(second))
        message = f"{one} and {other} are started differently ({' '.join(differing)}): one pod template cannot say both"
        raise UsageError(message, "leave out what differs from instance to instance")
    return next(iter(found))


def _words(command: NodeCommand, instance: InstancePlan, variables: PodVariables) -> Iterator[str]:
    """A command line with variables for what differs between nodes of an instance and between instances."""
    places = {
        "--node-rank": f"$({variables.rank})",
        "--dist-init-addr": f"$({variables.leader}):{instance.numbers.dist}",
    }
    if instance.serving.kind == EMBEDDED:  # it numbers its nodes' ports as if they shared a host
        places["--port"] = str(instance.http_port)
    argv = portable(command.argv)
    yield escaped(argv[0])
    for before, word in pairwise(argv):
        yield places.get(before) or escaped(word)


def escaped(word: str) -> str:
    """Escape a word for a command, in which Kubernetes expands $(NAME) and $$ stands for a dollar sign."""
    return word.replace("$(", "$$(")


def environment(env: Mapping[str, str], secrets: Mapping[str, tuple[str, str]]) -> list[dict[str, object]]:
    """The `env` of a container: plain values, then references to Secrets."""
    found: list[dict[str, object]] = [
        {"name": name, "value": escaped(value)} for name, value in sorted(env.items()) if name not in secrets
    ]
    for name, (secret, key) in sorted(secrets.items()):
        found.append({"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}})
    return found


def address() -> list[dict[str, object]]:
    """The variables with the address that a rank advertises: the server listens on all, but must advertise one."""
    return [
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": HOST_IP, "value": "$(POD_IP)"},
    ]


class PodPorts(NamedTuple):
    http: int
    bootstrap: int | None


def engine_spec(
    role: str,
    words: Sequence[str],
    env: list[Object],
    gpus: int,
    ports: PodPorts,
    settings: KubernetesSettings,
    leads: bool,
) -> Object:
    """The pod spec of an engine. `leads`: it is node 0 of its instance, the only one that serves requests."""
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
        container["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}  # needed to register memory with the NIC
    if settings.probing is not None:
        container |= probes(settings.probing, leads)
    container = {key: value for key, value in container.items() if value}
    spec: Object = {"containers": [container], "volumes": _volumes(settings), "terminationGracePeriodSeconds": GRACE}
    if settings.node_selector[role]:
        spec["nodeSelector"] = dict(sorted(settings.node_selector[role].items()))
    if settings.host_network:
        spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}  # otherwise Service names do not resolve
    return {**shared_spec(settings), **spec}


def shared_spec(settings: KubernetesSettings) -> Object:
    """The part of the pod spec shared by engines and the router."""
    # The variables that Kubernetes derives from Service names could collide with the engine's own (SGLANG_…, MC_…).
    spec: Object = {"enableServiceLinks": False}
    if settings.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in settings.pull_secrets]
    if settings.tolerations:
        spec["tolerations"] = [{"key": key, "operator": "Exists"} for key in settings.tolerations]
    if settings.scheduler:
        spec["schedulerName"] = settings.scheduler
    return spec


def probes(probing: Probing, leads: bool) -> Object:
    """Probes that leave a loading server alone, and only keep new requests from one that is busy or waits for its peer.

    A server is alive while its port is open: sglang's /health generates, so it fails while a peer's death blocks it.
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


def _ports(ports: PodPorts) -> list[Object]:
    found: list[Object] = [{"name": "http", "containerPort": ports.http, "protocol": "TCP"}]
    if ports.bootstrap is not None:
        found.append({"name": "bootstrap", "containerPort": ports.bootstrap, "protocol": "TCP"})
    return found


def _resources(gpus: int, settings: KubernetesSettings) -> Object:
    """The devices as limits and as requests, which Kubernetes requires to be equal."""
    devices = {settings.gpu_resource: gpus} if gpus else {}
    counted = {name: str(count) for name, count in sorted({**devices, **settings.rdma}.items())}
    return {"limits": counted, "requests": dict(counted)} if counted else {}


def _mounts(settings: KubernetesSettings) -> list[Object]:
    found: list[Object] = [{"name": "shm", "mountPath": "/dev/shm"}]
    for volume in settings.volumes:
        mount: Object = {"name": volume.name, "mountPath": volume.mount}
        found.append({**mount, "readOnly": True} if volume.read_only else mount)
    return found


def _volumes(settings: KubernetesSettings) -> list[Object]:
    found: list[Object] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": quantity(settings.shm)}}]
    for volume in settings.volumes:
        if volume.claim is not None:
            claim: Object = {"claimName": volume.claim, **({"readOnly": True} if volume.read_only else {})}
            found.append({"name": volume.name, "persistentVolumeClaim": claim})
        else:
            found.append({"name": volume.name, "hostPath": {"path": volume.host_path, "type": "Directory"}})
    return found


def quantity(size: int) -> str:
    """Bytes in the notation of Kubernetes, as `16Gi`."""
    for unit, factor in (("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
        if size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


LWS_VARIABLES = PodVariables("LWS_LEADER_ADDRESS", "LWS_WORKER_INDEX")
LWS_LABELS = ("leaderworkerset.sigs.k8s.io/worker-index", "leaderworkerset.sigs.k8s.io/group-index")
RBG_VARIABLES = PodVariables("RBG_LWP_LEADER_ADDRESS", "RBG_LWP_WORKER_INDEX")
RBG_LABELS = ("rbg.workloads.x-k8s.io/component-index", "rbg.workloads.x-k8s.io/role-instance-index")


class PodGroup(NamedTuple):
    """The pods of one role. `name`: DEPLOYMENT-ROLE. `worker` None: all pods use the leader's template."""

    role: str
    name: str
    instances: tuple[InstancePlan, ...]
    ports: PodPorts
    leader: Object
    worker: Object | None

    @property
    def replicas(self) -> int:
        return len(self.instances)

    @property
    def size(self) -> int:
        """The number of pods of one instance."""
        return self.instances[0].nnodes


def group(role: str, plan: Plan, settings: KubernetesSettings, flavour: GroupFlavour) -> PodGroup:
    instances = tuple(one for one in plan.instances if one.role == role)
    first = instances[0]
    ports = PodPorts(first.http_port, first.bootstrap_port)
    leader = _template(role, instances, ports, settings, flavour, leads=True)
    worker = _template(role, instances, ports, settings, flavour, leads=False)
    alike = first.nnodes == 1 or worker == leader
    return PodGroup(role, f"{plan.name}-{role}", instances, ports, leader, None if alike else worker)


def _template(
    role: str,
    instances: tuple[InstancePlan, ...],
    ports: PodPorts,
    settings: KubernetesSettings,
    flavour: GroupFlavour,
    leads: bool,
) -> Object:
    first = instances[0]
    words = template_words(instances, flavour.variables)
    given = dict(first.serving.env)
    env = [*([] if HOST_IP in given else address()), *environment(given, settings.secrets)]
    gpus = 0 if any(rank.gpu is None for rank in first.ranks) else sum(rank.node == 0 for rank in first.ranks)
    metadata: Object = {"labels": labels(settings.name, role)}
    if ports.bootstrap is not None:
        metadata["annotations"] = {BOOTSTRAP_PORT: str(ports.bootstrap)}
    return {"metadata": metadata, "spec": engine_spec(role, words, env, gpus, ports, settings, leads)}


class GroupFlavour(NamedTuple):
    """`leader`, `number`: labels that the operator sets on pods: the index (0: leader) and the instance's number."""

    variables: PodVariables
    leader: str
    number: str
    objects: Callable[[Sequence[PodGroup], KubernetesSettings], tuple[Object, ...]]

    @property
    def leads(self) -> dict[str, str]:
        """The labels that distinguish the pod that serves requests from the others of its group."""
        return {self.leader: "0"}

    def instance(self, number: int) -> dict[str, str]:
        return {**self.leads, self.number: str(number)}


def lws(groups: Sequence[PodGroup], settings: KubernetesSettings) -> tuple[Object, ...]:
    """A LeaderWorkerSet per role; the pods of instance N of `qwen-prefill` are called qwen-prefill-N, -N-1, …"""
    return tuple(
        {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": metadata(each.name, settings.namespace, settings.name, each.role),
            "spec": _lws_spec(each),
        }
        for each in groups
    )


def disaggregatedset(groups: Sequence[PodGroup], settings: KubernetesSettings) -> tuple[Object, ...]:
    """One object for both roles: they are rolled out together, so no release decodes what another one prefilled."""
    roles = [
        {"name": each.role, "metadata": {"labels": labels(settings.name, each.role)}, "spec": _lws_spec(each)}
        for each in groups
    ]
    return (
        {
            "apiVersion": "disaggregatedset.x-k8s.io/v1",
            "kind": "DisaggregatedSet",
            "metadata": metadata(settings.name, settings.namespace, settings.name),
            "spec": {"roles": roles},
        },
    )


def _lws_spec(group: PodGroup) -> Object:
    template: Object = {"size": group.size, "restartPolicy": "RecreateGroupOnPodRestart"}
    if group.worker is not None:
        template["leaderTemplate"] = group.leader
    template["workerTemplate"] = group.worker or group.leader
    # Workers join the leader while it loads, so waiting until it is ready would deadlock.
    return {"replicas": group.replicas, "startupPolicy": "LeaderCreated", "leaderWorkerTemplate": template}


def rbg(groups: Sequence[PodGroup], settings: KubernetesSettings) -> tuple[Object, ...]:
    about = metadata(settings.name, settings.namespace, settings.name)
    if settings.gang and settings.scheduler:
        about["annotations"] = {"rbg.workloads.x-k8s.io/group-gang-scheduling": "true"}
    return (
        {
            "apiVersion": "workloads.x-k8s.io/v1alpha2",
            "kind": "RoleBasedGroup",
            "metadata": about,
            "spec": {"roles": [_rbg_role(each) for each in groups]},
        },
    )


def _rbg_role(group: PodGroup) -> Object:
    """A role whose pods use the leader's template, with a patch for what differs in workers."""
    pattern: Object = {"size": group.size, "template": group.leader}
    if group.worker is not None:
        pattern["workerTemplatePatch"] = _patch(group.leader, group.worker)
    return {"name": group.role, "replicas": group.replicas, "leaderWorkerPattern": pattern}


def _patch(leader: Object, worker: Object) -> Object:
    """A strategic merge patch: containers are matched by name, a probe is replaced as a whole."""
    ours, theirs = leader["spec"]["containers"][0], worker["spec"]["containers"][0]
    changed = {key: value for key, value in theirs.items() if value != ours.get(key)}
    return {"spec": {"containers": [{"name": ours["name"], **changed}]}}


FLAVOURS = {
    "disaggregatedset": GroupFlavour(LWS_VARIABLES, *LWS_LABELS, disaggregatedset),
    "rbg": GroupFlavour(RBG_VARIABLES, *RBG_LABELS, rbg),
    "lws": GroupFlavour(LWS_VARIABLES, *LWS_LABELS, lws),
}
