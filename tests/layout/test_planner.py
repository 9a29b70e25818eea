"""Whole plans: of the shipped topologies, and of small sheets that show one thing each."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdctl.engines.versions import NEWEST, spell
from pdctl.errors import TopologyError, UsageError
from pdctl.layout.gpu_memory import MemoryVerdict
from pdctl.layout.instance_plan import Plan
from pdctl.layout.planner import plan_shape, plan_topology
from pdctl.layout.shape import Shape
from pdctl.layout.workload import Measured, Nic, TrafficGoal
from pdctl.package_data import data
from pdctl.topology.resolve import load
from tests.cases import for_each

from .conftest import MODELS, TOPOLOGIES, Sheet


def shipped(name: str, *sets: str) -> Plan:
    return plan_topology(load([TOPOLOGIES / f"{name}.yaml"], sets, environ={}))


def codes(plan: Plan) -> list[str]:
    return [problem.code for problem in plan.problems]


def warned(plan: Plan) -> list[str]:
    return [warning.code for warning in plan.warnings]


def test_the_laptop_ports() -> None:
    plan = shipped("2p1d")
    assert plan.feasible
    assert [(one.name, one.http_port, one.bootstrap_port) for one in plan.instances] == [
        ("prefill-0", 30000, 8998),
        ("prefill-1", 30001, 8999),
        ("decode-0", 30002, None),
    ]
    assert {one.host_names for one in plan.instances} == {("localhost",)}
    assert plan.router is not None
    assert (plan.router.port, plan.router.address, plan.router.host_name) == (8000, "127.0.0.1", "localhost")
    assert [rank.gpu for one in plan.instances for rank in one.ranks] == [None] * 3
    memory = plan.instances[0].memory
    assert memory is not None
    assert memory.verdict is MemoryVerdict.UNKNOWN
    assert plan.transfer is not None
    assert plan.transfer.bytes_per_request == 4096 * memory.kv_bytes_per_token


@pytest.mark.parametrize("host", ["::1", '"::"'])
def test_a_router_that_listens_on_ipv6_alone_is_reached_there(host: str) -> None:
    router = shipped("2p1d", f"router.host={host}").router
    assert router is not None
    assert (router.host, router.address) == (host.strip('"'), "::1")


@pytest.mark.parametrize(
    ("given", "reached"), [("::1", "[::1]"), ("::", "[::1]"), ("0.0.0.0", "127.0.0.1"), ("10.0.0.7", "10.0.0.7")]
)
@pytest.mark.parametrize("kind", ["embedded", "sglang"])
def test_instances_listen_where_they_are_told_and_are_reached_there(given: str, reached: str, kind: str) -> None:
    sets = [f'engine.host="{given}"', f"engine.kind={kind}", "model.path=m/m", "roles.decode.tp=2"]
    sets += ["pools.default.gpus-per-host=1"] if kind == "embedded" else []
    plan = plan_topology(load([str(TOPOLOGIES / "1p1d.yaml")], sets), target="local")
    for one in plan.instances:
        assert one.url == f"http://{reached}:{one.http_port}"
        for command in one.commands:
            words = command.argv
            assert words[words.index("--host") + 1] == given
            if "--dist-init-addr" in words:
                assert words[words.index("--dist-init-addr") + 1].startswith(f"{reached}:")
    assert plan.router is not None
    assert f"http://{reached}:{plan.instances[0].http_port}" in plan.router.command.argv


def test_a_pace_is_an_assumption_and_a_flag_of_every_instance() -> None:
    plan = shipped("2p1d", "engine.pace=gpu-8b")
    assert "passes take the times of the cost profile gpu-8b, not those of the host" in plan.assumptions
    for one in plan.instances:
        words = one.commands[0].argv
        assert words[words.index("--pace") + 1] == "gpu-8b"
    assert not any("--pace" in one.commands[0].argv for one in shipped("2p1d").instances)
    with pytest.raises(UsageError, match="there is no profile 'gpu-9b'"):
        shipped("2p1d", "engine.pace=gpu-9b")


def test_the_file_of_a_pace_is_looked_for_beside_the_topology(tmp_path: Path) -> None:
    topology = tmp_path / "mine.yaml"
    topology.write_text("version: pdctl/v1\nengine: {pace: fast.yaml}\nroles: {prefill: {}, decode: {}}\n")
    (tmp_path / "fast.yaml").write_bytes((data("layout/profiles") / "laptop.yaml").read_bytes())
    words = plan_topology(load([topology], environ={})).instances[0].commands[0].argv
    assert words[words.index("--pace") + 1] == str(tmp_path / "fast.yaml")
    (tmp_path / "fast.yaml").unlink()
    with pytest.raises(TopologyError):
        plan_topology(load([topology], environ={}))


def test_settings_move_the_ports() -> None:
    topology = load([TOPOLOGIES / "2p1d.yaml"], ["ports.http=31000", "ports.bootstrap=9100", "router.port=8100"], {})
    plan = plan_topology(topology)
    assert [one.http_port for one in plan.instances] == [31000, 31001, 31002]
    assert [one.bootstrap_port for one in plan.instances] == [9100, 9101, None]
    assert plan.router is not None
    assert plan.router.port == 8100


def test_a_decode_that_may_become_a_prefill_has_a_bootstrap_port_of_its_own() -> None:
    sets = ("roles.decode.instances=2", "roles.decode.args.enable-pd-role-switch=true")
    plan = plan_topology(load([TOPOLOGIES / "2p1d.yaml"], sets, {}))
    ports = {instance.name: instance.bootstrap_port for instance in plan.instances}
    assert ports == {"prefill-0": 8998, "prefill-1": 8999, "decode-0": 9000, "decode-1": 9001}
    assert plan.feasible
    assert plan.router is not None
    assert plan.router.command.argv.count("9000") == 0  # a decode's port is nothing a router has to know
    with pytest.raises(TopologyError) as error:
        load([TOPOLOGIES / "2p1d.yaml"], (*sets, "router.port=9000"), {})
    (problem,) = error.value.diagnostics
    assert "decode-0 (bootstrap) and the router both want port 9000" in str(problem)


def test_deepseek_wide() -> None:
    plan = shipped("deepseek-v3-wide")
    assert plan.feasible
    assert plan.warnings == ()
    assert plan.target == "pools"
    assert [one.host_names for one in plan.instances] == [
        ("h100-0", "h100-1"),
        ("h100-2", "h100-3"),
        ("h100-4", "h100-5", "h100-6", "h100-7"),
    ]
    assert (plan.gpus, len(plan.host_names)) == (64, 8)
    prefill, _, decode = plan.instances
    assert prefill.memory is not None
    assert decode.memory is not None
    assert (prefill.memory.tokens, decode.memory.tokens) == (139_712, 440_256)
    assert (prefill.memory.kv_bytes_per_token, decode.memory.kv_bytes_per_token) == (70_272, 70_272)
    assert {(link.prefill, link.prefill_ranks, link.dummy_ranks) for link in plan.links} == {
        ("prefill-0", (0, 1), (1,)),
        ("prefill-1", (0, 1), (1,)),
    }
    assert plan.transfer is not None
    assert plan.transfer.bytes_per_request == 4032 * 70_272
    assert plan.ratio is not None
    assert plan.ratio.concurrency == pytest.approx(400)


def test_qwen_on_two_kinds_of_hosts() -> None:
    plan = shipped("qwen3-hetero")
    assert plan.feasible
    assert warned(plan) == ["gqa-different-tp"]
    assert "Performance is NOT guaranteed when using different TP sizes for non-MLA models." in plan.warnings[0].message
    places = [(one.name, one.host_name, one.ranks[0].gpu, one.http_port, one.bootstrap_port) for one in plan.instances]
    assert places == [
        ("prefill-0", "cheap-0", 0, 30000, 8998),
        ("prefill-1", "cheap-0", 2, 30001, 8999),
        ("prefill-2", "cheap-1", 0, 30000, 8998),
        ("prefill-3", "cheap-1", 2, 30001, 8999),
        ("decode-0", "big-0", 0, 30000, None),
        ("decode-1", "big-0", 4, 30001, None),
    ]
    assert "--base-gpu-id" in plan.instances[1].commands[0].argv


def test_a_wider_decode_on_one_host() -> None:
    plan = shipped("2p1d-decode-tp2")
    assert plan.target == "local"
    assert warned(plan) == ["gqa-different-tp"]
    pulls = [
        (link.decode_rank, link.prefill_ranks, link.slices[0].heads)
        for link in plan.links
        if link.prefill == "prefill-0"
    ]
    assert pulls == [(0, (0,), 4), (1, (0,), 4)]
    assert [rank.gpu for one in plan.instances for rank in one.ranks] == [0, 1, 2, 3]


@for_each("name", [file.stem for file in sorted(TOPOLOGIES.glob("*.yaml"))])
def test_no_shipped_topology_gives_anything_twice(name: str) -> None:
    plan = shipped(name)
    assert plan.feasible
    gpus = [
        (one.host_names[rank.node], rank.gpu) for one in plan.instances for rank in one.ranks if rank.gpu is not None
    ]
    assert len(gpus) == len(set(gpus))
    ports = [(one.host_names[port.node], port.port) for one in plan.instances for port in one.ports]
    assert len(ports) == len(set(ports))
    for one in plan.instances:
        assert len(one.commands) == one.nnodes


SGLANG = """
model: {path: some/model}
engine: {kind: sglang}
pools: {a: {gpus-per-host: 8}}
roles:
  prefill: {instances: 2, tp: 4}
  decode: {tp: 4}
