"""Services without pods, ports at which nobody listens, and a router that calls one."""

from __future__ import annotations

from pdctl.catalogue.entry import Severity
from pdctl.doctor.check import Facts
from tests.cases import for_each
from tests.doctor.written import DECODE, ENGINE, LAUNCH_ROUTER, PREFILL, doubt, found, manifest, pods, script

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


AT_1 = f"{ENGINE} --model-path m --disaggregation-mode prefill --host 10.0.0.1 --port 30000"
AT_2 = f"{ENGINE} --model-path m --disaggregation-mode decode --host 10.0.0.2 --port 30000"
AT_3 = AT_2.replace("10.0.0.2", "10.0.0.3")


def on_hosts(decodes: str, *engines: str, prefill: str = "http://10.0.0.1:30000 8998") -> Facts:
    router = f"{LAUNCH_ROUTER} --pd-disaggregation --prefill {prefill} {decodes}"
    return script(AT_1, *(engines or (AT_2,)), router)


@for_each(
    ("facts", "told"),
    [
        (on_hosts("--decode http://10.0.0.2:30000"), ""),
        (on_hosts("--decode http://10.0.0.2:30001"), "decode:30000 listens on 30000"),
        (on_hosts("--decode http://10.0.0.2:30000 --decode http://10.0.0.2:30001"), ""),
        (on_hosts("--decode http://10.0.0.2:$PORT"), ""),
        (on_hosts("--decode http://10.0.0.2:30000 --decode http://10.0.0.3:30009", AT_2, AT_3),
         "decode:30000 listens on 30000"),
        (on_hosts("--decode http://10.0.0.2:30000", prefill="http://10.0.0.1:30007 8998"),
         "prefill:30000 listens on 30000"),
    ],
    ids=["right", "wrong port", "one of another script", "variable", "second", "prefill"],
)  # fmt: skip
def test_a_router_of_a_script_calls_the_port_of_an_engine_that_nobody_else_calls(facts: Facts, told: str) -> None:
    assert [one.headline.partition(", but ")[2] for one in found(facts, "PD223")] == [told] * bool(told)


@for_each(
    ("facts", "fixes"),
    [
        (on_hosts("--decode http://10.0.0.2:30000"), []),
        (on_hosts("--decode http://10.0.0.3:30000"),
         ["give the router http://10.0.0.2:30000 instead, or start decode:30000 with --host 10.0.0.3"]),
        (on_hosts("--decode http://10.0.0.2:30000 --decode http://10.0.0.3:30000"), []),
        (on_hosts("--decode http://10.0.0.2:30000 --decode http://10.0.0.4:30000", AT_2, AT_3),
         ["give the router http://10.0.0.3:30000 instead, or start decode:30000 with --host 10.0.0.4"]),
        (on_hosts("--decode http://10.0.0.3:30000", AT_2.replace("10.0.0.2", "0.0.0.0")), []),
        (on_hosts("--decode http://10.0.0.3:30000", AT_2.replace("10.0.0.2", "$HOST")), []),
        (on_hosts("--decode http://node2:30000"), []),
        (on_hosts("--decode $DECODE"), []),
    ],
    ids=["right", "wrong", "one of another script", "second", "wildcard", "variable host", "name", "variable"],
)  # fmt: skip
def test_a_router_of_a_script_calls_an_address_on_which_an_engine_listens(facts: Facts, fixes: list[str]) -> None:
    problems = found(facts, "PD226")
    assert [one.fix for one in problems] == fixes
    assert all("is called by no router" in one.headline for one in problems)


@for_each(
    ("decodes", "flags", "told"),
    [
        ("--decode http://10.0.0.2:30000", "", ["start decode:30000 with --host 10.0.0.2"]),
        ("--decode http://10.0.0.2:30000", "--host 127.0.0.1", ["start decode:30000 with --host 10.0.0.2"]),
        ("--decode http://10.0.0.2:30000", "--host 0.0.0.0", []),
        ("--decode http://10.0.0.2:30001", "", []),
        ("--decode http://127.0.0.1:30000", "", []),
        ("--decode http://127.0.0.1:30000 --decode http://10.0.0.2:30000", "", []),
    ],
    ids=["default", "loopback", "wildcard", "another port", "loopback called", "called already"],
)
def test_an_engine_of_a_script_listens_where_its_router_calls(decodes: str, flags: str, told: list[str]) -> None:
    facts = on_hosts(decodes, AT_2.replace("--host 10.0.0.2", flags))
    problems = found(facts, "PD224")
    assert [one.fix for one in problems] == told
    assert all(one.expected == "an address to which the router can connect" for one in problems)
    assert all(one.evidence[0].startswith("run.sh:3: ") for one in problems)


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
    expected = f"an address to which {told} can connect"
    assert [each.expected for each in found(facts, "PD224")] == [expected] * bool(told)


