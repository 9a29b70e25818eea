"""Pods as the API server tells of them: which part of a deployment each is, whether it is ready, and if not, why."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from pdctl.manifests.write.objects import COMPONENT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ORDER = ("prefill", "decode", "router")
NUMBERS = ("leaderworkerset.sigs.k8s.io/group-index", "rbg.workloads.x-k8s.io/role-instance-index")
NODES = ("leaderworkerset.sigs.k8s.io/worker-index", "rbg.workloads.x-k8s.io/component-index")


class Pod(NamedTuple):
    """`instance`: prefill-0, or router; `node` of that instance. `missing`: what it waits for, empty when ready."""

    name: str
    part: str
    instance: str
    node: int
    ready: bool
    restarts: int
    host: str
    missing: str


def read(text: str) -> tuple[Pod, ...]:
    """From `kubectl get pods -o json`; those that are on their way out are left out."""
    items = json.loads(text).get("items", [])
    found = [_pod(item) for item in items if not item["metadata"].get("deletionTimestamp")]
    return tuple(sorted(found, key=lambda pod: (_rank(pod.part), pod.instance, pod.node, pod.name)))


def shortfall(pods: Sequence[Pod], wanted: Mapping[str, int]) -> tuple[str, ...]:
    """A sentence for each thing that is missing; () when everything is ready."""
    return tuple(_short(pods, wanted))


def _short(pods: Sequence[Pod], wanted: Mapping[str, int]) -> Iterator[str]:
    for part, count in wanted.items():
        own = [pod for pod in pods if pod.part == part]
        ready = sum(pod.ready for pod in own)
        if ready < count:
            made = "" if len(own) >= count else f", {len(own)} made"
            yield f"{part}: {ready} of {count} pods ready{made}"
            yield from (f"  {pod.name}: {pod.missing}" for pod in own if not pod.ready)


def _rank(part: str) -> int:
    return ORDER.index(part) if part in ORDER else len(ORDER)


def _pod(item: Mapping[str, Any]) -> Pod:
    labels, status = item["metadata"].get("labels", {}), item.get("status", {})
    part = labels.get(COMPONENT, "")
    number = next((labels[key] for key in NUMBERS if key in labels), None)
    node = next((labels[key] for key in NODES if labels.get(key, "").isdigit()), "0")
    containers = status.get("containerStatuses", [])
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions", []))
    return Pod(
        name=item["metadata"]["name"],
        part=part,
        instance=part if number is None else f"{part}-{number}",
        node=int(node),
        ready=ready,
        restarts=sum(each.get("restartCount", 0) for each in containers),
        host=item.get("spec", {}).get("nodeName", ""),
        missing="" if ready else _why(status, containers),
    )


def _why(status: Mapping[str, Any], containers: Sequence[Mapping[str, Any]]) -> str:
    """The kubelet's or the scheduler's own words."""
    for each in containers:
        waiting = each.get("state", {}).get("waiting")
        if waiting and waiting.get("reason") != "ContainerCreating":
            return _said(waiting)
        ended = each.get("state", {}).get("terminated") or each.get("lastState", {}).get("terminated")
        if ended and not each.get("ready"):
            return f"{ended.get('reason', 'ended')} with exit code {ended.get('exitCode')}"
    for each in status.get("conditions", []):
        if each["type"] == "PodScheduled" and each["status"] == "False":
            return _said(each)
    if any("running" in each.get("state", {}) for each in containers):
        return "running, not ready: it loads, or its probe fails"
    return str(status.get("phase", "Pending")).lower()


def _said(state: Mapping[str, Any]) -> str:
    message = state.get("message", "")
    return f"{state.get('reason', 'waiting')}: {message}" if message else str(state.get("reason", "waiting"))
