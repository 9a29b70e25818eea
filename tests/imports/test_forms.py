"""Compose files, recipes and manifests: what each says besides the engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdctl.errors import UsageError
from pdctl.imports.found import Sort
from pdctl.imports.recipe import duration
from tests.cases import for_each
from tests.imports.made import DECODE, PREFILL, imported

WRITTEN = Path(__file__).parent / "written"
PUBLISHED = Path(__file__).parents[1] / "doctor" / "static" / "written"


def text(name: str, where: Path = WRITTEN) -> str:
    return (where / name).read_text(encoding="utf-8")


def test_a_compose_file() -> None:
    made = imported(text("compose.yml"), names=("compose.yml",))
    assert made.values["model"] == {"path": "Qwen/Qwen3-8B"}
    assert made.values["engine"] == {
        "kind": "sglang", "version": "0.5.18", "traceable": False, "env": {"GLOO_SOCKET_IFNAME": "bond0"}
    }  # fmt: skip
    assert made.values["roles"] == {
        "prefill": {"instances": 1, "tp": 2},
        "decode": {"instances": 1, "tp": 2, "env": {"MC_TE_METRIC": "1"}},
    }
    assert made.values["router"] == {
        "kind": "sglang-router", "host": "0.0.0.0", "port": 8000, "policy": "round_robin"
    }  # fmt: skip
    assert made.said(Sort.LEFT_OUT) == [
        "compose.yml:8: variable HF_TOKEN=${HF_TOKEN}: nobody says what that is; give it with --var NAME=VALUE",
        "compose.yml:23: image lmsysorg/sglang:v0.5.18: on this machine pdctl starts the SGLang that is installed",
    ]
    assert not made.said(Sort.SUSPECT)
    assert [one.http_port for one in made.plan().instances] == [30000, 30001]


def test_a_recipe() -> None:
    made = imported(text("recipe.yaml"), names=("recipe.yaml",))
    assert made.values["pools"] == {"default": {"gpus-per-host": 8, "gpu": "h100"}}
    assert made.values["roles"] == {
        "prefill": {"instances": 1, "tp": 4, "env": {"A": "1"}},
        "decode": {"instances": 2, "tp": 16, "dp": 16, "mem-fraction": 0.83, "args": {"cuda-graph-bs": [1, 2, 4]}},
    }
    assert made.values["router"] == {
        "kind": "sglang-router", "port": 8000, "policy": "random", "args": {"log-level": "info"}
    }  # fmt: skip
    assert made.values["workload"] == {"isl": 8192, "osl": 1024}
    assert made.values["readiness"] == {"timeout": "600s"}
    assert made.values["targets"] == {
        "slurm": {
            "partition": "hopper", "account": "serving", "time": "1590m",
            "container": {"image": "lmsysorg/sglang:v0.5.18-cu129"},
        }
    }  # fmt: skip
    assert made.said(Sort.LEFT_OUT) == [
        "recipe.yaml:43: `sweep`: pdctl has no such setting",
        "recipe.yaml:17: enable_multiple_frontends: pdctl starts one router",
        "recipe.yaml:19: slurm.qos",
        "recipe.yaml:31: --chunked-prefill-size ${chunk}: nobody says what that is; give it with --var NAME=VALUE",
    ]
    assert made.said(Sort.ASSUMED)[0] == (
        "recipe.yaml:4: model.path deepseek: an alias in the cluster's own file; write what it is"
    )
    assert [(one.name, one.nnodes) for one in made.plan().instances] == [
        ("prefill-0", 1), ("decode-0", 2), ("decode-1", 2)
    ]  # fmt: skip


@for_each(
    ("said", "seconds"),
    [
        ("30", 1800),
        ("5:30", 330),
        ("02:00:00", 7200),
        ("1-0", 86400),
        ("1-02:30", 95400),
        ("2-0:0:5", 172805),
        ("x", None),
    ],
)
def test_slurms_times(said: str, seconds: int | None) -> None:
    assert duration(said) == seconds


@for_each(
    ("body", "said"),
    [
        ("backend: {type: vllm}", "its backend is vllm, and only SGLang can be imported"),
        ("backend: {sglang_config: {aggregated: {tp-size: 8}}}", "it serves without disaggregation"),
        ("backend: {}", "it has no backend.sglang_config"),
    ],
)
def test_recipes_of_others_are_refused(body: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        imported(f"name: x\nmodel: {{}}\nresources: {{}}\n{body}\n")


def test_groups_of_leaders_and_workers() -> None:
    made = imported(text("published-lws.yaml", PUBLISHED), names=("lws.yaml",))
    assert made.values["targets"]["kubernetes"] == {
        "flavour": "lws", "image": "lmsysorg/sglang:latest", "host-network": True, "shm": "64Gi",
        "rdma-resource": {"rdma/ib": 1},
    }  # fmt: skip
    assert "pools" not in made.values
    plan = made.plan()
    assert [(one.name, one.nnodes, one.shape.dp) for one in plan.instances] == [
        ("prefill-0", 2, 16),
        ("decode-0", 2, 16),
    ]
    assert [said.partition(": ")[2] for said in made.said(Sort.SUSPECT)] == [
        "--mem-fraction-static is 0.75 on the workers of a prefill and 0.7 on node 0, whose value is taken",
        "MC_TE_METRIC is true on the workers of a prefill, false on node 0, whose value is taken",
        "no bootstrap port for http://ds-prefill:30000: the router sends null, and a decode puts its own in its place; "
        "pdctl gives the port",
        "image lmsysorg/sglang:latest is not pinned: two pods may run two releases of it",
    ]


def test_storage_and_secrets_come_along() -> None:
    pod = """
    ---
    kind: Deployment
    metadata: {{name: {role}, namespace: serving}}
    spec:
      template:
        spec:
          tolerations: [{{key: gpu, operator: Exists}}]
          volumes:
            - {{name: models, persistentVolumeClaim: {{claimName: weights}}}}
            - {{name: cache, hostPath: {{path: /data/cache}}}}
            - {{name: shm, emptyDir: {{medium: Memory}}}}
          containers:
            - image: lmsysorg/sglang:v0.5.18
              command: [python3, -m, sglang.launch_server, --model-path, /models/m, --disaggregation-mode, {role}]
              env: [{{name: HF_TOKEN, valueFrom: {{secretKeyRef: {{name: hf, key: token}}}}}}]
              volumeMounts:
                - {{name: models, mountPath: /models, readOnly: true}}
                - {{name: cache, mountPath: /cache}}
                - {{name: shm, mountPath: /dev/shm}}
    """
    made = imported("".join(pod.format(role=role) for role in ("prefill", "decode")))
    assert made.values["targets"]["kubernetes"] == {
        "flavour": "disaggregatedset",
        "namespace": "serving",
        "image": "lmsysorg/sglang:v0.5.18",
        "tolerations": ["gpu"],
        "volumes": {
            "models": {"mount": "/models", "claim": "weights", "read-only": True},
            "cache": {"mount": "/cache", "host-path": "/data/cache", "read-only": False},
        },
        "secrets": {"HF_TOKEN": "hf/token"},
    }  # fmt: skip


def test_a_role_based_group_with_a_shared_template() -> None:
    made = imported(text("published-rbg.yaml", PUBLISHED), names=("rbg.yaml",))
    assert made.values["pools"] == {"default": {"gpus-per-host": 1}}
    assert made.values["engine"]["version"] == "0.5.18"
    assert [(one.name, one.nnodes) for one in made.plan().instances] == [
        ("prefill-0", 4), ("prefill-1", 4), ("decode-0", 2), ("decode-1", 2), ("decode-2", 2)
    ]  # fmt: skip
    assert made.values["targets"]["kubernetes"]["router-image"] == "lmsysorg/sglang-router:v0.3.2"
    assert "rbg.yaml:35: the router lists 1 of 2 prefill instances; pdctl lists them all" in made.said(Sort.SUSPECT)


def test_slices_of_a_disaggregated_set_are_instances() -> None:
    made = imported(text("published-disaggregatedset.yaml", PUBLISHED))
    roles = made.values["roles"]
    assert (roles["prefill"]["instances"], roles["decode"]["instances"]) == (2, 4)
    assert made.values["targets"]["kubernetes"]["flavour"] == "disaggregatedset"


@pytest.mark.parametrize("version", ["v1alpha1", "v1beta1"])
def test_a_dynamo_graph(version: str) -> None:
    documents = text("published-dynamo.yaml", PUBLISHED).split("\n---\n")
    made = imported(next(each for each in documents if version in each))
    assert made.values["ports"] == {"bootstrap": 12345}
    assert made.values["pools"] == {"default": {"gpus-per-host": 4}}
    assert made.values["engine"]["env"] == {"GLOO_SOCKET_IFNAME": "eth0"}
    assert [one.nnodes for one in made.plan().instances] == [2, 2]
    assert any("rendered as a disaggregatedset" in said for said in made.said(Sort.CHANGED))


def test_a_router_of_flags_alone_is_imported_by_its_image_and_an_unknown_service_is_named() -> None:
    made = imported(
        f"""
        services:
          prefill: {{image: "lmsysorg/sglang:v0.5.23", command: {PREFILL}}}
          decode: {{image: "lmsysorg/sglang:v0.5.23", command: {DECODE}}}
          spare: {{image: "corp/engine:1", command: --model-path m --disaggregation-mode decode}}
          router:
            image: lmsysorg/sgl-model-gateway:v0.3.2
            command: --pd-disaggregation --policy random --prefill http://prefill:30000 8998 --decode http://decode:30001
        """,
        names=("compose.yml",),
    )
    assert made.values["router"]["policy"] == "random"
    (said,) = [each for each in made.said(Sort.LEFT_OUT) if "spare" in each]
    assert said.startswith("compose.yml:5: spare has flags alone, for the entrypoint of corp/engine:1")
