"""Hosts, Services, annotations and ports of manifests and scripts."""

from __future__ import annotations

from pdctl.catalogue.entry import Severity
from pdctl.doctor.check import Facts
from tests.cases import for_each
from tests.doctor.fixtures.static_bootstrap import DISCOVERS
from tests.doctor.written import (
    DECODE,
    ENGINE,
    LAUNCH_ROUTER,
    PREFILL,
    ROUTER,
    doubt,
    embedded,
    found,
    pair,
    pods,
    script,
    topology,
)


@for_each(
    ("facts", "told"),
    [
        (pair(), []),
        (pods(), []),
        (pods(router="--prefill http://localhost:30000 8998 --decode http://decode:30000"), ["the prefills"]),
        (pods(router="--prefill http://prefill:30000 8998 --decode http://[::1]:30000"), ["the decodes"]),
        (pods(router="--prefill http://127.0.0.2:30000 8998 --decode http://decode:30000"), ["the prefills"]),
        (script(f"{LAUNCH_ROUTER} --pd-disaggregation --prefill http://127.0.0.1:1 2 --decode http://x:1"), []),
    ],
    ids=["one host", "by name", "prefill", "decode", "127.0.0.2", "nobody known"],
)
def test_loopback_is_wrong_only_where_engines_are_elsewhere(facts: Facts, told: list[str]) -> None:
    assert [each.instance for each in found(facts, "PD208")] == told


@for_each(
    ("ports", "more", "told"),
    [
        ("[{port: 30000}, {port: 8998}]", "", False),
        ("[{port: 30000}]", "", True),
        ("[{port: 30000}, {name: b, port: 80, targetPort: 8998}]", "", False),
        ("[{port: 30000}]", ", clusterIP: None", False),
    ],
)
def test_a_service_must_pass_the_bootstrap_port_on_unless_it_is_headless(ports: str, more: str, told: bool) -> None:
    assert bool(found(pods(ports=ports, service=more), "PD213")) is told


@for_each(
    ("annotations", "missing", "differs"),
    [
        ("", True, []),
        (', annotations: {sglang.ai/bootstrap-port: "8998"}', False, []),
        (", annotations: {sglang.ai/bootstrap-port: 8998}", False, []),
        (', annotations: {sglang.ai/bootstrap-port: "8999"}', False, ["`8999`"]),
        (', annotations: {sglang.ai/bootstrap-port: "{{port}}"}', False, ["`{{port}}`"]),
        (', annotations: {sglang.ai/mooncake.bootstrap-port: "8998"}', True, []),
    ],
)
def test_discovered_pods_carry_their_port(annotations: str, missing: bool, differs: list[str]) -> None:
    facts = pods(template=annotations, router=DISCOVERS)
    assert bool(found(facts, "PD214")) is missing
    assert [each.observed for each in found(facts, "PD215")] == differs


def test_the_former_annotation_is_named() -> None:
    facts = pods(template=', annotations: {sglang.ai/mooncake.bootstrap-port: "8998"}', router=DISCOVERS)
    assert "is not read any more" in found(facts, "PD214")[0].evidence[0]


def test_annotations_matter_to_routers_that_discover() -> None:
    assert doubt(pods(), "PD214") == "no router discovers pods"


@for_each(
    ("host", "kind", "expected"),
    [
        ("localhost", "sglang", "127.0.0.1"),
        ("router.example", "sglang", "0.0.0.0"),
        ("'::1'", "sglang", "[::1]"),
        ("'[::1]'", "sglang", ""),
        ("10.0.0.1", "sglang", ""),
        ("localhost", "smg", ""),
        ("localhost", "embedded", ""),
    ],
)
def test_sglang_router_takes_ip_addresses_only(host: str, kind: str, expected: str) -> None:
    facts = topology(f"router.host={host}", f"router.kind={kind}")
    assert [each.expected for each in found(facts, "PD220")] == ([expected] if expected else [])


@for_each(
    ("version", "more", "told"),
    [("0.5.8", "", True), ("0.5.13", "", True), ("0.5.18", "", False), ("0.5.13", "roles.prefill.tp=16", False)],
)
def test_a_wildcard_registers_itself_before_0_5_18_on_one_node(version: str, more: str, told: bool) -> None:
    sets = [f"engine.version={version}", "targets.slurm.partition=gpu", "roles.decode.tp=2"]
    sets += [more, "roles.decode.tp=16"] if more else []
    assert bool(found(topology(*sets), "PD212")) is told


