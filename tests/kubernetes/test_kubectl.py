"""Manifests through the real kubectl, against an API server that checks them (api_server.py)."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from pdctl.errors import LaunchError, NotReadyError
from pdctl.launch import clusters
from pdctl.launch.kubectl import Kubectl
from pdctl.launch.targets import kubernetes
from tests.cli.verb import within
from tests.kubernetes.api_server import BUILT_IN, CUSTOM, Cluster, Object, kubeconfig, serving
from tests.kubernetes.conftest import FLAVOURS, Render

RECORDING = Path(__file__).resolve().parents[1] / "data" / "rooms" / "1p1d-healthy-debug-sgl058"
pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")


class Site:
    """A cluster, and the environment in which kubectl finds it."""

    def __init__(self, cluster: Cluster, folder: Path, url: str) -> None:
        self.cluster = cluster
        self.folder = folder
        (folder / "config").write_text(kubeconfig(url))
        self.env = {
            **os.environ,
            "KUBECONFIG": str(folder / "config"),
            "HOME": str(folder),
            "PDCTL_HOME": str(folder / "state"),
        }

    def kubectl(self, namespace: str = "llm", context: str | None = None) -> Kubectl:
        return Kubectl(context, namespace, self.env)

    def pdctl(self, *argv: str) -> subprocess.CompletedProcess[str]:
        if argv[0] != "logs":
            return within(*argv, env=self.env)
        # It reads from the kubectl it started until it ends itself.
        words = [sys.executable, "-m", "pdctl", *argv]
        return subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=120)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    cluster = Cluster()
    with serving(cluster) as url:
        yield Site(cluster, tmp_path, url)


def applied(through: Kubectl, of: clusters.Cluster, objects: Sequence[Object]) -> None:
    kubernetes.judge(through, of, objects)
    kubernetes.apply(through, objects)


def test_launch_status_logs_down(site: Site, file: Callable[[str], Path]) -> None:
    site.cluster.logs = {"qwen-1a2b3c4d-decode-0": "Decode batch\nanother line\n"}
    launched = site.pdctl("launch", str(file("qwen")), "-t", "kubernetes", "--timeout", "60s")
    assert launched.returncode == 0, launched.stderr
    assert "qwen serves at http://qwen-router.llm:8000" in launched.stdout
    assert "port-forward service/qwen-router 8000:8000" in launched.stdout
    assert len(site.cluster.selected("pods", "llm", "app.kubernetes.io/instance=qwen")) == 5
    told = json.loads(site.pdctl("status", "-o", "json").stdout)
    assert told["ready"] is True
    assert [pod["instance"] for pod in told["pods_found"]] == [
        "prefill-0",
        "prefill-1",
        "decode-0",
        "decode-0",
        "router",
    ]
    logs = site.pdctl("logs", "qwen", "decode-0", "--grep", "batch")
    assert logs.stdout == "[pod/qwen-1a2b3c4d-decode-0/decode] Decode batch\n"
    assert site.pdctl("logs", "decode-0", "--raw").stdout == "Decode batch\nanother line\n"
    assert "in Kubernetes (llm)" in site.pdctl("ls").stdout
    down = site.pdctl("down")
    assert down.stdout == "qwen is gone from llm\n"
    assert not [key for key in site.cluster.objects if key[0] != "namespaces"]
    assert site.pdctl("status", "qwen").returncode == 5


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_every_flavour_is_applied_and_taken_down(site: Site, rendered: Render, flavour: str) -> None:
    made = rendered("qwen", flavour=flavour)
    of = kubernetes.cluster(made.plan, made.settings, made.objects)
    through = site.kubectl()
    applied(through, of, made.objects)
    found = kubernetes.await_ready(through, of, 30, 0, lambda _: None)
    assert [(pod.instance, pod.node) for pod in found] == [
        ("prefill-0", 0), ("prefill-1", 0), ("decode-0", 0), ("decode-0", 1), ("router", 0)
    ]  # fmt: skip
    for each in made.objects:
        if each["kind"] == "Service" and each["metadata"]["name"] != "qwen-router":
            selector = ",".join(f"{key}={value}" for key, value in each["spec"]["selector"].items())
            (leader,) = site.cluster.selected("pods", "llm", selector)  # never a worker, never two
            assert leader["metadata"]["labels"]["app.kubernetes.io/component"] in each["metadata"]["name"]
    kubernetes.remove(through, of, 30, force=False)
    assert not [key for key in site.cluster.objects if key[0] != "namespaces"]


def test_rooms_are_told_from_the_pods_logs(site: Site, rendered: Render) -> None:
    """A recording of real SGLang, as if these pods had written it."""
    made = rendered("qwen", "roles.prefill.instances=1", flavour="lws")
    of = kubernetes.cluster(made.plan, made.settings, made.objects)
    applied(site.kubectl(), of, made.objects)
    clusters.save(site.folder / "state", of)
    for role in ("prefill", "decode"):
        site.cluster.logs[f"qwen-{role}-0"] = (RECORDING / f"{role}0.log").read_text()
    told = json.loads(site.pdctl("rooms", "--run", "qwen", "--no-index", "-o", "json").stdout)
    pairs = {(room["prefill"], room["decode"]) for room in told["rooms"]}
    assert ("prefill-0", "decode-0") in pairs
    refused = site.pdctl("doctor", "--run", "qwen")
    assert refused.returncode == 2
    assert "port-forward service/qwen-router 8000" in refused.stderr


def test_nothing_is_made_when_one_object_is_refused(site: Site, rendered: Render) -> None:
    made = rendered("qwen", flavour="lws")
    wrong = copy.deepcopy(made.objects)
    wrong[-1]["spec"]["leaderWorkerTemplate"]["size"] = "two"
    of = kubernetes.cluster(made.plan, made.settings, wrong)
    with pytest.raises(LaunchError) as refused:
        applied(site.kubectl(), of, wrong)
    assert "spec.leaderWorkerTemplate.size" in refused.value.message
    assert "'two' is not an integer" in refused.value.message
    assert not [key for key in site.cluster.objects if key[0] != "namespaces"]


def test_the_deadline_names_what_it_waited_for(site: Site, rendered: Render) -> None:
    site.cluster.trouble = {"decode-0-1": "ImagePullBackOff", "router": "Unschedulable"}
    made = rendered("qwen")
    of = kubernetes.cluster(made.plan, made.settings, made.objects)
    applied(site.kubectl(), of, made.objects)
    heard: list[tuple[str, ...]] = []
    with pytest.raises(NotReadyError) as late:
        kubernetes.await_ready(site.kubectl(), of, 0, 0, heard.append)
    assert late.value.message.splitlines() == [
        "qwen is not ready after 0ms:",
        "  decode: 1 of 2 pods ready",
        "    qwen-1a2b3c4d-decode-0-1: ImagePullBackOff: told by the test: ImagePullBackOff",
        "  router: 0 of 1 pods ready",
        "    qwen-router-7d4b9c5f6-x0: Unschedulable: 0/4 nodes are available: 4 Insufficient nvidia.com/gpu.",
    ]
    assert len(heard) == 1


def test_an_operator_that_is_not_installed_is_named(site: Site, rendered: Render) -> None:
    site.cluster.resources = (*BUILT_IN, CUSTOM[0])
    made = rendered("qwen")
    of = kubernetes.cluster(made.plan, made.settings, made.objects)
    with pytest.raises(LaunchError, match="the cluster has no DisaggregatedSet") as refused:
        applied(site.kubectl(), of, made.objects)
    assert "flavour=lws" in refused.value.fix
    assert not any(each.startswith("PATCH") for each in site.cluster.requests)


def test_a_namespace_that_is_not_there(site: Site, rendered: Render) -> None:
    made = rendered("qwen", "targets.kubernetes.namespace=nowhere")
    of = kubernetes.cluster(made.plan, made.settings, made.objects)
    with pytest.raises(LaunchError, match="no namespace nowhere") as refused:
        applied(site.kubectl("nowhere"), of, made.objects)
    assert refused.value.fix == "kubectl create namespace nowhere"


def test_a_context_that_is_not_there_and_a_cluster_that_is_gone(site: Site) -> None:
    with pytest.raises(LaunchError, match="kubectl knows no context other"):
        site.kubectl(context="other").run("get", "pods")
    (site.folder / "config").write_text(kubeconfig("http://127.0.0.1:9"))
    with pytest.raises(LaunchError, match="the cluster cannot be reached") as gone:
        site.kubectl().run("get", "pods")
    assert "refused" in gone.value.message


def test_what_is_remembered_of_a_deployment(site: Site, rendered: Render) -> None:
    made = rendered("qwen")
    of = kubernetes.cluster(made.plan, made.settings, made.objects)
    clusters.save(site.folder, of)
    assert clusters.find_cluster(site.folder, "qwen") == of
    assert clusters.load_all(site.folder) == (of,)
    clusters.forget(site.folder, "qwen")
    assert clusters.find_cluster(site.folder, "qwen") is None
