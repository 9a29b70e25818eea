"""Services without pods, ports at which nobody listens, and a router that calls one."""

from __future__ import annotations

from pdctl.catalogue.entry import Severity
from pdctl.doctor.check import Facts
from tests.cases import for_each
from tests.doctor.written import DECODE, ENGINE, LAUNCH_ROUTER, PREFILL, found, manifest, pods, script

REDIS = """---
apiVersion: apps/v1
kind: Deployment
metadata: {name: redis}
spec:
  template:
    metadata: {labels: {app: redis}}
    spec: {containers: [{name: redis, image: redis:7}]}
"""
TOWARDS = (
    "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {0}}}\nspec: {{selector: {1}, ports: [{{port: 6379}}]}}\n"
)


def test_a_selector_that_no_pod_has() -> None:
    (one,) = found(pods(selector="prefil"), "PD221")
    assert (one.instance, one.severity) == ("prefill", Severity.ERROR)
    assert one.headline == (
        "Service prefill selects no pod: its selector is app: prefil, and the pods have app: prefill (prefill)"
    )
    assert one.fix == "set the selector of Service prefill to app: prefill"
    assert one.evidence[0].startswith("deploy.yaml:")


@for_each(
    ("more", "told"),
    [
        (REDIS + TOWARDS.format("cache", "{app: redis}"), False),  # there, and no business of ours
        (TOWARDS.format("cache", "{app: redis}"), False),  # of other files
        (TOWARDS.format("decode-metrics", "{app: decod}"), True),  # mistyped
        (TOWARDS.format("pod-0", '{"example.com/added-by-a-controller": x}'), False),
        (TOWARDS.format("external", "{}"), False),  # endpoints are written by hand
    ],
    ids=["known", "elsewhere", "mistyped", "added", "none"],
)
def test_services_of_something_else_are_left_alone(more: str, told: bool) -> None:
    assert [one.severity for one in found(pods(more=more), "PD221")] == [Severity.WARNING] * told


@for_each(
    ("ports", "container", "told"),
    [
        ("[{port: 30000}, {port: 8998}]", "", []),
        ("[{port: 80, targetPort: 30000}, {port: 8998}]", "", []),
        ("[{port: 30000, targetPort: 30001}, {port: 8998}]", "", ["30001"]),
        ("[{port: 30000}, {port: 8998, targetPort: 8997}]", "", ["8997"]),
        ("[{port: 30000, targetPort: http}, {port: 8998}]", "", ["http"]),
        ("[{port: 30000, targetPort: http}, {port: 8998}]", "ports: [{name: http, containerPort: 30000}]", []),
        # A declaration opens nothing, a flag does.
        ("[{port: 30000}, {port: 8998}, {port: 9100}]", "ports: [{containerPort: 9100}]", ["9100"]),
        ("[{port: 30000}, {port: 8998}, {port: 20000}]", 'env: [{name: A, value: "h:20000"}]', []),
    ],
)
def test_a_target_port_must_be_opened_by_somebody(ports: str, container: str, told: list[str]) -> None:
    assert [one.observed for one in found(pods(ports=ports, container=container), "PD222")] == told


def test_a_port_that_hangs_on_a_variable_is_nobodys_mistake() -> None:
    assert not found(pods(prefill="--port $(PORT)", ports="[{port: 30007}, {port: 8998}]"), "PD222")


def test_a_headless_service_passes_nothing_on() -> None:
    assert not found(pods(ports="[{port: 1, targetPort: 2}]", service=", clusterIP: None"), "PD222")


def test_a_router_calls_a_port_that_the_service_publishes() -> None:
    router = "--prefill http://prefill:30009 8998 --decode http://decode:30000"
    (one,) = found(pods(router=router), "PD223")
    assert one.headline == "the router calls http://prefill:30009, but Service prefill publishes 30000 and 8998"
    assert one.fix == "give the router http://prefill:30000 instead"
    behind = pods(router=router, ports="[{port: 30009, targetPort: 30000}, {port: 8998}]")
    assert not found(behind, "PD223")


def started(router: str, *more: str) -> Facts:
    return script(f"{ENGINE} {PREFILL}", f"{ENGINE} {DECODE}", *more, f"{LAUNCH_ROUTER} --pd-disaggregation {router}")


def test_a_router_of_a_script_calls_ports_at_which_engines_listen() -> None:
    right = "--prefill http://127.0.0.1:30000 8998 --decode http://127.0.0.1:30001"
    assert not found(started(right), "PD223")
    (one,) = found(started(right.replace("30001", "30005")), "PD223")
    assert one.headline == "the router calls http://127.0.0.1:30005, but decode:30001 listens on 30001"
    assert one.fix == "give the router http://127.0.0.1:30001 instead"
    elsewhere = right + " --decode http://127.0.0.1:30007"  # more decodes than are started here
    assert not found(started(elsewhere), "PD223")


@for_each(
    ("first", "second", "told"),
    [
        ("--host 10.0.0.1", "--host 10.0.0.2", False),
        ("--host 10.0.0.1", "--host 10.0.0.1", True),
        ("", "--host 10.0.0.1", False),  # the default is loopback
        ("", "--host localhost", True),
        ("--host 0.0.0.0", "--host 10.0.0.1", True),
        ("--host 10.0.0.1", "--host $HOST", True),
    ],
)
def test_one_port_on_two_addresses_is_no_collision(first: str, second: str, told: bool) -> None:
    own = "--disaggregation-bootstrap-port 8999"
    facts = script(f"{ENGINE} {PREFILL} {first}", f"{ENGINE} {PREFILL} {own} {second}")
    assert bool(found(facts, "PD218")) is told
    shared = script(f"{ENGINE} {PREFILL} {first}", f"{ENGINE} {PREFILL} --port 30001 {second}")
    assert bool(found(shared, "PD204")) is told


