"""Objects that operators put together: a role's template, shared ones, patches, the parts of a group."""

from __future__ import annotations

from textwrap import dedent

from pdctl.manifests import read
from pdctl.manifests.manifest import Container, ManifestPod


def pods(body: str) -> dict[str, ManifestPod]:
    return {each.name: each for each in read.read_text(dedent(body), "x.yaml").pods}


def words(container: Container) -> str:
    return " ".join(word.text for word in container.argv)


V1ALPHA1 = """
kind: RoleBasedGroup
metadata: {name: g, namespace: serving}
spec:
  roles:
    - name: decode
      replicas: 3
      leaderWorkerSet:
        size: 2
        patchLeaderTemplate:
          metadata: {labels: {role: leader}}
          spec:
            containers:
              - name: c
                command: [python3, -m, sglang.launch_server, --port, "1"]
                env: [{name: B, value: leader}]
        patchWorkerTemplate:
          spec:
            containers: [{name: c, command: [python3, -m, sglang.launch_server, --port, "2"]}]
      template:
        metadata: {labels: {app: x}}
        spec:
          hostNetwork: true
          containers:
            - name: c
              image: i:1
              env: [{name: A, value: both}, {name: B, value: both}]
            - name: sidecar
              image: s:1
"""


def test_a_patch_lies_over_its_template() -> None:
    found = pods(V1ALPHA1)
    assert set(found) == {"g/decode/leader", "g/decode/worker"}
    leader, worker = found["g/decode/leader"], found["g/decode/worker"]
    assert (leader.part, leader.replicas, leader.size, leader.host_network) == ("leader", 3, 2, True)
    assert leader.labels == {"app": "x", "role": "leader"}
    assert worker.labels == {"app": "x"}
    assert leader.namespace == "serving"
    ours, sidecar = leader.containers
    assert (ours.image, words(ours)) == ("i:1", "python3 -m sglang.launch_server --port 1")
    assert {said.name: said.value for said in ours.env} == {"A": "both", "B": "leader"}
    assert sidecar.image == "s:1"
    assert ours.image_line == 26
    assert ours.argv[0].line == 15


def test_labels_of_the_controller_are_known() -> None:
    (leader, *_) = pods(V1ALPHA1).values()
    assert leader.carries({"rolebasedgroup.workloads.x-k8s.io/role": "decode", "role": "leader"})
    assert not leader.carries({"rolebasedgroup.workloads.x-k8s.io/role": "prefill"})
    assert not leader.carries({})


def test_a_shared_template_is_used_by_name() -> None:
    found = pods(
        """
        kind: RoleBasedGroup
        metadata: {name: g}
        spec:
          roleTemplates:
            - name: base
              template: {spec: {containers: [{name: c, image: "i:1", command: [python3, -m, sglang.launch_server]}]}}
          roles:
            - {name: a, standalonePattern: {templateRef: {name: base}}}
            - name: b
              replicas: 2
              templateRef: {name: base}
              templatePatch: {spec: {containers: [{name: c, args: [--tp, "2"]}]}}
            - {name: c, standalonePattern: {templateRef: {name: none}}}
        """
    )
    assert {name: words(each.containers[0]) for name, each in found.items()} == {
        "g/a": "python3 -m sglang.launch_server",
        "g/b": "python3 -m sglang.launch_server --tp 2",
    }
    assert all(each.containers[0].image == "i:1" for each in found.values())


def test_dynamos_main_container_is_a_pod() -> None:
    found = pods(
        """
        kind: DynamoGraphDeployment
        metadata: {name: g}
        spec:
          envs: [{name: ALL, value: "1"}]
          services:
            prefill:
              replicas: 2
              multinode: {nodeCount: 4}
              envs: [{name: OWN, value: "2"}]
              envFromSecret: token
              resources: {limits: {gpu: "8"}}
              extraPodSpec:
                nodeSelector: {pool: a}
                mainContainer: {image: "i:1", command: [python3, -m, dynamo.sglang], args: [--tp, "32"]}
        """
    )
    pod = found["g/prefill"]
    (container,) = pod.containers
    assert (pod.kind, pod.replicas, pod.size, container.gpus) == ("DynamoGraphDeployment", 2, 4, 8)
    assert (pod.node_selector, container.env_open) == ({"pool": "a"}, True)
    assert {said.name: said.value for said in container.env} == {"ALL": "1", "OWN": "2"}


def test_aliases_in_patches_end() -> None:
    bomb = "\n".join(f"  a{n}: &a{n} {{x: *a{n - 1}, y: *a{n - 1}}}" for n in range(1, 60))
    found = pods(
        f"""
x:
  a0: &a0 {{x: 1}}
{bomb}
kind: RoleBasedGroup
spec:
  roles:
    - name: r
      template: {{spec: {{b: *a59, containers: [{{name: c, command: [smg, launch]}}]}}}}
      leaderWorkerSet: {{patchLeaderTemplate: {{spec: {{b: *a59, containers: [{{name: c, image: i}}]}}}}}}
"""
    )
    assert len(found) == 2
