"""Command lines: what the processes really accept, release by release, and alike but for rank and host."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import pdctl
from pdctl.engine.config import engine_flags as engine
from pdctl.engines.versions import NEWEST, SGLANG, V0_5_3, V0_5_8, V0_5_10, V0_5_13, V0_5_18, V0_5_22, Version, spell
from pdctl.layout.commands import flag_words, instance
from pdctl.layout.planner import plan_topology
from pdctl.layout.ports import Numbers
from pdctl.layout.serving import Flags, Serving
from pdctl.layout.shape import Shape
from pdctl.router import router_args as router
from pdctl.topology.resolve import load
from tests.cases import for_each

from .conftest import TOPOLOGIES, Sheet

MIXTURE = Path(pdctl.__file__).parent / "checkpoints" / "tiny-moe"
PREFILL = Serving("sglang", "prefill", "m")
DECODE = Serving("sglang", "decode", "m")


def flags(argv: tuple[str, ...]) -> dict[str, str]:
    """Flag → the word after it, or "" for a bare one."""
    found: dict[str, str] = {}
    for at, word in enumerate(argv):
        if word.startswith("--"):
            value = argv[at + 1] if at + 1 < len(argv) else ""
            found[word] = "" if value.startswith("--") else value
    return found


def test_values_become_words() -> None:
    given = (
        ("trust-remote-code", True),
        ("enable-metrics", False),
        ("cuda-graph-bs", (1, 2)),
        ("load-format", "dummy"),
    )
    assert flag_words(given) == (
        "--trust-remote-code", "--cuda-graph-bs", "1", "2", "--load-format", "dummy",
    )  # fmt: skip


@for_each("version", SGLANG, ids=spell)
def test_attention_width_by_release(version: Version) -> None:
    (command,) = instance(PREFILL._replace(version=version), Shape(tp=8, dp=4), Numbers(30000, 8998), "h")
    said = flags(command.argv)
    if version >= V0_5_22:
        assert said["--attn-dp-size"] == "4"
        assert "--enable-dp-attention" not in said
    else:
        assert (said["--dp-size"], said["--enable-dp-attention"]) == ("4", "")


@for_each("version", SGLANG, ids=spell)
def test_replicas_are_dp_size_everywhere(version: Version) -> None:
    (command,) = instance(PREFILL._replace(version=version), Shape(tp=2, replicas=4), Numbers(30000), "h")
    assert flags(command.argv)["--dp-size"] == "4"
    assert "--enable-dp-attention" not in command.argv


@for_each("version", SGLANG, ids=spell)
@for_each("serving", [PREFILL, DECODE], ids=lambda serving: serving.role)
def test_nodes_differ_in_their_rank_alone(serving: Serving, version: Version) -> None:
    numbers = Numbers(30000, 8998 if serving is PREFILL else None, dist=20000, nccl=20031)
    commands = instance(serving._replace(version=version), Shape(tp=32, dp=32, nnodes=4), numbers, "h0")
    assert [command.node for command in commands] == [0, 1, 2, 3]
    for command in commands:
        said = flags(command.argv)
        assert said.pop("--node-rank") == str(command.node)
        assert said == {name: value for name, value in flags(commands[0].argv).items() if name != "--node-rank"}
        assert (said["--nnodes"], said["--dist-init-addr"]) == ("4", "h0:20000")


def test_only_a_prefill_opens_a_bootstrap_port() -> None:
    assert "--disaggregation-bootstrap-port" in instance(PREFILL, Shape(), Numbers(30000, 8998), "h")[0].argv
    assert "--disaggregation-bootstrap-port" not in instance(DECODE, Shape(), Numbers(30000), "h")[0].argv


@for_each(("version", "told"), [(V0_5_3, True), (V0_5_8, True), (V0_5_10, False), (V0_5_13, False), (NEWEST, False)])
def test_older_releases_are_told_the_other_sides_widths(version: Version, told: bool) -> None:
    wide, narrow = Shape(tp=8, dp=8), Shape(tp=4, pp=2)
    prefill = instance(PREFILL._replace(version=version, peer=wide), narrow, Numbers(30000, 8998), "h")[0].argv
    decode = instance(DECODE._replace(version=version, peer=narrow), wide, Numbers(30000), "h")[0].argv
    assert (flags(prefill).get("--disaggregation-decode-tp") == "8") is told
    assert (flags(prefill).get("--disaggregation-decode-dp") == "8") is told
    assert (flags(decode).get("--disaggregation-prefill-pp") == "2") is told
    assert ("--prefill-round-robin-balance" in decode) is (version == V0_5_3)


@for_each("version", SGLANG, ids=spell)
def test_pipelines_run_without_the_overlap_schedule(version: Version) -> None:
    serving = PREFILL._replace(version=version)
    assert "--disable-overlap-schedule" in instance(serving, Shape(tp=4, pp=2), Numbers(1), "h")[0].argv
    assert "--disable-overlap-schedule" not in instance(serving, Shape(tp=4), Numbers(1), "h")[0].argv
    given = serving._replace(args=(("disable-overlap-schedule", True),))
    argv = instance(given, Shape(tp=4, pp=2), Numbers(1), "h")[0].argv
    assert argv.count("--disable-overlap-schedule") == 1


def test_context_parallel_needs_a_release_that_has_it() -> None:
    for version, said in ((V0_5_8, False), (V0_5_13, True), (V0_5_18, True)):
        argv = instance(PREFILL._replace(version=version), Shape(tp=4, cp=2), Numbers(1), "h")[0].argv
        assert ("--attn-cp-size" in argv) is said


def test_the_embedded_engine_accepts_what_is_planned() -> None:
    for name in ("1p1d", "2p1d"):
        plan = plan_topology(load([TOPOLOGIES / f"{name}.yaml"]))
        for one in plan.instances:
            (command,) = one.commands
            assert command.argv[:3] == (sys.executable, "-m", "pdctl.engine")
            args = engine.parse(command.argv[3:], {})
            assert (args.port, args.disaggregation_mode, args.host) == (one.http_port, one.role, one.address)
            if one.bootstrap_port is not None:
                assert args.disaggregation_bootstrap_port == one.bootstrap_port


def test_every_topology_key_reaches_the_embedded_engine(sheet: Sheet) -> None:
    plan = sheet.plan(
        """
        model: {served-name: small, dtype: float32, context-length: 512}
        engine: {kind: embedded, args: {max-running-requests: 8}}
        roles:
          prefill: {tp: 2, dp: 2, pp: 2, page-size: 32, args: {chunked-prefill-size: 128}}
          decode: {tp: 2, ep: 2, replicas: 2, page-size: 32}
        transfer: {backend: shm}
        """,
        f"model.path={MIXTURE}",
    )
    prefill, decode = (engine.parse(one.commands[0].argv[3:], {}) for one in plan.instances)
    assert (prefill.served_model_name, prefill.dtype, prefill.context_length) == ("small", "float32", 512)
    assert (prefill.tp_size, prefill.attn_dp_size, prefill.dp_size, prefill.pp_size) == (2, 2, 1, 2)
    assert (prefill.page_size, prefill.chunked_prefill_size) == (32, 64)  # each of the two groups has its share
    assert (prefill.disaggregation_transfer_backend, prefill.max_running_requests) == ("shm", 8)
    assert (decode.tp_size, decode.dp_size, decode.ep_size, decode.chunked_prefill_size) == (2, 2, 2, 512)


def test_an_embedded_instance_over_two_nodes_has_a_command_for_each(sheet: Sheet) -> None:
    """On one host: an HTTP port each, one place to meet, and the next instance's ports behind theirs."""
    plan = sheet.plan(
        "roles: {prefill: {tp: 16, dp: 8}, decode: {tp: 4, pp: 2, dp: 4}}\npools: {default: {gpus-per-host: 8}}"
    )
    prefill, decode = plan.instances
    both = [engine.parse(command.argv[3:], {}) for command in prefill.commands]
    assert [(args.node_rank, args.port) for args in both] == [(0, 30000), (1, 30001)]
    assert {(args.nnodes, args.dist_init_addr, args.disaggregation_bootstrap_port) for args in both} == {
        (2, "127.0.0.1:20000", 8998)
    }
    assert [args.shape.nodes for args in both] == [2, 2]
    assert [command.node for command in decode.commands] == [0]
    assert decode.http_port == 30002
    purposes = {port.purpose: port.port for port in prefill.ports if port.node == 0}
    assert (purposes["dist-init"], purposes["tokenizer"], purposes["worker-handshake"]) == (20000, 20001, 20013)
    assert [port.purpose for port in decode.ports] == ["http"]


