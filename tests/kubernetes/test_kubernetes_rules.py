"""Manifests with one thing wrong are refused, each with the exact place."""

from __future__ import annotations

import copy
import re
from typing import Any, NamedTuple

from pdctl.manifests.kubernetes_validation import VERSIONS, validate
from tests.cases import for_each
from tests.kubernetes.conftest import Render

GONE = object()  # the key is taken away
STEP = re.compile(r'\["([^"]+)"\]|\[(\d+)\]|([^.\[\]]+)')


class Wrong(NamedTuple):
    """`kind` of the first object to change, where, to what; where the fault is told, if elsewhere; and what is said."""

    flavour: str
    kind: str
    path: str
    value: object
    said: str
    told: str = ""


POD = "spec.leaderWorkerTemplate.workerTemplate"
CONTAINER = f"{POD}.spec.containers[0]"
WRONGS = (
    # types, names and values that the CRDs' schemas know
    Wrong("lws", "LeaderWorkerSet", "spec.leaderWorkerTemplate.size", "two", "'two' is not an integer"),
    Wrong("lws", "LeaderWorkerSet", "spec.leaderWorkerTemplate.sizes", 2, "no such field: did you mean `size`?"),
    Wrong("lws", "LeaderWorkerSet", "spec.leaderWorkerTemplate.workerTemplate", GONE, "missing"),
    Wrong("lws", "LeaderWorkerSet", "spec.startupPolicy", "Leader",
          "'Leader' is not one of 'LeaderCreated', 'LeaderReady'"),
    Wrong("disaggregatedset", "DisaggregatedSet", "spec.roles[1].spec.replicas", "1", "'1' is not an integer"),
    Wrong("disaggregatedset", "DisaggregatedSet", "spec.roles[0].name", "Prefill",
          "'Prefill' does not match ^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"),
    Wrong("disaggregatedset", "DisaggregatedSet", "spec.roles[0].leaderWorkerTemplate", {}, "no such field"),
    Wrong("disaggregatedset", "DisaggregatedSet", "spec.roles[1]", GONE, "1 of at least 2", told="spec.roles"),
    Wrong("rbg", "RoleBasedGroup", "spec.roles[0].leaderWorkerPattern.size", "2", "'2' is not an integer"),
    Wrong("rbg", "RoleBasedGroup", "spec.roles[1].replicas", -1, "-1 is less than 0"),
    Wrong("rbg", "RoleBasedGroup", "spec.roles[0].leaderWorkerPatern", {},
          "no such field: did you mean `leaderWorkerPattern`?"),
    Wrong("rbg", "RoleBasedGroup", "apiVersion", "workloads.x-k8s.io/v1alpha1",
          "'workloads.x-k8s.io/v1alpha1' has no RoleBasedGroup: workloads.x-k8s.io/v1alpha2"),
    # the same of pods, and of what Kubernetes itself has
    Wrong("lws", "LeaderWorkerSet", f"{CONTAINER}.ports[0].containerPort", "30000", "'30000' is not an integer"),
    Wrong("lws", "LeaderWorkerSet", f"{CONTAINER}.livenessProb", {}, "no such field: did you mean `livenessProbe`?"),
    Wrong("lws", "LeaderWorkerSet", f"{CONTAINER}.name", GONE, "missing"),
    Wrong("lws", "LeaderWorkerSet", f"{POD}.spec.volumes[0].emptyDir.sizeLimit", "16Gib",
          "'16Gib' does not match ^[+-]?([0-9]+\\.?[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+|[numkMGTPE]|[KMGTPE]i)?$"),
    Wrong("rbg", "RoleBasedGroup", "spec.roles[0].leaderWorkerPattern.template.spec.containers[0].env", {"A": "b"},
          "{'A': 'b'} is not a list"),
    Wrong("lws", "Service", "spec.publishNotReadyAddresses", "yes", "'yes' is not true or false"),
    Wrong("lws", "Service", "spec.ports[1].port", GONE, "missing"),
    Wrong("lws", "Deployment", "spec.selector", GONE, "missing"),
    Wrong("lws", "Deployment", "metadata.name", GONE, "missing"),
    Wrong("lws", "RoleBinding", "roleRef.apiGroup", GONE, "missing"),
    # what operators' admission and CEL rules refuse
    Wrong("lws", "LeaderWorkerSet", "spec.leaderWorkerTemplate.size", 0, "0 is less than 1"),
    Wrong("lws", "LeaderWorkerSet", "spec.rolloutStrategy",
          {"type": "RollingUpdate", "rollingUpdateConfiguration": {"maxUnavailable": 0, "maxSurge": 0}},
          "0 while maxSurge is 0: nothing could ever be replaced",
          told="spec.rolloutStrategy.rollingUpdateConfiguration.maxUnavailable"),
    Wrong("disaggregatedset", "DisaggregatedSet", "spec.roles[1].spec.replicas", 0,
          "0 while another role has some: all have some, or none has"),
    Wrong("disaggregatedset", "DisaggregatedSet", "spec.roles[1].name", "prefill", "'prefill' a second time"),
    Wrong("disaggregatedset", "DisaggregatedSet", "spec.roles[0].spec.rolloutStrategy",
          {"type": "RollingUpdate", "rollingUpdateConfiguration": {"partition": 1}},
          "not allowed: the DisaggregatedSet rolls its roles out together",
          told="spec.roles[0].spec.rolloutStrategy.rollingUpdateConfiguration.partition"),
    Wrong("disaggregatedset", "DisaggregatedSet", "metadata.name", "q" * 40,
          f"{'q' * 40!r} is too long by 9: at most 31 characters"),
    Wrong("rbg", "RoleBasedGroup", "spec.roles[0].standalonePattern", {}, "does not go with standalonePattern",
          told="spec.roles[0].leaderWorkerPattern"),
    Wrong("rbg", "RoleBasedGroup", "spec.roles[0].dependencies", ["decod"], "'decod' is no other role of this group",
          told="spec.roles[0].dependencies[0]"),
    Wrong("rbg", "RoleBasedGroup", "spec.roles[0].leaderWorkerPattern.restartPolicyConfig",
          {"baseDelaySeconds": 60, "maxDelaySeconds": 30}, "30 is less than baseDelaySeconds 60",
          told="spec.roles[0].leaderWorkerPattern.restartPolicyConfig.maxDelaySeconds"),
    # what the API server refuses beyond schemas
    Wrong("lws", "Service", "metadata.name", "2p1d", "'2p1d' is not a name of a-z, 0-9 and -, beginning with a letter"),
    Wrong("lws", "Service", "spec.ports[0].port", 70000, "70000 is not a port from 1 to 65535"),
    Wrong("lws", "Service", "spec.ports[1].name", "http", "'http' a second time"),
    Wrong("lws", "Deployment", 'spec.template.metadata.labels["app.kubernetes.io/component"]', "gateway",
          "'gateway', but spec.selector wants 'router'"),
    Wrong("lws", "LeaderWorkerSet", f'{POD}.metadata.labels["app.kubernetes.io/instance"]', "a/b",
          "'a/b' is no value of a label"),
    Wrong("lws", "LeaderWorkerSet", f"{CONTAINER}.volumeMounts[0].name", "shmem", "'shmem' is no volume of this pod"),
    Wrong("lws", "LeaderWorkerSet", f"{CONTAINER}.readinessProbe.httpGet.port", "web",
          "'web' is no port of this container"),
    Wrong("lws", "LeaderWorkerSet", f"{CONTAINER}.livenessProbe.httpGet", {"path": "/health", "port": 1},
          "has both httpGet and tcpSocket", told=f"{CONTAINER}.livenessProbe"),
    Wrong("lws", "LeaderWorkerSet", f'{CONTAINER}.resources.limits["nvidia.com/gpu"]', "0.5",
          "'0.5' is not a whole number of devices"),
    Wrong("lws", "LeaderWorkerSet", f'{CONTAINER}.resources.requests["nvidia.com/gpu"]', "1",
          "'1' is not the limit, '2'"),
    Wrong("lws", "LeaderWorkerSet", f'{POD}.spec.nodeSelector["node.kubernetes.io/instance-type"]', "h100 8",
          "'h100 8' is no value of a label"),
    Wrong("lws", "LeaderWorkerSet", f"{POD}.spec.volumes[1]", {"name": "shm", "emptyDir": {}},
          "'shm' is taken, or no name of a-z, 0-9 and -", told=f"{POD}.spec.volumes[1].name"),
    Wrong("lws", "LeaderWorkerSet", f"{CONTAINER}.resources.limits.rdma", "1",
          "'rdma' is no resource of Kubernetes: a device's has a domain"),
    # what only pdctl refuses, for what it does to a deployment
    Wrong("lws", "LeaderWorkerSet", f"{CONTAINER}.image", "lmsysorg/sglang",
          "'lmsysorg/sglang' is not pinned: no tag but latest, and no digest"),
    Wrong("lws", "LeaderWorkerSet", f'{POD}.metadata.annotations["sglang.ai/bootstrap-port"]', "8999",
          "'8999', but the server is started with --disaggregation-bootstrap-port 8998"),
)  # fmt: skip


