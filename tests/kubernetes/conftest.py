"""Three topologies, and what is rendered of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from pdctl.manifests.write.rendering import Rendering, render
from pdctl.topology.resolve import load

TOPOLOGIES = Path(__file__).resolve().parents[2] / "topologies"
FLAVOURS = ("disaggregatedset", "rbg", "lws")

# Two prefills in a pod each, one decode over two; the router looks for pods.
QWEN = """
version: pdctl/v1
name: qwen
model: {path: Qwen/Qwen3-32B, kv-dtype: bf16}
engine: {kind: sglang, version: 0.5.18}
pools:
  h100: {gpus-per-host: 8, gpu: H100-80GB, labels: {node.kubernetes.io/instance-type: h100-8}}
roles:
  prefill: {instances: 2, tp: 2, page-size: 64}
  decode: {instances: 1, tp: 16, page-size: 64}
transfer: {backend: nixl}
router: {kind: sglang-router, policy: cache_aware}
targets:
  kubernetes:
    image: lmsysorg/sglang:v0.5.18
    namespace: llm
    rdma-resource: {rdma/ib: 1}
    secrets: {HF_TOKEN: hf/token}
"""
# The embedded engine: ranks on the CPU, one rank to a host, two hosts to the decode; a router that is given addresses.
REHEARSAL = """
version: pdctl/v1
name: rehearsal
pools: {small: {gpus-per-host: 1}}
roles:
  prefill: {instances: 1}
  decode: {instances: 2, tp: 2}
targets:
  kubernetes: {image: "registry.example/pdctl@sha256:DIGEST"}
""".replace("DIGEST", "0" * 64)
# Shipped: prefills of two hosts, a decode of four.
WIDE = "deepseek-v3-wide.yaml"
NAMES = ("qwen", "rehearsal", "wide")

Render = Callable[..., Rendering]


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], Path]:
    """The topology called that, as a file."""

    def written(name: str) -> Path:
        if name == "wide":
            return TOPOLOGIES / WIDE
        path = tmp_path / f"{name}.yaml"
        path.write_text(dedent({"qwen": QWEN, "rehearsal": REHEARSAL}[name]))
        return path

    return written


@pytest.fixture
def rendered(file: Callable[[str], Path]) -> Render:
    """By name, `--set` words, flavour and Kubernetes versions."""

    def made(name: str, *sets: str, flavour: str | None = None, versions: tuple[str, ...] = ("1.30",)) -> Rendering:
        image = ("targets.kubernetes.image=lmsysorg/sglang:v0.5.18", "engine.version=0.5.18") if name == "wide" else ()
        return render(load([file(name)], [*image, *sets], {}), flavour, versions)

    return made
