"""Services without pods, ports at which nobody listens, and a router that calls one."""

from __future__ import annotations

from pdctl.catalogue.entry import Severity
from pdctl.doctor.check import Facts
from tests.cases import for_each
from tests.doctor.written import DECODE, ENGINE, LAUNCH_ROUTER, PREFILL, found, pods, script

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
