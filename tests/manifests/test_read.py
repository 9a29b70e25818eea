"""Manifests and scripts, as they are read."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from pdctl.errors import ExitCode, PdctlError, UsageError
from pdctl.manifests import read
from pdctl.manifests.command_lines import program
from pdctl.manifests.manifest import Manifest, ManifestPod
from tests.cases import for_each

WRITTEN = Path(__file__).parents[1] / "doctor" / "static" / "written"


def load(name: str) -> Manifest:
    return read.load([str(WRITTEN / name)])


def pod(found: Manifest, name: str) -> ManifestPod:
    return next(each for each in found.pods if each.name == name)


def text(body: str) -> Manifest:
    return read.read_text(dedent(body), "deploy.yaml")


def test_every_kind_of_object_with_a_pod_template_is_read() -> None:
    shapes = {each.name: (each.kind, each.part, each.replicas, each.size) for each in load("lws.yaml").pods}
    assert shapes == {
        "prefill/leader": ("LeaderWorkerSet", "leader", 2, 2),
        "prefill/worker": ("LeaderWorkerSet", "worker", 2, 2),
        "decode": ("Deployment", "", 1, None),
        "router": ("Deployment", "", None, None),
    }
    shapes = {each.name: (each.kind, each.part, each.replicas, each.size) for each in load("rbg.yaml").pods}
    assert shapes == {
        "pd/router": ("RoleBasedGroup", "", 1, None),
        "pd/prefill": ("RoleBasedGroup", "", 2, 1),
        "pd/decode": ("RoleBasedGroup", "", 4, None),
    }


def test_a_template_says_where_it_stands_and_what_is_around_it() -> None:
    leader = pod(load("lws.yaml"), "prefill/leader")
    (container,) = leader.containers
    words = {word.text: word.line for word in container.argv}
    assert words["--model-path=/models/deepseek"] == 24
    assert words["mlx5_bond_0,mlx5_bond_1"] == 33
    assert (container.image, container.image_line) == ("lmsysorg/sglang:latest", 19)
    assert [(said.name, said.value, said.line) for said in container.env] == [
        ("MC_TE_METRIC", "true", 45),
        ("NODE_IP", None, 46),
    ]
    assert [(probe.purpose, probe.how, probe.target, probe.failures) for probe in container.probes] == [
        ("readiness", "tcpSocket", "30000", 3)
    ]
    assert container.gpus == 8
    assert (leader.host_network, leader.dns_policy, leader.grace) == (True, "ClusterFirstWithHostNet", None)
    assert leader.labels == {"role": "prefill-leader"}


def test_a_shells_text_is_taken_apart_with_its_exports_and_lines() -> None:
    (container,) = pod(load("lws.yaml"), "decode").containers
    assert container.shell
    words = {word.text: word.line for word in container.argv}
    assert words["--disaggregation-mode"] == 74
    assert words["32"] == 74
    assert words["$(hostname -i)"] == 75
    assert [(said.name, said.value, said.line) for said in container.env] == [("MC_TE_METRIC", "true", 71)]


def test_services_are_found_alone_and_in_lists() -> None:
    found = {each.name: (each.ports, each.headless, each.selector) for each in load("lws.yaml").services}
    assert found == {
        "prefill": ((30000,), False, {"role": "prefill-leader"}),
        "decode": ((30000,), True, {"role": "decode"}),
    }


def test_a_script_is_one_pod_whose_commands_share_the_host() -> None:
    (script,) = load("start.sh").pods
    assert script.kind == "script"
    assert script.host_network
    assert [container.argv[0].line for container in script.containers] == [8, 10, 12, 15]
    assert {said.name for said in script.containers[0].env} == {
        "MODEL",
        "SGLANG_DISAGGREGATION_WAITING_TIMEOUT",
        "CUDA_VISIBLE_DEVICES",
    }


def test_a_leaderless_group_has_no_followers() -> None:
    found = text(
        """
        kind: LeaderWorkerSet
        metadata: {name: p}
        spec:
          leaderWorkerTemplate:
            workerTemplate:
              spec:
                containers: [{name: c, command: [python3, -m, sglang.launch_server]}]
        """
    )
    assert [each.part for each in found.pods] == [""]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("#!/bin/sh\npython -m sglang.launch_server\n", "script"),
        ("python -m sglang_router.launch_router --pd-disaggregation\n", "script"),
        ("apiVersion: v1\nkind: Pod\n", "manifest"),
        ("# a chart\n---\nkind: List\n", "manifest"),
        ("version: pdctl/v1\nroles: {}\n", "topology"),
        ("roles: {prefill: {}, decode: {}}\n", "topology"),
        ("echo hello\n", ""),
        ("", ""),
        ("x: 1\n", ""),
    ],
)
def test_what_a_file_is_is_told_by_what_stands_in_it(body: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "any.txt"
    file.write_text(body)
    assert read.sort(str(file)) == said


def test_what_is_no_file_is_nothing() -> None:
    assert read.sort("no/such/file") == ""
    assert read.sort("-") == ""


@pytest.mark.parametrize(
    ("body", "said", "fix"),
    [
        (b"kind: Pod\nspec: {{ .Values.x }\n", "1 problem in any.yaml", "helm template"),
        (b"kind: Pod\nspec: " + b"[" * 300_000, "any.yaml:2: nested more than 100 deep", "is this the right file"),
        (b"kind: Pod\n\0", "is a binary file", "name a YAML file"),
        (b"kind: Service\n", "starts an SGLang engine or a router", "sglang.launch_server"),
        (b"kind: Pod\n" + b"#" * (9 << 20), "is larger than 8 MiB", "is this a manifest"),
    ],
)
def test_a_file_that_cannot_be_is_refused_with_place_and_fix(
    body: bytes, said: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("any.yaml").write_bytes(body)
    with pytest.raises(PdctlError) as caught:
        read.load(["any.yaml"])
    assert caught.value.exit_code is ExitCode.USAGE
    assert said in caught.value.message
    assert fix in caught.value.fix


def test_a_missing_file_is_named() -> None:
    with pytest.raises(UsageError, match=r"no/such\.yaml cannot be read: no such file"):
        read.load(["no/such.yaml"])


@for_each(
    "body",
    [
        "spec: {containers: [{command: [python3, -m, sglang.launch_server, --port]}]}",
        "spec: {containers: [{name: 1, image: [x], env: {a: b}, command: {a: 1}, args: [[sglang.launch_server]]}]}",
        "spec: {containers: [null, 7, {command: [sh, -c]}]}\nitems: 3",
        "kind: List\nitems: [null, 1, {kind: Service}]",
        "&a [*a]",
        "a: &x {b: *x, <<: *x}",
        "- &a {containers: [{command: [smg, launch]}]}\n- *a\n- *a",
        "? [complex, key]\n: {containers: []}",
        "metadata: {name: ~}\nspec: {replicas: many, containers: [{command: [smg, launch]}]}",
    ],
)
def test_yaml_of_any_shape_does_no_harm(body: str) -> None:
    found = read.read_text(f"kind: Thing\n---\n{body}\n", "x.yaml")
    assert all(container.argv for each in found.pods for container in each.containers)


def test_an_alias_bomb_ends() -> None:
    lines = ["a0: &a0 {containers: [{command: [smg, launch]}]}"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    assert len(text("kind: Thing\n" + "\n".join(lines)).pods) == 1


def test_docker_runs_a_router_by_its_image_alone() -> None:
    flags = "--pd-disaggregation --prefill http://p:30000 8998 --decode http://d:30001"
    line = f"docker run --rm --name smg -v /srv/smg:/smg --network host lmsysorg/sgl-model-gateway:v0.3.2 {flags}"
    (pod,) = read.read_text(f"#!/bin/sh\n{line} &\n{line.replace('--rm', '--entrypoint sleep')}\n", "run.sh").pods
    (container,) = pod.containers
    started = program(container.argv)
    assert started is not None
    assert (started.kind, [word.text for word in started.flags]) == ("sglang-router", flags.split())