@for_each(
    ("facts", "severities"),
    [
        (embedded(), []),
        (topology(), []),
        (topology("targets.slurm.partition=gpu"), [Severity.INFO]),
        (pair("--host 0.0.0.0"), [Severity.WARNING]),
        (pods(prefill="--host 0.0.0.0"), [Severity.INFO]),
        (pods(prefill="--host 0.0.0.0", spec="hostNetwork: true"), [Severity.WARNING]),
        (pods(prefill="--host 0.0.0.0", service=", type: NodePort"), [Severity.WARNING]),
        (pods(prefill="--host 10.0.0.1", service=", type: NodePort"), []),
    ],
    ids=["embedded", "local", "cluster", "script", "pod", "host network", "node port", "address"],
)
def test_a_wildcard_is_a_door_where_the_network_is_shared(facts: Facts, severities: list[Severity]) -> None:
    assert [each.severity for each in found(facts, "PD614")] == severities


def test_ports_of_one_script_meet() -> None:
    facts = script(f"{ENGINE} {PREFILL}", f"{ENGINE} {PREFILL} --port 8998", f"{ENGINE} {PREFILL} --port 30000")
    assert {(each.instance, each.observed, each.fix.split(" with ")[1]) for each in found(facts, "PD218")} == {
        ("prefill:8998", "8998", "--port 30002"),
        ("prefill:8998", "8998", "--disaggregation-bootstrap-port 8999"),
        ("prefill:30000", "8998", "--disaggregation-bootstrap-port 9000"),
        ("prefill:30000", "30000", "--port 30001"),
    }
    facts = script(*(f"{ENGINE} {PREFILL} --port {port}" for port in (30000, 30010, 30020)))
    assert [each.headline for each in found(facts, "PD204")] == [
        "prefill:30010 and prefill:30000 on one host are both given bootstrap port 8998",
        "prefill:30020 and prefill:30000 on one host are both given bootstrap port 8998",
    ]
    assert [each.fix.rpartition(" ")[2] for each in found(facts, "PD204")] == ["8999", "9000"]


def test_ports_of_a_plan_meet_where_a_topology_cannot_see_it() -> None:
    """SGLang's internal ports reach further than the stride of the rendezvous ports: the layout finds it."""
    facts = topology("ports.stride=8", "roles.prefill.dp=2", "roles.decode.dp=2", "targets.local.gpus=none")
    told = found(facts, "PD218")
    assert facts.plan is not None
    assert len(told) == len(facts.plan.problems) > 0
    assert {each.observed for each in told} <= {str(port.port) for one in facts.plan.instances for port in one.ports}
    assert told[0].evidence[0].startswith("plan: ")
    assert not found(topology("roles.prefill.dp=2", "roles.decode.dp=2", "targets.local.gpus=none"), "PD218")


REMOTE = (
    ("ssh 10.0.0.1", "ssh 10.0.0.2"),
    ("ssh -p 22 -o User=a me@10.0.0.1", "ssh -tp 22 me@10.0.0.2"),
    ("ssh $FIRST", "ssh $SECOND"),
    ("srun -w n1", "srun -w n2"),
    ("ssh 10.0.0.1", "env A=1"),
)


@for_each(("first", "second"), REMOTE)
def test_two_hosts_of_a_script_may_have_one_port(first: str, second: str) -> None:
    decode = f"{ENGINE} {DECODE} --port 30000"
    assert not found(script(f"{first} {ENGINE} {PREFILL}", f"{second} {decode}"), "PD218")
    assert not found(script(f"{first} '{ENGINE} {PREFILL}'", f"{second} bash -c '{decode}'"), "PD218")


def test_one_host_of_a_script_has_each_port_once() -> None:
    engines = (f"ssh 10.0.0.1 {ENGINE} {PREFILL}", f"ssh me@10.0.0.1 '{ENGINE} {DECODE} --port 30000'")
    (one,) = found(script(*engines), "PD218")
    assert one.instance == "decode:30000"
    router = f"{LAUNCH_ROUTER} --prefill http://10.0.0.1:30000 9000 --decode http://10.0.0.2:30001"
    (wrong,) = found(script(engines[0], f"ssh 10.0.0.2 {ENGINE} {DECODE}", router), "PD202")
    assert (wrong.observed, wrong.expected) == ("9000", "8998")


