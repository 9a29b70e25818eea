"""Time limits, routers' habits, and what Kubernetes is told."""

from __future__ import annotations

import pytest

from tests.cases import for_each
from tests.doctor.fixtures.static_bootstrap import DISCOVERS
from tests.doctor.fixtures.static_upkeep import group
from tests.doctor.written import LAUNCH_ROUTER, doubt, found, pods, script, topology

BOTH = "--prefill http://p:1 8998 --decode http://d:1"


@for_each(
    ("name", "value", "told"),
    [
        ("BOOTSTRAP_TIMEOUT", "100000", True),
        ("BOOTSTRAP_TIMEOUT", "3600", False),
        ("WAITING_TIMEOUT", "1e6", True),
        ("WAITING_TIMEOUT", "soon", False),
        ("HEARTBEAT_MAX_FAILURE", "10000000", True),
        ("HEARTBEAT_MAX_FAILURE", "20", False),
        ("HEARTBEAT_INTERVAL", "5", False),
    ],
)
def test_limits_that_limit_nothing(name: str, value: str, told: bool) -> None:
    variable = f"SGLANG_DISAGGREGATION_{name}"
    said = found(topology(f"roles.decode.env.{variable}={value!r}"), "PD606")
    assert [(each.instance, each.observed) for each in said] == ([("decode-0", f"{variable}={value}")] if told else [])


def test_a_watchdog_that_never_barks_is_told_too() -> None:
    assert [each.observed for each in found(topology("roles.decode.args.watchdog-timeout=1000000"), "PD606")] == [
        "--watchdog-timeout 1000000"
    ]


@for_each(
    ("interval", "failures", "told"),
    [("", "", ""), ("5", "2", ""), ("2", "2", "4 s"), ("0.1", "2", "4 s"), ("", "1", "5 s"), ("2", "5", "")],
)
def test_heartbeats_that_give_up_too_soon(interval: str, failures: str, told: str) -> None:
    sets = [f"roles.decode.env.SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL={interval!r}"] if interval else []
    sets += [f"roles.decode.env.SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE={failures!r}"] if failures else []
    said = found(topology(*sets), "PD617")
    assert [told in each.headline for each in said] == ([True] if told else [])


@for_each(
    ("sets", "unused"),
    [
        (("roles.prefill.instances=2", "roles.decode.instances=2"), ("2 pairs", "4 pairs")),
        (("roles.prefill.instances=4", "roles.decode.instances=2"), ("4 pairs", "8 pairs")),
        (("roles.prefill.instances=3", "roles.decode.instances=2"), None),
        (("roles.prefill.instances=1", "roles.decode.instances=4"), None),
        (("roles.prefill.instances=2", "roles.decode.instances=2", "router.decode-policy=random"), None),
        (("roles.prefill.instances=2", "roles.decode.instances=2", "router.policy=cache_aware"), None),
    ],
)
def test_two_counters_that_walk_in_step(sets: tuple[str, ...], unused: tuple[str, str] | None) -> None:
    said = found(topology(*sets), "PD615")
    assert [(each.observed, each.expected) for each in said] == ([unused] if unused else [])


def test_pdctls_own_router_walks_every_pair() -> None:
    assert doubt(topology("router.kind=embedded"), "PD615") == "no sglang-router and no smg"


@for_each(
    ("flags", "told"),
    [
        (f"--pd-disaggregation {BOTH}", ""),
        (BOTH, "is not in PD mode"),
        ("--worker-urls http://a:1", ""),
        ("--pd-disaggregation --decode http://d:1", "without --prefill"),
        ("--pd-disaggregation --prefill http://p:1 8998", "every request is answered 503"),
        ("--mini-lb --prefill http://p:1 8998 --decode http://d:1", ""),
        (f"--pd-disaggregation {DISCOVERS}", ""),
        ("--pd-disaggregation --service-discovery", "without --prefill-selector and --decode-selector"),
        ("--pd-disaggregation --service-discovery --prefill-selector a=b", "without --decode-selector"),
    ],
)
def test_what_a_router_cannot_serve(flags: str, told: str) -> None:
    said = found(script(f"{LAUNCH_ROUTER} {flags}"), "PD618")
    assert [told in each.headline for each in said] == ([True] if told else [])


@for_each(
    ("listed", "fix"),
    [
        ("--prefill http://p:1 8998 --decode https://d:1", ""),
        ("--prefill grpc://p:1 none --decode http://[::1]:1", ""),
        ("--prefill $P --decode $D", ""),
        ("--prefill http://p:1,8998 --decode http://d:1", "write --prefill http://p:1 8998"),
        ("--prefill http://p:1 $BOOT --decode d:1", "write --decode http://d:1"),
        ("--prefill p:1 8998 --decode http://d:1", "write --prefill http://p:1 8998"),
        ("--prefill tcp://p:1 8998 --decode http://d:1", "write --prefill http://p:1 8998"),
        ("--prefill http://p:99999 8998 --decode http://d:1", "write --prefill http://HOST:PORT 8998"),
        ("--prefill http://p:1 port --decode http://d:1", "write --prefill http://p:1 BOOTSTRAP-PORT"),
    ],
)
def test_a_router_ends_at_once_on_an_address_it_cannot_read(listed: str, fix: str) -> None:
    """Measured with sglang-router 0.3.2: "URL must start with http://, https://, or grpc://", "invalid port number"."""
    said = found(script(f"{LAUNCH_ROUTER} --pd-disaggregation {listed}"), "PD618")
    assert [each.fix for each in said] == [fix] * bool(fix)
    assert all("it does not start with --" in each.headline for each in said)
    assert not found(script(f"{LAUNCH_ROUTER} --pd-disaggregation --mini-lb {listed}"), "PD618")


