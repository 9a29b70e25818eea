"""What pods say of themselves, by the API server's words."""

from __future__ import annotations

import json

from pdctl.launch.kubectl import read_pods, shortfall
from tests.cases import for_each

LABELS = {"app.kubernetes.io/component": "decode", "leaderworkerset.sigs.k8s.io/group-index": "3"}


def told(name: str, status: dict[str, object], **metadata: object) -> str:
    about = {"name": name, "labels": LABELS, **metadata}
    return json.dumps({"items": [{"metadata": about, "spec": {"nodeName": "gpu-7"}, "status": status}]})


def container(state: dict[str, object], **more: object) -> dict[str, object]:
    return {"containerStatuses": [{"name": "decode", "ready": False, "restartCount": 2, "state": state, **more}]}


WHY = (
    ({"phase": "Pending"}, "pending"),
    ({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPU"}]},
     "Unschedulable: no GPU"),
    (container({"waiting": {"reason": "ContainerCreating"}}) | {"phase": "Pending"}, "pending"),
    (container({"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "hf" not found'}}),
     'CreateContainerConfigError: secret "hf" not found'),
    (container({"waiting": {"reason": "CrashLoopBackOff"}}), "CrashLoopBackOff"),
    (container({"terminated": {"reason": "OOMKilled", "exitCode": 137}}), "OOMKilled with exit code 137"),
    (container({"running": {}}, lastState={"terminated": {"reason": "Error", "exitCode": 1}}),
     "Error with exit code 1"),
    (container({"running": {}}), "running, not ready: it loads, or its probe fails"),
)  # fmt: skip


@for_each(("status", "why"), WHY, ids=[why for _, why in WHY])
def test_what_a_pod_waits_for(status: dict[str, object], why: str) -> None:
    (pod,) = read_pods(told("d", status))
    assert not pod.ready
    assert pod.missing == why


def test_a_ready_pod() -> None:
    (pod,) = read_pods(told("qwen-decode-3", {"conditions": [{"type": "Ready", "status": "True"}]}))
    assert (pod.part, pod.instance, pod.node, pod.host, pod.missing) == ("decode", "decode-3", 0, "gpu-7", "")
    assert shortfall((pod,), {"decode": 1}) == ()
    assert shortfall((pod,), {"decode": 2, "router": 1}) == (
        "decode: 1 of 2 pods ready, 1 made",
        "router: 0 of 1 pods ready, 0 made",
    )


def test_a_pod_on_its_way_out_does_not_count() -> None:
    assert read_pods(told("d", {}, deletionTimestamp="2026-01-01T00:00:00Z")) == ()
