"""Rendered manifests of the embedded engine, run: its pods find each other by what the manifests say, and answer."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

from tests.kubernetes.conftest import Render
from tests.kubernetes.kubelet import await_ready, probe, running

pytestmark = pytest.mark.heavy


def test_pods_serve_as_rendered(rendered: Render, tmp_path: Path) -> None:
    """One prefill, one decode of two pods, the router; every pod at an address of its own, with equal ports."""
    made = rendered("rehearsal", "roles.decode.instances=1", flavour="lws")
    with running(made.objects, tmp_path) as pods:
        await_ready(list(pods.values()))
        assert all(probe(pod, "liveness") for pod in pods.values())
        assert {pod.labels["app.kubernetes.io/component"] for pod in pods.values()} == {"prefill", "decode", "router"}
        router = next(pod for pod in pods.values() if "router" in pod.name)
        body = {"text": "the red fox", "sampling_params": {"max_new_tokens": 4}}
        for _ in range(3):
            request = urllib.request.Request(
                f"http://{router.address}:8000/generate",
                data=json.dumps(body).encode(),
                headers={"content-type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=30) as answer:
                assert answer.status == 200
                assert json.load(answer)["meta_info"]["completion_tokens"] == 4
