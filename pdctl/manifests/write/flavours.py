"""The kinds of object that make groups of pods: how each says it, and how its pods are told apart.

Checked against kubernetes-sigs/lws v0.9.0 (LeaderWorkerSet v1, DisaggregatedSet v1) and sgl-project/rbg v0.7.0 and
v0.8.0-alpha.5 (RoleBasedGroup v1alpha2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pdctl.manifests.write.command import Variables
from pdctl.manifests.write.objects import Object, labels, metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pdctl.manifests.write.groups import Group
    from pdctl.manifests.write.settings import Settings


class Flavour(NamedTuple):
    """`leader` and `number` are labels the operator writes on pods: 0 for leaders, and the number of the instance."""

    variables: Variables
    leader: str
    number: str
    objects: Callable[[Sequence[Group], Settings], tuple[Object, ...]]

    @property
    def leads(self) -> dict[str, str]:
        """What tells the pod that serves requests from the others of its group."""
        return {self.leader: "0"}

    def instance(self, number: int) -> dict[str, str]:
        return {**self.leads, self.number: str(number)}


def lws(groups: Sequence[Group], settings: Settings) -> tuple[Object, ...]:
    """A LeaderWorkerSet to each role; the pods of instance N of `qwen-prefill` are called qwen-prefill-N, -N-1, …"""
    return tuple(
        {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": metadata(each.name, settings.namespace, settings.name, each.role),
            "spec": _lws_spec(each),
        }
        for each in groups
    )


def disaggregatedset(groups: Sequence[Group], settings: Settings) -> tuple[Object, ...]:
    """One object for both roles: they are rolled out together, so that no release decodes what another prefilled."""
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


def _lws_spec(group: Group) -> Object:
    template: Object = {"size": group.size, "restartPolicy": "RecreateGroupOnPodRestart"}
    if group.worker is not None:
        template["leaderTemplate"] = group.leader
    template["workerTemplate"] = group.worker or group.leader
    # Workers join the leader while it loads: waiting until it is ready would be waiting for ever.
    return {"replicas": group.replicas, "startupPolicy": "LeaderCreated", "leaderWorkerTemplate": template}


def rbg(groups: Sequence[Group], settings: Settings) -> tuple[Object, ...]:
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


def _rbg_role(group: Group) -> Object:
    """A role's pods come from the leader's template; what is different of a worker is patched in."""
    pattern: Object = {"size": group.size, "template": group.leader}
    if group.worker is not None:
        pattern["workerTemplatePatch"] = _patch(group.leader, group.worker)
    return {"name": group.role, "replicas": group.replicas, "leaderWorkerPattern": pattern}


def _patch(leader: Object, worker: Object) -> Object:
    """A strategic merge patch: containers are matched by name, a probe is replaced whole."""
    ours, theirs = leader["spec"]["containers"][0], worker["spec"]["containers"][0]
    changed = {key: value for key, value in theirs.items() if value != ours.get(key)}
    return {"spec": {"containers": [{"name": ours["name"], **changed}]}}


LWS_VARIABLES = Variables("LWS_LEADER_ADDRESS", "LWS_WORKER_INDEX")
LWS_LABELS = ("leaderworkerset.sigs.k8s.io/worker-index", "leaderworkerset.sigs.k8s.io/group-index")
RBG_VARIABLES = Variables("RBG_LWP_LEADER_ADDRESS", "RBG_LWP_WORKER_INDEX")
RBG_LABELS = ("rbg.workloads.x-k8s.io/component-index", "rbg.workloads.x-k8s.io/role-instance-index")

FLAVOURS = {
    "disaggregatedset": Flavour(LWS_VARIABLES, *LWS_LABELS, disaggregatedset),
    "rbg": Flavour(RBG_VARIABLES, *RBG_LABELS, rbg),
    "lws": Flavour(LWS_VARIABLES, *LWS_LABELS, lws),
}