WIDE = "--host 0.0.0.0"
PROBE = "readinessProbe: {{httpGet: {{path: /health, port: 30000{}}}}}"


@for_each(
    ("flags", "container", "more", "told"),
    [
        ("", "", {}, "Service prefill"),
        ("--host localhost", "", {}, "Service prefill"),
        ("--host 127.0.0.1", "", {"ports": "[{port: 80, targetPort: 30000}, {port: 8998}]"}, "Service prefill"),
        ("", "", {"ports": "[{port: 8998}]"}, "Service prefill"),  # the bootstrap server listens there too
        ("", "", {"service": ", clusterIP: None"}, "Service prefill"),
        (WIDE, "", {}, ""),
        ("--host $(POD_IP)", "", {}, ""),
        ("--hosst 0.0.0.0", "", {}, ""),  # PD318 says what it means
        ("", "", {"ports": "[{port: 9100}]", "router": "--prefill http://127.0.0.1:1"}, ""),
        ("", "", {"selector": "other"}, ""),
        ("", PROBE.format(""), {"selector": "other"}, "the kubelet with its readinessProbe"),
        ("", PROBE.format(", host: 127.0.0.1"), {"selector": "other", "spec": "hostNetwork: true"}, ""),
        ("", PROBE.format(""), {"selector": "other", "spec": "hostNetwork: true"},
         "the kubelet with its readinessProbe"),
        ("", "livenessProbe: {exec: {command: [curl, localhost:30000]}}", {"selector": "other"}, ""),
        (WIDE, PROBE.format(""), {}, ""),
    ],
)  # fmt: skip
def test_a_pod_that_others_call_listens_on_more_than_loopback(
    flags: str, container: str, more: dict[str, str], told: str
) -> None:
    facts = pods(flags, WIDE, container=container, **more)
    assert [each.expected for each in found(facts, "PD224")] == [told] * bool(told)


def test_the_flag_that_is_missing_is_said() -> None:
    (one,) = found(pods(decode=WIDE), "PD224")
    assert one.headline == "prefill listens on 127.0.0.1 alone, where Service prefill cannot connect"
    assert one.fix == "start prefill with --host 0.0.0.0"
    assert "no --host, so 127.0.0.1" in one.evidence[0]
    (old,) = found(pods(decode=WIDE, image="lmsysorg/sglang:v0.5.10"), "PD224")
    assert old.fix == "start prefill with --host '$(POD_IP)'"  # such a release would register 0.0.0.0 (PD212)


SIDECAR = """---
apiVersion: v1
kind: Pod
metadata: {{name: p, labels: {{app: p}}}}
spec:
  containers:
    - {{name: engine, image: "i:1", command: [python3, -m, sglang.launch_server, --disaggregation-mode, decode]}}
    - {{name: proxy, image: "envoy:1"{}}}
---
apiVersion: v1
kind: Service
metadata: {{name: p}}
spec: {{selector: {{app: p}}, ports: [{{port: 80, targetPort: {}}}]}}
"""


@for_each(
    ("ports", "target", "told"),
    [
        (", ports: [{containerPort: 8080}]", "8080", False),  # the proxy's
        (", ports: [{containerPort: 8080}]", "30000", True),
        (", ports: [{containerPort: 30000}]", "30000", False),
        ("", "30000", False),  # who knows what it listens on
    ],
)
def test_a_proxy_beside_an_engine_reaches_its_loopback(ports: str, target: str, told: bool) -> None:
    assert bool(found(manifest(SIDECAR.format(ports, target)), "PD224")) is told


def test_containers_and_hosts_have_loopbacks_of_their_own() -> None:
    compose = "services:\n" + "".join(
        f"  {name}: {{{{image: i, command: {command}{{}}}}}}\n"
        for name, command in (
            ("prefill", f"{ENGINE} {PREFILL}"),
            ("decode", f"{ENGINE} {DECODE}"),
            ("router", f"{LAUNCH_ROUTER} --prefill http://prefill:30000 8998 --decode http://decode:30001"),
        )
    )
    (both,) = found(manifest(compose.format("", "", "")), "PD224")
    assert both.headline == "prefill and decode listen on 127.0.0.1 alone, where the router cannot connect"
    shared = ", network_mode: host"
    local = compose.replace("//prefill", "//127.0.0.1").replace("//decode", "//localhost")
    assert not found(manifest(local.format(shared, shared, shared)), "PD224")
    router = f"{LAUNCH_ROUTER} --pd-disaggregation --prefill http://10.0.0.1:30000 8998 --decode http://h2:30001"
    apart = script(f"ssh 10.0.0.1 {ENGINE} {PREFILL}", f"ssh h2 {ENGINE} {DECODE}", router)
    assert [each.fix for each in found(apart, "PD224")] == [
        "start prefill:30000 with --host 10.0.0.1", "start decode:30001 with --host 0.0.0.0"
    ]  # fmt: skip
    assert not found(started("--prefill http://127.0.0.1:30000 8998 --decode http://127.0.0.1:30001"), "PD224")


def test_a_router_on_loopback_behind_a_service() -> None:
    service = "---\nkind: Service\nmetadata: {name: r}\nspec: {selector: {app: router}, ports: [{port: 8000}]}\n"
    flags = "--prefill http://prefill:30000 8998 --decode http://decode:30000 --port 8000"
    told = found(pods(WIDE, WIDE, router=f"{flags} --host 127.0.0.1", more=service), "PD224")
    assert [each.instance for each in told] == ["router"]
    for host in ("", WIDE):  # the default differs by router
        assert not found(pods(WIDE, WIDE, router=f"{flags} {host}", more=service), "PD224")