def test_a_launcher_that_chooses_hosts_is_no_other_host() -> None:
    router = f"{LAUNCH_ROUTER} {ROUTER}"
    assert not found(script(f"srun {ENGINE} {PREFILL}", f"srun {ENGINE} {DECODE}", router), "PD208")


def test_a_port_given_twice_has_one_fix() -> None:
    """The decode's port is a typing error: neither the router's addresses nor the roles behind them are wrong."""
    prefills = (f"{ENGINE} {PREFILL}", f"{ENGINE} {PREFILL} --port 30001")
    router = "--prefill http://127.0.0.1:30000 --prefill http://127.0.0.1:30001 --decode http://127.0.0.1:30002"
    facts = script(*prefills, f"{ENGINE} {DECODE}", f"{LAUNCH_ROUTER} {router} --port 8000")
    assert [each.fix for each in found(facts, "PD218")] == ["start decode:30001 with --port 30002"]
    assert not found(facts, "PD223")
    assert not found(facts, "PD301")
    (bootstrap,) = found(facts, "PD204")
    assert bootstrap.fix == (
        "start prefill:30001 with --disaggregation-bootstrap-port 8999, "
        "and the router with --prefill http://127.0.0.1:30001 8999"
    )
    assert [each.instance for each in found(facts, "PD207")] == ["prefill:30000"]
    assert not found(facts, "PD201")


def test_a_bootstrap_port_that_the_router_knows_already_is_the_one_to_take() -> None:
    prefills = (f"{ENGINE} {PREFILL}", f"{ENGINE} {PREFILL} --port 30001")
    router = "--prefill http://127.0.0.1:30000 8998 --prefill http://127.0.0.1:30001 9100"
    facts = script(*prefills, f"{LAUNCH_ROUTER} {router} --port 8000")
    (one,) = found(facts, "PD204")
    assert one.fix == "start prefill:30001 with --disaggregation-bootstrap-port 9100"
    assert not found(facts, "PD202")


def test_a_mistyped_flag_is_not_its_default() -> None:
    """PD318 says what to write; until then no other check takes the default for what was meant."""
    told = pair("--disagregation-bootstrap-port 8999 --page-sise 32", router=f"{ROUTER.replace('8998', '8999')}")
    assert len(found(told, "PD318")) == 2
    assert not found(told, "PD202")
    assert found(pair(router=ROUTER.replace("8998", "8999")), "PD202")
    other = script(
        f"{ENGINE} --disaggregation-mode prefill --disaggregation-transfer-backnd nixl --page-sise 32 --pport 30005",
        f"{ENGINE} {DECODE} --disaggregation-transfer-backend nixl",
        f"{LAUNCH_ROUTER} {ROUTER.replace('30000', '30005')}",
    )
    assert not [one for code in ("PD302", "PD309", "PD223", "PD207") for one in found(other, code)]


def test_a_selector_without_pods_makes_no_wrong_bootstrap_port() -> None:
    """PD221 says that the Service selects nothing; the prefills' port is the decode's own all the same."""
    router = "--prefill http://prefill:30000 --decode http://decode:30000"
    assert not found(pods(selector="prefil", router=router), "PD201")
    assert found(pods(selector="prefil", router=router), "PD221")
    assert found(pods("--disaggregation-bootstrap-port 9000", selector="prefil", router=router), "PD201")


@for_each(
    ("port", "told"),
    [
        ("--port 30000", ["start router with --port 30001"]),
        ("--port 8998 --host 0.0.0.0", ["start router with --port 30001"]),
        ("--port 30000 --host 10.0.0.9", []),  # the prefill listens on loopback
        ("--port 8000", []),
    ],
)
def test_a_router_has_no_port_of_an_engine(port: str, told: list[str]) -> None:
    router = f"{LAUNCH_ROUTER} --pd-disaggregation --prefill http://127.0.0.1:30000 8998 {port}"
    assert [each.fix for each in found(script(f"{ENGINE} {PREFILL}", router), "PD218")] == told
    assert not found(script(f"{ENGINE} {PREFILL}", f"ssh 10.0.0.9 {router}"), "PD218")