def test_the_flag_that_is_missing_is_said() -> None:
    (one,) = found(pods(decode=WIDE), "PD224")
    assert one.headline == "prefill listens only on 127.0.0.1, to which Service prefill cannot connect"
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
    assert both.headline == "prefill and decode listen only on 127.0.0.1, to which the router cannot connect"
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


HEADLESS = """---
kind: Service
metadata: {{name: {0}{1}}}
spec: {{selector: {{app: {0}}}, clusterIP: {2}, ports: [{{port: 30000}}]}}
"""
EXTERNAL = "---\nkind: Service\nmetadata: {name: out}\nspec: {type: ExternalName, externalName: a.b}\n"
OBJECT = """---
kind: {kind}
metadata: {{name: {name}{namespace}}}
spec:
  {more}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec: {{{pod}containers: [{{name: c, image: "i:1", command: [{words}]}}]}}
"""


def named(
    prefill: str = "pre-0.pre",
    *,
    kind: str = "StatefulSet",
    more: str = "{replicas: 2, serviceName: pre}",
    cluster_ip: str = "None",
    namespace: str = "",
    router: str = "",
    also: str = "",
    pod: str = "",
) -> Facts:
    """A set of prefills behind a headless Service, a decode behind one, and a router that calls `prefill`."""

    def made(name: str, kind: str, words: str, more: str, namespace: str, pod: str = "") -> str:
        where = f", namespace: {namespace}" if namespace else ""
        inner = more.strip("{}").replace(", ", "\n  ")
        argv = ", ".join(f'"{word}"' for word in words.split())
        text = OBJECT.format(kind=kind, name=name, namespace=where, more=inner, words=argv, pod=pod)
        if kind == "LeaderWorkerSet":
            text = text.replace("  template:", "  leaderWorkerTemplate: &t\n    size: 2\n    workerTemplate:")
            text = text.replace("    metadata: {labels", "     metadata: {labels").replace(
                "    spec: {", "     spec: {"
            )
        return text

    text = made("pre", kind, f"{ENGINE} {PREFILL}", more, namespace)
    text += made("dec", "Deployment", f"{ENGINE} {DECODE}", "{replicas: 1}", namespace)
    decode = f"dec.{namespace}" if router else "dec"
    calls = f"{LAUNCH_ROUTER} --pd-disaggregation --prefill http://{prefill}:30000 8998 --decode http://{decode}:30001"
    text += made("router", "Deployment", calls, "{replicas: 1}", router or namespace, pod)
    where = f", namespace: {namespace}" if namespace else ""
    if cluster_ip:
        text += HEADLESS.format("pre", where, cluster_ip)
    return manifest(text + HEADLESS.format("dec", where, "None") + also)


ELSEWHERE = "namespace: pd"