"""


def test_larger_than_one_host_means_pools(sheet: Sheet) -> None:
    plan = sheet.plan(SGLANG)
    assert plan.target == "pools"
    assert [one.host_name for one in plan.instances] == ["a-0", "a-0", "a-1"]
    assert sheet.plan(SGLANG, "roles.prefill.instances=1").target == "local"


def test_this_machine_has_as_many_gpus_as_it_has(sheet: Sheet) -> None:
    plan = sheet.plan(SGLANG, target="local")
    assert codes(plan) == ["gpus-of-this-machine"]
    assert "need 12 GPUs, this machine has 8" in plan.problems[0].message
    assert sheet.plan(SGLANG, "targets.local.gpus=none", target="local").feasible


def test_chosen_gpus_are_made_visible(sheet: Sheet) -> None:
    plan = sheet.plan(SGLANG, "targets.local.gpus=[2,3,6]", "roles.prefill.tp=1", "roles.decode.tp=1")
    assert [rank.gpu for one in plan.instances for rank in one.ranks] == [2, 3, 6]
    assert {dict(one.commands[0].env)["CUDA_VISIBLE_DEVICES"] for one in plan.instances} == {"2,3,6"}
    assert "--base-gpu-id" not in plan.instances[0].commands[0].argv


def test_on_cpus_no_gpu_is_named(sheet: Sheet) -> None:
    plan = sheet.plan(SGLANG, "targets.local.gpus=none")
    assert {rank.gpu for one in plan.instances for rank in one.ranks} == {None}
    assert all("--base-gpu-id" not in one.commands[0].argv for one in plan.instances)


def test_a_model_that_is_not_here_is_a_warning(sheet: Sheet) -> None:
    plan = sheet.plan(SGLANG)
    assert plan.feasible
    assert "no-model-config" in warned(plan)
    assert plan.instances[0].memory is None
    assert plan.transfer is None
    assert len(plan.links) == 8


def test_a_model_that_cannot_be_reckoned_is_a_warning(sheet: Sheet) -> None:
    (sheet.file.parent / "config.json").write_text('{"architectures": ["Unheard"]}')
    plan = sheet.plan(SGLANG, f"model.config={sheet.file.parent / 'config.json'}")
    assert plan.feasible
    assert "model-config" in warned(plan)


def test_memory_that_does_not_fit_is_infeasible_with_ways_out(sheet: Sheet) -> None:
    plan = sheet.plan(
        f"""
        model: {{path: x, config: {MODELS / "deepseek-v3" / "config.json"}}}
        engine: {{kind: sglang}}
        pools: {{h: {{gpu-memory: 80GiB}}}}
        roles: {{prefill: {{tp: 8}}, decode: {{tp: 16}}}}
        """
    )
    assert codes(plan) == ["memory"]
    assert plan.problems[0].message.startswith("prefill: weights of 79.29 GiB per rank do not fit 68.00 GiB")
    assert plan.problems[0].nearest[0] == "--set roles.prefill.tp=16"
    assert plan.instances


def test_a_way_out_of_a_topology_is_a_setting_that_works(sheet: Sheet) -> None:
    text = """
    model: {path: some/model}
    engine: {kind: sglang}
    roles: {prefill: {tp: 8, ep: 3}, decode: {tp: 8}}
    """
    plan = sheet.plan(text)
    assert codes(plan) == ["ep-divides-tp"]
    assert plan.instances == ()
    assert plan.problems[0].nearest
    for way in plan.problems[0].nearest:
        assert sheet.plan(text, *way.split("--set ")[1:]).feasible


def test_pairs_that_cannot_work_together(sheet: Sheet) -> None:
    text = """
    model: {path: some/model}
    engine: {kind: sglang}
    roles: {prefill: {tp: 4, pp: 2, page-size: 64}, decode: {tp: 2, pp: 4, page-size: 32}}
    """
    plan = sheet.plan(text)
    assert codes(plan) == ["pair-pp", "pair-page-size"]
    assert plan.links == ()
    assert plan.problems[1].nearest == ("--set roles.decode.page-size=64",)
    assert (
        f"sglang {spell(NEWEST)} fails after start-up unless decode pp_size == prefill pp_size"
        in plan.problems[0].message
    )
    fixed = [problem.nearest[0].removeprefix("--set ") for problem in plan.problems]
    assert sheet.plan(text, *fixed).feasible


def test_a_page_size_on_one_side_only_is_a_warning(sheet: Sheet) -> None:
    plan = sheet.plan(SGLANG, "roles.prefill.page-size=64")
    assert "page-size-one-side" in warned(plan)


def test_close_blocks_collide(sheet: Sheet) -> None:
    text = """
    model: {path: some/model}
    engine: {kind: sglang}
    roles: {prefill: {tp: 4, dp: 4}, decode: {tp: 4, dp: 4}}
    ports: {stride: 4}
    """
    plan = sheet.plan(text)
    assert set(codes(plan)) == {"port-collision"}
    told = [problem.message for problem in plan.problems]
    assert "decode-0's dist-init port 20004 on localhost is also prefill-0's metrics port" in told
    assert plan.problems[0].nearest == ("--set ports.stride=32",)
    assert sheet.plan(text, "ports.stride=32").feasible


def test_a_router_in_the_way_of_a_later_instance(sheet: Sheet) -> None:
    text = """
    model: {path: some/model}
    engine: {kind: sglang}
    roles: {prefill: {instances: 2, tp: 4}, decode: {tp: 8}}
    router: {port: 30001}
    targets: {slurm: {time: 1h}}
    """
    plan = sheet.plan(text)
    assert [problem.message for problem in plan.problems] == [
        "router's http port 30001 on default-0 is also prefill-1's http port"
    ]
    assert plan.problems[0].nearest[0] == "--set router.port=30101"
    for way in plan.problems[0].nearest:
        assert sheet.plan(text, way.removeprefix("--set ")).feasible


def test_release_rules_apply_to_args(sheet: Sheet) -> None:
    old = sheet.plan(SGLANG, "engine.version=0.5.8", "engine.args.attn-cp-size=2")
    assert {"flag-not-in-release", "attn-cp-needs-release"} <= set(codes(old))
    new = sheet.plan(SGLANG, "engine.version=0.5.13", "roles.prefill.args.attn-cp-size=2")
    assert new.feasible
    assert {rank.attn_cp_rank for rank in new.instances[0].ranks} == {0, 1}


def test_args_that_start_up_checks_refuse(sheet: Sheet) -> None:
    plan = sheet.plan(
        SGLANG,
        "engine.args.moe-dense-tp-size=3",
        "roles.prefill.dp=4",
        "roles.prefill.page-size=64",
        "roles.decode.page-size=64",
        "roles.prefill.args.chunked-prefill-size=1000",
    )
    assert codes(plan) == ["moe-dense-tp", "chunk-is-pages", "moe-dense-tp"]
    assert "each of the 4 DP ranks gets 250" in plan.problems[1].message
    assert plan.problems[1].nearest == ("--set roles.prefill.args.chunked-prefill-size=768",)


def test_a_release_between_two_is_said(sheet: Sheet) -> None:
    plan = sheet.plan(SGLANG, "engine.version=0.5.15.post2")
    assert plan.version == "0.5.15.post2"
    assert "release" in warned(plan)


def test_keys_without_effect_are_said(sheet: Sheet) -> None:
    plan = sheet.plan("roles: {prefill: {mem-fraction: 0.8}, decode: {}}\n")
    assert warned(plan) == ["unused-key"]
    assert "roles.prefill.mem-fraction" in plan.warnings[0].message


def test_demand_above_the_plan_is_said(sheet: Sheet) -> None:
    text = f"""
    model: {{path: x, config: {MODELS / "llama-3-8b" / "config.json"}}}
    engine: {{kind: sglang}}
    pools: {{h: {{gpu-memory: 80GiB, nic: {{speed: 25Gbps}}}}}}
    roles: {{prefill: {{}}, decode: {{}}}}
    workload: {{isl: 4000, osl: 500, rate: 20}}
    slo: {{ttft: 1s, tpot: 20ms}}
    """
    plan = sheet.plan(text)
    assert warned(plan) == ["memory", "nic", "ratio"]
    topology = load([sheet.file], environ={})
    measured = plan_topology(topology, measured=Measured(prefill_rate=40_000, decode_batch=64))
    assert measured.ratio is not None
    assert measured.ratio.instances == (3, 4)
    assert [warning.message for warning in measured.warnings if warning.code == "ratio"] == [
        "the workload needs 3 prefill instances, 1 planned",
        "the workload needs 4 decode instances, 1 planned",
    ]


def test_a_bare_shape() -> None:
    plan = plan_shape(Shape(tp=16, dp=8))
    (one,) = plan.instances
    assert plan.feasible
    assert (one.nnodes, one.attn_tp_size, one.shape.dp, one.host_names) == (2, 2, 8, ("host-0", "host-1"))
    assert plan.links == ()


def test_a_bare_pair() -> None:
    plan = plan_shape(Shape(tp=16, dp=2), Shape(tp=32, dp=32))
    assert {link.prefill_ranks for link in plan.links} == {tuple(range(8))}
    assert warned(plan) == ["gqa-different-tp"]
    assert warned(plan_shape(Shape(tp=16, dp=2), Shape(tp=32, dp=32), mla=True)) == []


def test_the_model_of_a_bare_pair_decides_about_mla() -> None:
    path = str(MODELS / "deepseek-v3")
    plan = plan_shape(
        Shape(tp=16, dp=8, deepep=True),
        Shape(tp=32, dp=32, deepep=True),
        model=path,
        gpu_memory=80 << 30,
        nic=Nic(400 * 10**9),
        workload=TrafficGoal(isl=4096),
    )
    assert {link.dummy_ranks for link in plan.links} == {(1,)}
    assert plan.transfer is not None
    assert plan.transfer.bytes_per_request == 287_834_112


def test_an_infeasible_pair_names_the_side() -> None:
    plan = plan_shape(Shape(tp=16, dp=8), Shape(tp=32, dp=3))
    assert [problem.message.partition(":")[0] for problem in plan.problems] == ["decode"]
    assert plan.problems[0].nearest[0].startswith("--decode-tp 32 --decode-dp ")


def test_an_embedded_pair_of_different_widths_is_told_of_its_own_cost() -> None:
    (warning,) = plan_topology(load([TOPOLOGIES / "tp16dp8-two-nodes.yaml"], environ={})).warnings
    assert warning.code == "gqa-different-tp"
    assert warning.message.startswith("attn_tp_size 2 to 1: heads are cut out of each token")