def change(value: Any, path: str, to: object) -> None:
    steps = [said or (int(number) if number else plain) for said, number, plain in STEP.findall(path)]
    for step in steps[:-1]:
        value = value[step]
    if to is GONE:
        del value[steps[-1]]
    elif isinstance(value, list) and steps[-1] == len(value):
        value.append(to)
    else:
        value[steps[-1]] = to


@for_each("wrong", WRONGS, ids=[f"{each.kind}-{each.path}-{str(each.value)[:20]}" for each in WRONGS])
def test_the_place_is_named(rendered: Render, wrong: Wrong) -> None:
    made = copy.deepcopy(rendered("qwen", flavour=wrong.flavour).objects)
    chosen = next(each for each in made if each["kind"] == wrong.kind)
    change(chosen, wrong.path, wrong.value)
    found = validate(made, ("1.30",))
    assert [(fault.path, fault.message) for fault in found] == [(wrong.told or wrong.path, wrong.said)]
    assert found[0].where.startswith(wrong.kind)


def test_a_field_that_came_later_is_told_with_the_versions_that_lack_it(rendered: Render) -> None:
    made = copy.deepcopy(rendered("qwen", flavour="lws").objects)
    chosen = next(each for each in made if each["kind"] == "LeaderWorkerSet")
    change(chosen, f"{POD}.spec.resources", {"limits": {"cpu": "8"}})
    (fault,) = validate(made, VERSIONS)
    assert fault.path == f"{POD}.spec.resources"
    assert fault.versions == VERSIONS[: VERSIONS.index("1.32")]
    assert str(fault).endswith("(Kubernetes 1.27 to 1.31)")
    assert not validate(made, ("1.32", "1.37"))


def test_every_fault_is_told_at_once(rendered: Render) -> None:
    made = copy.deepcopy(rendered("qwen", flavour="lws").objects)
    for each in made:
        change(each, "metadata.name", 7)
    assert len(validate(made, ("1.30",))) == len(made)