def test_the_router_accepts_what_is_planned(sheet: Sheet) -> None:
    plan = sheet.plan(
        """
        roles: {prefill: {instances: 2}, decode: {instances: 2}}
        router: {port: 8100, policy: random, prefill-policy: cache_aware, args: {retries: 2}}
        """
    )
    assert plan.router is not None
    argv = plan.router.command.argv
    assert argv[:3] == (sys.executable, "-m", "pdctl.router")
    args = router.parse(argv[3:])
    assert (args.port, args.policy, args.prefill_policy) == (8100, "random", "cache_aware")
    assert [one.bootstrap_port for one in args.prefill] == [8998, 8999]
    assert [one.origin.port for one in args.decode] == [30002, 30003]
    assert args.retries == 2
    assert argv[argv.index("--prefill") : argv.index("--prefill") + 3] == (
        "--prefill",
        "http://127.0.0.1:30000",
        "8998",
    )


SGLANG_ROUTER = ("python", "-m", "sglang_router.launch_router", "--pd-disaggregation")


@pytest.mark.parametrize(
    ("kind", "head", "policy", "metrics"),
    [
        ("sglang-router", SGLANG_ROUTER, "round_robin", 29000),
        ("smg", ("smg", "launch", "--pd-disaggregation"), "round_robin", 29000),
        ("mini-lb", (*SGLANG_ROUTER, "--mini-lb"), "random", None),
        # The first release's spelling, and SGLang's own.
        ("sglang", SGLANG_ROUTER, "round_robin", 29000),
        ("mini_lb", (*SGLANG_ROUTER, "--mini-lb"), "random", None),
        ("embedded", (sys.executable, "-m", "pdctl.router"), "round_robin", None),
    ],
)
def test_every_router_is_told_every_bootstrap_port(
    sheet: Sheet, kind: str, head: tuple[str, ...], policy: str, metrics: int | None
) -> None:
    plan = sheet.plan("roles: {prefill: {instances: 2}, decode: {}}\nrouter: {kind: " + kind + "}\n")
    assert plan.router is not None
    argv = plan.router.command.argv
    assert argv[: len(head)] == head
    assert (flags(argv)["--policy"], plan.router.metrics) == (policy, metrics)
    ports = [argv[at + 2] for at, word in enumerate(argv) if word == "--prefill"]
    assert ports == ["8998", "8999"]


