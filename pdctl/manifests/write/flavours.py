"""The kinds of object that create groups of pods: how each is written, and how its pods are told apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pdctl.manifests.write.engine_pods import (
    HOST_IP,
    PodPorts,
    PodVariables,
    address,
    engine_spec,
    environment,
    template_words,
)
from pdctl.manifests.write.objects import BOOTSTRAP_PORT, Object, labels, metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pdctl.layout.instance_plan import InstancePlan, Plan
    from pdctl.manifests.write.kubernetes_settings import KubernetesSettings

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