@for_each(
    ("facts", "told"),
    [
        # Every form that a cluster's DNS has.
        (named("pre"), ""),
        (named("pre."), ""),
        (named("pre-0.pre"), ""),
        (named("pre-1.pre.pd", namespace="pd"), ""),
        (named("pre-1.pre.pd.svc", namespace="pd"), ""),
        (named("pre-1.pre.pd.svc.cluster.local"), ""),
        (named("pre.pd", namespace="pd"), ""),
        (named("pre.pd.svc", namespace="pd"), ""),
        (named("pre.default.svc.cluster.local"), ""),
        (named("pre-0.pre", kind="LeaderWorkerSet", cluster_ip=""), ""),
        (named("pre-1-1.pre", kind="LeaderWorkerSet", cluster_ip=""), ""),
        (named("pre-1.pre-1", kind="LeaderWorkerSet", cluster_ip=""), ""),  # a Service for each group
        (named("10.0.0.1"), ""),
        (named("$(PREFILL)"), ""),
        (named("gpu7", pod="hostAliases: [{ip: 10.0.0.7, hostnames: [gpu7]}], "), ""),
        # None of them.
        (named("prr"), "give the router http://pre:30000 instead"),
        (named("pre-0.prr"), "give the router the host pre-0.pre instead"),
        (named("prr.pd.svc", namespace="pd"), "give the router http://pre:30000 instead"),
        (named("pre-2.pre"), "set replicas of StatefulSet pre to 3"),
        (named("pre-0-2.pre", kind="LeaderWorkerSet", cluster_ip=""), "give the router the host pre-0-1.pre instead"),
        (named("prx-0.pre"), "give the router the host pre-0.pre instead"),
        (named("pre-0.pre", cluster_ip="10.0.0.9"), "set clusterIP of Service pre to None"),
        (named("pre-0.pre", more="{replicas: 2, serviceName: prefills}"),
         "give the router the host pre-0.prefills instead"),
        (named("pre", namespace="pd", router="web"), "give the router the host pre.pd instead"),
        (named("pre.web", namespace="pd", router="web"), "give the router the host pre.pd instead"),
        (named("pre", cluster_ip=""), "give the router the address of pre instead"),
    ],
)  # fmt: skip
def test_a_router_calls_hosts_that_are_there(facts: Facts, told: str) -> None:
    assert [each.fix for each in found(facts, "PD226")] == [told] * bool(told)


@for_each(
    ("facts", "why"),
    [
        (named("pre.other", namespace="pd"), "namespace other is not in these files"),
        (named("prr.other.svc", namespace="pd"), "namespace other is not in these files"),
        (named("pre-0.pre", cluster_ip=""),
         "no Service of these files is named pre; name the file that has it as well"),
        (named("prefill.example.com"), "prefill.example.com is not a name of the cluster"),
        (named("out", also=EXTERNAL),
         "Service out is an ExternalName: it leads out of these files"),
        (named("prr", kind="StormService"),
         "what Services a StormService creates, and by which names, is its operator's choice"),
        (pods(router="--prefill http://prefill:30000 1 --prefill http://second:30000 2 --decode http://decode:30000"),
         "no Service of these files is named second; name the file that has it as well"),
    ],
)  # fmt: skip
def test_a_host_of_other_files_is_unknown(facts: Facts, why: str) -> None:
    assert doubt(facts, "PD226") == why


def composed(prefill: str, router: str = "", top: str = "", service: str = "") -> Facts:
    calls = f"{LAUNCH_ROUTER} --prefill http://{prefill}:30000 8998 --decode http://dec:30001"
    return manifest(
        f"services:\n  pre: {{image: i, command: {ENGINE} {PREFILL}{service}}}\n"
        f"  dec: {{image: i, command: {ENGINE} {DECODE}}}\n  front: {{image: nginx}}\n"
        f"  router: {{image: i, command: {calls}{router}}}\n{top}",
        "compose.yaml",
    )


@for_each(
    ("facts", "told"),
    [
        (composed("pre"), ""),
        (composed("front"), ""),  # whatever it passes on to
        (composed("p0", service=", container_name: p0"), ""),
        (composed("p0", service=", networks: {default: {aliases: [p0]}}"), ""),
        (composed("p0", router=", extra_hosts: ['p0:10.0.0.1']"), ""),
        (composed("p0", router=", extra_hosts: {p0: 10.0.0.1}"), ""),
        (composed("p0", router=", links: ['pre:p0']"), ""),
        (composed("p0", router=", network_mode: host"), ""),
        (composed("p0.example.com"), ""),
        (composed("p0"), "give the router http://pre:30000 instead"),
    ],
)
def test_a_router_of_a_compose_file_calls_services_that_are_there(facts: Facts, told: str) -> None:
    assert [each.fix for each in found(facts, "PD226")] == [told] * bool(told)


def test_a_compose_file_may_share_a_network_with_others() -> None:
    for top in ("networks: {default: {external: true}}", "include: [other.yaml]"):
        assert "may be a service of another compose file" in doubt(composed("p0", top=top), "PD226")