def test_a_router_of_your_own_takes_the_kinds_flags(sheet: Sheet) -> None:
    router = "router: {kind: smg, command: [/srv/smg/bin/smg, launch], args: {prometheus-port: 29100}}\n"
    plan = sheet.plan("roles: {prefill: {}, decode: {}}\n" + router)
    assert plan.router is not None
    assert plan.router.command.argv[:3] == ("/srv/smg/bin/smg", "launch", "--pd-disaggregation")
    assert plan.router.ports == ((8000, "http"), (29100, "metrics"))


def test_the_metrics_of_a_router_are_a_port_like_any_other(sheet: Sheet) -> None:
    text = "roles: {prefill: {}, decode: {}}\nports: {http: 29000}\nrouter: {kind: sglang-router}\n"
    plan = sheet.plan(text)
    assert [problem.code for problem in plan.problems] == ["port-collision"]
    assert sheet.plan(text, "router.args.prometheus-port=29100").feasible


TRACEABLE = ("--enable-request-time-stats-logging", "--log-requests", "--log-requests-level", "--enable-metrics")


@for_each("version", SGLANG, ids=spell)
@for_each(
    ("given", "traceable", "missing"),
    [
        ((), True, ()),
        ((), False, TRACEABLE),
        ((("enable-metrics", False),), True, ("--enable-metrics",)),
        ((("log-requests", False),), True, ("--log-requests", "--log-requests-level")),
    ],
)
def test_servers_are_traceable_unless_told_otherwise(
    version: Version, given: Flags, traceable: bool, missing: tuple[str, ...]
) -> None:
    serving = PREFILL._replace(version=version, args=given, traceable=traceable)
    said = flags(instance(serving, Shape(), Numbers(30000, 8998), "h")[0].argv)
    assert [flag for flag in TRACEABLE if flag not in said] == list(missing)
    assert said.get("--log-requests-level", "0") == "0"


def test_a_level_of_your_own_is_given_once() -> None:
    serving = PREFILL._replace(args=(("log-requests", True), ("log-requests-level", 2)))
    argv = instance(serving, Shape(), Numbers(30000, 8998), "h")[0].argv
    assert (argv.count("--log-requests"), argv.count("--log-requests-level")) == (1, 1)


def test_what_makes_servers_traceable_is_said(sheet: Sheet) -> None:
    text = "model: {path: org/name}\nengine: {kind: sglang, traceable: TRUTH}\nroles: {prefill: {}, decode: {}}\n"
    said = [any("engine.traceable" in each for each in sheet.plan(text.replace("TRUTH", truth)).assumptions)
            for truth in ("true", "false")]  # fmt: skip
    assert said == [True, False]