def test_smg_with_discovery_is_a_thing_to_know() -> None:
    said = found(script(f"smg launch --pd-disaggregation {DISCOVERS}"), "PD618")
    assert [each.severity.value for each in said] == ["info"]


@for_each(
    ("probe", "told"),
    [
        ("readinessProbe: {httpGet: {path: /health, port: 1}}", ""),
        ("readinessProbe: {tcpSocket: {port: 1}}", "open port"),
        ("startupProbe: {tcpSocket: {port: 1}}", ""),
        ("readinessProbe: {exec: {command: [sh, -c, exit 0]}}", "always succeeds"),
        ("livenessProbe: {exec: {command: ['true']}}", "always succeeds"),
        ("livenessProbe: {httpGet: {path: /health_generate, port: 1}}", "only busy"),
        ("livenessProbe: {httpGet: {path: /health, port: 1}, failureThreshold: 1}", "single miss"),
        ("livenessProbe: {httpGet: {path: /health, port: 1}, failureThreshold: 3}", ""),
        ("readinessProbe: {httpGet: {path: /health_generate, port: 1}}", ""),
    ],
)
def test_probes(probe: str, told: str) -> None:
    said = found(pods(container=probe), "PD607")
    assert [told in each.headline for each in said] == ([True] if told else [])


@for_each(
    ("image", "told"),
    [
        ("lmsysorg/sglang", True),
        ("lmsysorg/sglang:latest", True),
        ("registry.example:5000/sglang", True),
        ("registry.example:5000/sglang:v1", False),
        ("sglang@sha256:0", False),
        ("$IMAGE", False),
    ],
)
def test_images_that_say_which_release_they_are(image: str, told: bool) -> None:
    assert bool(found(pods(image=image), "PD608")) is told


def test_a_topologys_image_is_looked_at_too() -> None:
    (said,) = found(topology("targets.kubernetes.image=lmsysorg/sglang"), "PD608")
    assert said.fix == "pin the image to a tag: lmsysorg/sglang:TAG"
    assert not found(topology("targets.slurm.container.image=/images/sglang.sqsh"), "PD608")


@pytest.mark.parametrize(
    ("spec", "told"), [("terminationGracePeriodSeconds: 30", "30 s"), ("terminationGracePeriodSeconds: 600", "")]
)
def test_time_to_end(spec: str, told: str) -> None:
    assert [each.observed for each in found(pods(spec=spec), "PD609")] == ([told] if told else [])


@for_each(
    ("flags", "env", "told"),
    [
        ("--host $(POD_IP)", "[{name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]", ""),
        ("--host $(POD_IP)", "[]", "POD_IP"),
        ("--host ${POD_IP}", "[{name: POD_IP, value: a}]", "POD_IP"),
        ("--host $POD_IP", "[]", "POD_IP"),
        ("--host $(FOO_SERVICE_HOST)", "[]", ""),
    ],
)
def test_variables_nobody_expands(flags: str, env: str, told: str) -> None:
    said = found(pods(prefill=flags, container=f"env: {env}"), "PD619")
    assert [f"define {told} " in each.fix for each in said] == ([True] if told else [])


def test_an_operator_may_add_variables_of_its_own() -> None:
    assert not found(group(""), "PD619")
    assert not found(pods(prefill="--host $(POD_IP)", container="envFrom: [{configMapRef: {name: c}}]"), "PD619")


@for_each(
    ("flags", "dns", "told"),
    [
        ("--dist-init-addr leader:20000", "", True),
        ("--dist-init-addr $(LEADER):20000", "", True),
        ("--dist-init-addr leader:20000", "ClusterFirstWithHostNet", False),
        ("--dist-init-addr 10.0.0.1:20000", "", False),
        ("--dist-init-addr [fd00::1]:20000", "", False),
        ("", "", False),
    ],
)
def test_names_on_the_hosts_network(flags: str, dns: str, told: bool) -> None:
    spec = "hostNetwork: true" + (f"\ndnsPolicy: {dns}" if dns else "")
    assert bool(found(pods(prefill=flags, spec=spec), "PD621")) is told


@pytest.mark.parametrize(
    ("worker", "env", "told"),
    [
        ("", "", []),
        ("", "{name: MC_TE_METRIC, value: '1'}", ["MC_TE_METRIC is not set on the leader and 1 on the worker"]),
        ("--page-size 64", "", ["--page-size is not set on the leader and 64 on the worker"]),
        ("--trust-remote-code", "", ["--trust-remote-code is not set on the leader and set on the worker"]),
        ("--node-rank 3", "", []),
    ],
)
def test_leader_and_worker_are_started_alike(worker: str, env: str, told: list[str]) -> None:
    assert [each.observed for each in found(group(worker, env), "PD616")] == told
