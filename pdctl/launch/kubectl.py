"""The user's own kubectl: how it is called, what its errors mean, and the pods it reports."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

from pdctl.errors import LaunchError
from pdctl.manifests.write.objects import COMPONENT
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path


ORDER = ("prefill", "decode", "router")
NUMBERS = ("leaderworkerset.sigs.k8s.io/group-index", "rbg.workloads.x-k8s.io/role-instance-index")
NODES = ("leaderworkerset.sigs.k8s.io/worker-index", "rbg.workloads.x-k8s.io/component-index")
PROGRAM = "kubectl"
REQUEST = 30  # seconds for one request; the whole call may take twice that
LONG = 600  # seconds for one log to arrive
# The operator that provides each kind that is not built into Kubernetes.
OPERATORS = {
    "DisaggregatedSet": "install lws v0.9 or later (kubernetes-sigs/lws), or --set targets.kubernetes.flavour=lws",
    "LeaderWorkerSet": "install lws (kubernetes-sigs/lws), or --set targets.kubernetes.flavour=rbg",
    "RoleBasedGroup": "install rbg v0.7 or later (sgl-project/rbg), or --set targets.kubernetes.flavour=lws",
}
NOISE = re.compile(r"Warning: |[EWI]\d{4} ")  # the second is kubectl's own log, which repeats the error
NO_NAMESPACE = re.compile(r'namespaces? "([^"]+)" not found')
NO_CONTEXT = re.compile(r'context "([^"]*)" does not exist|context was not found for specified context: (\S+)')
UNREACHABLE = (
    "connection refused", "Unable to connect to the server", "no such host", "i/o timeout", "server has asked for",
    "certificate", "was refused",
)  # fmt: skip


class ClusterPod(NamedTuple):
    """A pod. `instance`: prefill-0, or router; `node`: its number there; `missing`: what it waits for, "" if ready."""

    name: str
    part: str
    instance: str
    node: int
    ready: bool
    restarts: int
    host: str
    missing: str


def read_pods(text: str) -> tuple[ClusterPod, ...]:
    """The pods in the output of `kubectl get pods -o json`, without those that are being deleted."""
    items = json.loads(text).get("items", [])
    found = [_pod(item) for item in items if not item["metadata"].get("deletionTimestamp")]
    return tuple(sorted(found, key=lambda pod: (_rank(pod.part), pod.instance, pod.node, pod.name)))


def shortfall(pods: Sequence[ClusterPod], wanted: Mapping[str, int]) -> tuple[str, ...]:
    """One sentence for each thing that is missing; () when everything is ready."""
    return tuple(_short(pods, wanted))


def _short(pods: Sequence[ClusterPod], wanted: Mapping[str, int]) -> Iterator[str]:
    for part, count in wanted.items():
        own = [pod for pod in pods if pod.part == part]
        ready = sum(pod.ready for pod in own)
        if ready < count:
            made = "" if len(own) >= count else f", {len(own)} made"
            yield f"{part}: {ready} of {count} pods ready{made}"
            yield from (f"  {pod.name}: {pod.missing}" for pod in own if not pod.ready)


def _rank(part: str) -> int:
    return ORDER.index(part) if part in ORDER else len(ORDER)


def _pod(item: Mapping[str, Any]) -> ClusterPod:
    labels, status = item["metadata"].get("labels", {}), item.get("status", {})
    part = labels.get(COMPONENT, "")
    number = next((labels[key] for key in NUMBERS if key in labels), None)
    node = next((labels[key] for key in NODES if labels.get(key, "").isdigit()), "0")
    containers = status.get("containerStatuses", [])
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions", []))
    return ClusterPod(
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
    """Why a pod is not ready, in the kubelet's or the scheduler's own words."""
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


class Kubectl(NamedTuple):
    """`context` None: the current context of the user's kubeconfig."""

    context: str | None
    namespace: str
    environ: Mapping[str, str]

    def words(self, *words: str) -> list[str]:
        """A complete kubectl command line, to run or to show."""
        chosen = ["--context", self.context] if self.context else []
        return [PROGRAM, *chosen, "--namespace", self.namespace, *words]

    def program(self) -> str:
        """The path of kubectl. Raise LaunchError if it is not on the PATH."""
        found = shutil.which(PROGRAM, path=self.environ.get("PATH"))
        if found is None:
            raise LaunchError("kubectl is not on the PATH", "install it; pdctl render kubernetes needs no cluster")
        return found

    def write(self, file: Path, *words: str) -> bool:
        """Write kubectl's output, of any size, to `file`; False if it failed. Raise LaunchError without kubectl."""
        argv = [self.program(), *self.words(f"--request-timeout={LONG}s", *words)[1:]]
        with file.open("wb") as out:
            try:
                # kubectl's own time limit does not cover the program that fetches its credentials
                done = subprocess.run(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.DEVNULL,
                    env=dict(self.environ),
                    timeout=2 * LONG,
                )
            except subprocess.TimeoutExpired:
                return False
        return done.returncode == 0

    def run(self, *words: str, stdin: str | None = None) -> str:
        """kubectl's output. Raise LaunchError with its error message if it fails."""
        argv = self.words(f"--request-timeout={REQUEST}s", *words)
        try:
            done = subprocess.run(
                [self.program(), *argv[1:]],
                input=stdin,
                stdin=subprocess.DEVNULL if stdin is None else None,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                env=dict(self.environ),
                timeout=2 * REQUEST,
            )
        except subprocess.TimeoutExpired:
            raise LaunchError(f"kubectl {words[0]} had no answer after {2 * REQUEST} s", _ask(argv)) from None
        if done.returncode:
            raise failure(words[0], done.stderr, argv)
        return done.stdout


def failure(verb: str, said: str, argv: Sequence[str]) -> LaunchError:
    """kubectl's own error message, and what to do about it."""
    lines = [line for line in said.splitlines() if line.strip() and not NOISE.match(line)]
    text = "\n  ".join(lines) or "it said nothing"
    namespace, context = NO_NAMESPACE.search(said), NO_CONTEXT.search(said)
    if namespace:
        return LaunchError(f"the cluster has no namespace {namespace[1]}", f"kubectl create namespace {namespace[1]}")
    if context:
        name = context[1] or context[2]
        return LaunchError(f"kubectl knows no context {name}", "kubectl config get-contexts")
    if any(each in said for each in UNREACHABLE):
        return LaunchError(f"the cluster cannot be reached: {text}", "kubectl cluster-info")
    return LaunchError(f"kubectl {verb}: {text}", _ask(argv))


def _ask(argv: Sequence[str]) -> str:
    return " ".join(each for each in argv if not each.startswith("--request-timeout"))
