"""What manifests say is what the plan says, and what keeps a deployment alive in a cluster."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from pdctl.errors import UsageError
from pdctl.layout.planner import plan_topology
from pdctl.manifests.kubernetes_rules import templates
from pdctl.manifests.write.objects import BOOTSTRAP_PORT, stream
from pdctl.manifests.write.rendering import Rendering
from pdctl.topology.resolve import load
from tests.kubernetes.conftest import FLAVOURS, NAMES, Render

OBJECTS = {"disaggregatedset": "DisaggregatedSet", "rbg": "RoleBasedGroup", "lws": "LeaderWorkerSet"}


def of_kind(made: Rendering, kind: str) -> list[dict[str, Any]]:
    return [each for each in made.objects if each["kind"] == kind]


def engines(made: Rendering) -> dict[str, dict[str, Any]]:
    """The pod template of each role; of several the leader's."""
    found: dict[str, dict[str, Any]] = {}
    for each in made.objects:
        if each["kind"] in OBJECTS.values():
            for _, template in templates(each):
                found.setdefault(template["metadata"]["labels"]["app.kubernetes.io/component"], template)
    return found


def words(template: dict[str, Any]) -> list[str]:
    (container,) = template["spec"]["containers"]
    return [*container["command"], *container["args"]]


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("name", NAMES)
def test_pods_are_started_with_the_plans_commands(rendered: Render, name: str, flavour: str) -> None:
    """Each node's own command comes out when the variables get the values that the operator gives that pod."""
    made = rendered(name, flavour=flavour)
    prefix = "RBG_LWP" if flavour == "rbg" else "LWS"
    for role, template in engines(made).items():
        for one in made.plan.instances:
            if one.role != role:
                continue
            for command in one.commands:
                env = {f"$({prefix}_WORKER_INDEX)": str(command.node), f"$({prefix}_LEADER_ADDRESS)": one.address}
                given = [re.sub(r"\$\(\w+\)", lambda found, env=env: env[found[0]], word) for word in words(template)]
                wanted = list(command.argv)
                if one.serving.kind == "embedded":
                    wanted[0] = "python"
                    wanted[wanted.index("--port") + 1] = str(one.http_port)
                assert given == wanted


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("name", NAMES)
def test_the_same_topology_gives_the_same_text(rendered: Render, name: str, flavour: str) -> None:
    first, second = stream(rendered(name, flavour=flavour).objects), stream(rendered(name, flavour=flavour).objects)
    assert first == second
    assert tuple(yaml.safe_load_all(first)) == rendered(name, flavour=flavour).objects


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_groups_have_the_plans_sizes(rendered: Render, flavour: str) -> None:
    made = rendered("wide", flavour=flavour)
    if flavour == "lws":
        sizes = {each["metadata"]["name"]: each["spec"] for each in of_kind(made, "LeaderWorkerSet")}
        found = {name: (spec["replicas"], spec["leaderWorkerTemplate"]["size"]) for name, spec in sizes.items()}
        assert found == {"deepseek-v3-wide-prefill": (2, 2), "deepseek-v3-wide-decode": (1, 4)}
        return
    (one,) = of_kind(made, OBJECTS[flavour])
    roles = {role["name"]: role for role in one["spec"]["roles"]}
    if flavour == "rbg":
        found = {name: (role["replicas"], role["leaderWorkerPattern"]["size"]) for name, role in roles.items()}
    else:
        specs = {name: role["spec"] for name, role in roles.items()}
        found = {name: (spec["replicas"], spec["leaderWorkerTemplate"]["size"]) for name, spec in specs.items()}
    assert found == {"prefill": (2, 2), "decode": (1, 4)}


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_name_to_each_leader_and_its_bootstrap_port(rendered: Render, flavour: str) -> None:
    made = rendered("qwen", flavour=flavour)
    services = {each["metadata"]["name"]: each["spec"] for each in of_kind(made, "Service")}
    assert set(services) == {"qwen-prefill-0", "qwen-prefill-1", "qwen-decode-0", "qwen-router"}
    assert {one.address for one in made.plan.instances} < set(services)
    leader, number = {
        "rbg": ("rbg.workloads.x-k8s.io/component-index", "rbg.workloads.x-k8s.io/role-instance-index")
    }.get(flavour, ("leaderworkerset.sigs.k8s.io/worker-index", "leaderworkerset.sigs.k8s.io/group-index"))
    for name, spec in services.items():
        if name == "qwen-router":
            assert {port["name"]: port["port"] for port in spec["ports"]} == {"http": 8000, "metrics": 29000}
            continue
        assert spec["clusterIP"] == "None"
        assert spec["publishNotReadyAddresses"] is True  # a busy prefill must still be found by its decodes
        assert spec["selector"][leader] == "0"
        assert spec["selector"][number] == name.rpartition("-")[2]
        ports = {port["name"]: port["port"] for port in spec["ports"]}
        assert ports == ({"http": 30000, "bootstrap": 8998} if "prefill" in name else {"http": 30000})


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_prefill_pods_tell_the_router_their_bootstrap_port(rendered: Render, flavour: str) -> None:
    pods = engines(rendered("qwen", "ports.bootstrap=9100", flavour=flavour))
    assert pods["prefill"]["metadata"]["annotations"] == {BOOTSTRAP_PORT: "9100"}
    assert "annotations" not in pods["decode"]["metadata"]


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_the_router_looks_for_leaders_only(rendered: Render, flavour: str) -> None:
    made = rendered("qwen", flavour=flavour)
    (router,) = of_kind(made, "Deployment")
    text = " ".join(words(router["spec"]["template"]))
    leader = (
        "rbg.workloads.x-k8s.io/component-index" if flavour == "rbg" else "leaderworkerset.sigs.k8s.io/worker-index"
    )
    for role in ("prefill", "decode"):
        wanted = f"--{role}-selector app.kubernetes.io/component={role} app.kubernetes.io/instance=qwen "
        assert wanted in text
    assert text.count(f"{leader}=0") == 2
    assert "--service-discovery-port 30000 --service-discovery-namespace llm" in text
    assert "http://" not in text
    (rights,) = of_kind(made, "Role")
    assert rights["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    assert router["spec"]["template"]["spec"]["serviceAccountName"] == rights["metadata"]["name"]


def test_a_router_that_is_given_addresses_gets_one_to_each_instance(rendered: Render) -> None:
    made = rendered("qwen", "targets.kubernetes.discovery=urls")
    (router,) = of_kind(made, "Deployment")
    text = " ".join(words(router["spec"]["template"]))
    for number in (0, 1):
        assert f"--prefill http://qwen-prefill-{number}:30000 8998" in text
    assert "--decode http://qwen-decode-0:30000" in text
    assert not of_kind(made, "Role")
    assert "serviceAccountName" not in router["spec"]["template"]["spec"]


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_liveness_is_not_readiness(rendered: Render, flavour: str) -> None:
    """A server that loads or is blocked by its peer is not killed; only a closed port is."""
    made = rendered("qwen", "readiness.timeout=20m", "readiness.path=/v1/models", flavour=flavour)
    (container,) = engines(made)["decode"]["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/v1/models"
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == 1200
    assert container["livenessProbe"]["tcpSocket"] == {"port": "http"}
    assert container["livenessProbe"]["periodSeconds"] * container["livenessProbe"]["failureThreshold"] >= 60


def test_workers_answer_health_alone(rendered: Render) -> None:
    """sglang's nodes other than the first know no path but /health."""
    made = rendered("qwen", "readiness.path=/v1/models", flavour="lws")
    decode = next(each for each in of_kind(made, "LeaderWorkerSet") if each["metadata"]["name"] == "qwen-decode")
    template = decode["spec"]["leaderWorkerTemplate"]
    paths = {
        key: template[key]["spec"]["containers"][0]["readinessProbe"]["httpGet"]["path"]
        for key in ("leaderTemplate", "workerTemplate")
    }
    assert paths == {"leaderTemplate": "/v1/models", "workerTemplate": "/health"}
    alike = rendered("qwen", flavour="lws")
    for each in of_kind(alike, "LeaderWorkerSet"):
        assert "leaderTemplate" not in each["spec"]["leaderWorkerTemplate"]  # one template cannot drift apart


def test_no_probes_when_none_are_wanted(rendered: Render) -> None:
    text = stream(rendered("qwen", "targets.kubernetes.probes=false").objects)
    assert "Probe" not in text


def test_resources_devices_memory_and_place(rendered: Render) -> None:
    pods = engines(rendered("qwen"))
    for role, gpus in (("prefill", "2"), ("decode", "8")):
        spec = pods[role]["spec"]
        (container,) = spec["containers"]
        assert container["resources"]["limits"] == {"nvidia.com/gpu": gpus, "rdma/ib": "1"}
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert container["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
        assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
        assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}} in spec["volumes"]
        assert spec["nodeSelector"] == {"node.kubernetes.io/instance-type": "h100-8"}
        assert spec["terminationGracePeriodSeconds"] >= 180  # what sglang-router waits for requests in flight


def test_ranks_on_the_cpu_ask_for_no_gpu(rendered: Render) -> None:
    made = rendered("rehearsal")
    for template in engines(made).values():
        (container,) = template["spec"]["containers"]
        assert "resources" not in container


def test_ranks_are_reached_at_their_pods_address(rendered: Render) -> None:
    for name in ("qwen", "rehearsal"):
        for template in engines(rendered(name)).values():
            first, second = template["spec"]["containers"][0]["env"][:2]
            assert first == {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
            assert second == {"name": "SGLANG_HOST_IP", "value": "$(POD_IP)"}


def test_secrets_stand_there_by_name_only(rendered: Render) -> None:
    for template in engines(rendered("qwen")).values():
        (container,) = template["spec"]["containers"]
        secret = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}
        assert secret in container["env"]


def test_the_hosts_network_and_what_goes_with_it(rendered: Render) -> None:
    made = rendered("qwen", "targets.kubernetes.host-network=true")
    for template in engines(made).values():
        assert template["spec"]["hostNetwork"] is True
        assert template["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert any("6 GPUs stay idle" in caution.message for caution in made.cautions)


def test_storage_for_checkpoints(rendered: Render) -> None:
    volumes = "targets.kubernetes.volumes={weights: {mount: /models, claim: qwen}, cache: {mount: /c, host-path: /d}}"
    spec = engines(rendered("qwen", volumes))["prefill"]["spec"]
    assert {"name": "weights", "persistentVolumeClaim": {"claimName": "qwen", "readOnly": True}} in spec["volumes"]
    assert {"name": "cache", "hostPath": {"path": "/d", "type": "Directory"}} in spec["volumes"]
    assert {"name": "weights", "mountPath": "/models", "readOnly": True} in spec["containers"][0]["volumeMounts"]


def test_a_gang_needs_a_scheduler_that_knows_of_it(rendered: Render) -> None:
    (alone,) = of_kind(rendered("qwen", flavour="rbg"), "RoleBasedGroup")
    assert "annotations" not in alone["metadata"]
    made = rendered("qwen", "targets.kubernetes.scheduler=volcano", flavour="rbg")
    (ganged,) = of_kind(made, "RoleBasedGroup")
    assert ganged["metadata"]["annotations"] == {"rbg.workloads.x-k8s.io/group-gang-scheduling": "true"}
    assert engines(made)["prefill"]["spec"]["schedulerName"] == "volcano"


def test_a_dollar_sign_of_the_user_stays_one(rendered: Render) -> None:
    made = rendered("qwen", "roles.decode.args.tool-call-parser=$$(date)")
    assert "$$(date)" in words(engines(made)["decode"])


REFUSED = (
    (("targets.kubernetes.image=null",), "targets.kubernetes.image is not set"),
    (("targets.kubernetes.image=lmsysorg/sglang",), "lmsysorg/sglang is not pinned"),
    (("targets.kubernetes.image=lmsysorg/sglang:latest",), "lmsysorg/sglang:latest is not pinned"),
    (("targets.kubernetes.image=registry:5000/sglang",), "registry:5000/sglang is not pinned"),
    (("engine.env.HF_TOKEN=hf_abc",), "engine.env.HF_TOKEN would stand in the manifests"),
    (("roles.decode.env.AWS_SECRET_ACCESS_KEY=x",), "roles.decode.env.AWS_SECRET_ACCESS_KEY would stand"),
    (("targets.kubernetes.volumes.w.mount=/w",), "targets.kubernetes.volumes.w needs one of `claim` and `host-path`"),
    (
        ("router.kind=pdctl", "router.policy=round_robin", "targets.kubernetes.discovery=pods"),
        "the pdctl router cannot",
    ),
    (("name=2p1d",), "2p1d begins with a digit"),
)


@pytest.mark.parametrize(("sets", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_cannot_be_rendered(rendered: Render, sets: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)) as refused:
        rendered("qwen", *sets)
    assert refused.value.fix.startswith(("--set ", "remove it there, and --set "))


def test_what_may_not_work_is_said(rendered: Render) -> None:
    sets = ("model.path=/models/qwen", "engine.version=0.5.23", "targets.kubernetes.rdma-resource=null")
    codes = [caution.code for caution in rendered("qwen", *sets).cautions]
    assert {"model-not-mounted", "image-release", "no-rdma"} <= set(codes)
    mounted = rendered("qwen", "model.path=/models/qwen", "targets.kubernetes.volumes.m={mount: /models, claim: m}")
    assert "model-not-mounted" not in [caution.code for caution in mounted.cautions]


def test_a_plan_for_hosts_is_not_one_for_pods(file: Any) -> None:
    topology = load([file("qwen")], [], {})
    assert plan_topology(topology).target == "kubernetes"
    assert plan_topology(topology, "pools").instances[0].host_names == ("h100-0",)
