"""Topologies, manifests and scripts as facts, each a small change of one that has nothing to complain of."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

from pdctl.catalogue.entry import Needs
from pdctl.doctor.check import Facts, Finding, Skipped, Unknown
from pdctl.doctor.check_run import WRITTEN_CHECKS
from pdctl.layout.planner import plan_topology
from pdctl.manifests import read
from pdctl.topology.resolve import load

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "tests" / "data" / "models"
QWEN, DEEPSEEK, GPT_OSS = (MODELS / name for name in ("qwen3-32b", "deepseek-v3", "gpt-oss-120b"))

SHEET = f"""
version: pdctl/v1
model: {{path: Qwen/Qwen3-32B, config: {QWEN}/config.json}}
engine:
  kind: sglang
  version: 0.5.23
  args: {{enable-metrics: true, enable-request-time-stats-logging: true}}
pools:
  hosts: {{gpus-per-host: 8, gpu-memory: 141GB}}
roles:
  prefill: {{instances: 2, tp: 2, page-size: 64}}
  decode: {{tp: 2, page-size: 64}}
transfer: {{backend: nixl}}
router: {{kind: sglang}}
"""

PREFILL = "--model-path m --disaggregation-mode prefill --port 30000 --page-size 64"
DECODE = "--model-path m --disaggregation-mode decode --port 30001 --page-size 64 --base-gpu-id 1"
ROUTER = "--pd-disaggregation --prefill http://127.0.0.1:30000 8998 --decode http://127.0.0.1:30001"
ENGINE, LAUNCH_ROUTER = "python3 -m sglang.launch_server", "python3 -m sglang_router.launch_router"


class Fixture(NamedTuple):
    """Called anew for every test. `clean` differs from `raising` in what the code is about, and in nothing else."""

    raising: Callable[[], object]
    clean: Callable[[], object]


def topology(*sets: str, text: str = SHEET) -> Facts:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sheet.yaml"
        file.write_text(dedent(text), encoding="utf-8")
        found = load([file], sets, {})
    return Facts(topology=found, plan=plan_topology(found), asked=(Needs.TOPOLOGY,))


def embedded(*sets: str) -> Facts:
    return topology(*sets, text="version: pdctl/v1\nroles: {prefill: {}, decode: {}}\n")


def manifest(text: str, name: str = "deploy.yaml") -> Facts:
    return Facts(manifest=read.read_text(dedent(text), name), asked=(Needs.TOPOLOGY,))


def script(*commands: str) -> Facts:
    """A start script: each of the commands in the background."""
    return manifest("#!/bin/bash\n" + "".join(f"{command} &\n" for command in commands), "run.sh")


def pair(prefill: str = "", decode: str = "", router: str = ROUTER, env: str = "") -> Facts:
    """A script of one prefill, one decode and a router, with more flags for each; `env` in front of both engines."""
    return script(
        f"{env} {ENGINE} {PREFILL} {prefill}", f"{env} {ENGINE} {DECODE} {decode}", f"{LAUNCH_ROUTER} {router}"
    )


def pods(
    prefill: str = "",
    decode: str = "",
    router: str = "--prefill http://prefill:30000 8998 --decode http://decode:30000",
    *,
    image: str = "lmsysorg/sglang:v0.5.23",
    decode_image: str = "",
    template: str = "",
    spec: str = "",
    container: str = "",
    replicas: int = 1,
    service: str = "",
    ports: str = "[{port: 30000}, {port: 8998}]",
    selector: str = "prefill",
    more: str = "",
) -> Facts:
    """Three Deployments and two Services. template: more of prefill's pod metadata; spec, container: of its pod.

    service, ports, selector: of prefill's Service. more: further documents.
    """
    text = _deployment("prefill", f"{PREFILL} {prefill}", image, replicas, template, spec, container)
    text += _deployment("decode", f"{DECODE} --port 30000 {decode}", decode_image or image, 1, "", "", "")
    text += _deployment("router", f"--pd-disaggregation {router}", "lmsysorg/router:v0.3.2", 1, "", "", "")
    text += _service("prefill", ports, service, selector) + _service("decode", "[{port: 30000}]", "", "decode")
    return manifest(text + more)


def _deployment(name: str, flags: str, image: str, replicas: int, template: str, spec: str, container: str) -> str:
    program = "sglang_router.launch_router" if name == "router" else "sglang.launch_server"
    words = ", ".join(f'"{word}"' for word in ["python3", "-m", program, *flags.split()])
    more = "".join(f"      {line}\n" for line in spec.splitlines())
    inner = "".join(f"          {line}\n" for line in container.splitlines())
    return (
        "---\napiVersion: apps/v1\nkind: Deployment\n"
        f"metadata: {{name: {name}}}\nspec:\n  replicas: {replicas}\n  template:\n"
        f"    metadata: {{labels: {{app: {name}}}{template}}}\n    spec:\n"
        + ("" if "terminationGrace" in spec else "      terminationGracePeriodSeconds: 300\n")
        + f"{more}      containers:\n        - name: main\n          image: {image}\n"
        + f"          command: [{words}]\n{inner}"
    )


def _service(name: str, ports: str, more: str, selector: str) -> str:
    return (
        f"---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n"
        f"spec: {{selector: {{app: {selector}}}, ports: {ports}{more}}}\n"
    )


def found(facts: Facts, code: str) -> list[Finding]:
    """What the static checks of one code say of these facts; an AssertionError where they say they do not know."""
    judged = [check.judge(facts) for check in WRITTEN_CHECKS if check.code == code]
    assert not [verdict for verdict in judged if isinstance(verdict, Unknown)]
    return [each for verdict in judged if not isinstance(verdict, (Skipped, Unknown)) for each in verdict]


def doubt(facts: Facts, code: str) -> str:
    """Why the static checks of one code cannot tell, or have nothing to look at; "" when they can."""
    judged = [check.judge(facts) for check in WRITTEN_CHECKS if check.code == code]
    return "; ".join(verdict.reason for verdict in judged if isinstance(verdict, (Skipped, Unknown)))
