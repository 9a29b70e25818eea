"""Whether the numbers come out."""

from __future__ import annotations

from pdctl.catalogue.entry import Severity
from tests.cases import for_each
from tests.doctor.written import ENGINE, PREFILL, doubt, embedded, found, manifest, pair, script, topology

LOAD = ("workload.isl=4000", "workload.osl=1000", "slo.tpot=40ms")


def test_the_plans_ratio_is_what_is_told() -> None:
    facts = topology(*LOAD, "workload.rate=200")
    assert facts.plan is not None
    assert facts.plan.ratio is not None
    (said,) = found(facts, "PD501")
    assert said.expected == f"{facts.plan.ratio.instances[1]} instances"
    assert said.fix.startswith(f"add decode instances: --set roles.decode.instances={facts.plan.ratio.instances[1]}")
    enough = topology(*LOAD, "workload.rate=200", f"roles.decode.instances={facts.plan.ratio.instances[1]}")
    assert not found(enough, "PD501")


def test_without_a_load_or_its_figures_nothing_is_claimed() -> None:
    assert doubt(topology(), "PD501") == "no load is given (workload.rate of a topology)"
    assert doubt(pair(), "PD506") == "no load is given (workload.rate of a topology)"
    assert doubt(topology(*LOAD[:2], "workload.rate=1"), "PD501") == (
        "the plan knows no decode batch (it needs slo.tpot and the KV pool)"
    )
    assert "--prefill-rate" in doubt(topology(*LOAD, "workload.rate=1"), "PD506")


def test_the_network_can_be_too_small_for_prefill() -> None:
    (said,) = found(topology(*LOAD, "workload.rate=100", "pools.hosts.nic.speed=1Gbps"), "PD506")
    assert said.observed.endswith("Gb/s of KV cache")


@for_each(
    ("sets", "told"),
    [
        (("roles.decode.args.max-running-requests=64",), ""),
        (("roles.decode.args.max-running-requests=2000",), "its KV pool holds"),
        (("roles.decode.args.max-running-requests=2000", "roles.decode.args.num-reserved-decode-tokens=8"), ""),
        (("roles.decode.args.max-running-requests=1", "roles.decode.dp=2"), "no slot on a rank"),
        (("roles.decode.args.enable-hisparse=true",), "retracted request"),
        ((), ""),
    ],
)
def test_slots_and_the_tokens_kept_for_them(sets: tuple[str, ...], told: str) -> None:
    said = found(topology(*sets), "PD502")
    assert [told in each.headline for each in said] == ([True] if told else [])


def test_without_memory_figures_only_the_slots_are_judged() -> None:
    assert not found(topology("roles.decode.args.max-running-requests=99999", "model.config=null"), "PD502")


DEEPEP = ("roles.decode.args.moe-a2a-backend=deepep", "roles.decode.tp=8", "roles.decode.dp=8", "roles.prefill.tp=1")


@for_each(
    ("sets", "severities"),
    [
        (("max-running-requests=1024",), []),
        (("max-running-requests=1025",), [Severity.ERROR]),
        (("cuda-graph-max-bs-decode=128",), []),
        (("cuda-graph-max-bs-decode=129",), [Severity.ERROR]),
        (("max-running-requests=1024", "speculative-num-draft-tokens=3"), [Severity.ERROR]),
        (("max-running-requests=2048", "cuda-graph-max-bs-decode=256"), [Severity.ERROR, Severity.ERROR]),
        (("max-running-requests=2048", "deepep-mode=normal"), []),
        ((), []),
    ],
)
def test_deepeps_buffer_holds_a_ranks_batch(sets: tuple[str, ...], severities: list[Severity]) -> None:
    facts = topology(*DEEPEP, *(f"roles.decode.args.{each}" for each in sets))
    assert [each.severity for each in found(facts, "PD503")] == severities


def test_a_larger_buffer_holds_more_and_a_shared_group_is_a_doubt() -> None:
    big = "roles.decode.env.SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK=256"
    many = "roles.decode.args.max-running-requests=2048"
    assert not found(topology(*DEEPEP, many, big), "PD503")
    groups = ("roles.decode.dp=4", "roles.decode.args.max-running-requests=1024")
    assert [each.severity for each in found(topology(*DEEPEP, *groups), "PD503")] == [Severity.WARNING]


@for_each(
    ("sets", "limit"),
    [
        (("workload.isl=40000", "workload.osl=1000"), "40960"),
        (("workload.isl=40000", "workload.osl=900"), ""),
        (("workload.isl=4000", "workload.osl=200", "model.context-length=4096"), "4096"),
    ],
)
def test_the_workloads_requests_fit_the_context(sets: tuple[str, ...], limit: str) -> None:
    assert {each.expected for each in found(topology(*sets), "PD505")} == ({limit} if limit else set())


def test_an_instance_of_several_hosts_names_its_interface() -> None:
    wide = ("roles.decode.tp=16", "roles.prefill.tp=16", "pools.hosts.interface=bond0")
    told = found(topology(*wide), "PD509")
    assert [each.headline.partition(" span ")[0] for each in told] == ["prefill and decode-0"]
    assert told[0].fix.startswith("export GLOO_SOCKET_IFNAME=bond0")
    assert not found(topology("roles.decode.tp=8"), "PD509")
    assert not found(embedded(), "PD509")


POD = """
kind: StatefulSet
metadata: {{name: decode}}
spec:
  template:
    spec:
      containers:
        - image: sglang:v0.5.23
          command: [python3, -m, sglang.launch_server, --disaggregation-mode, decode, {words}]
          resources: {{limits: {{nvidia.com/gpu: 8}}}}
"""


@for_each(
    ("words", "told"),
    [
        ("--tp, '8'", ""),
        ("--tp-size=16", "16 ranks on a node, the container has 8 GPUs"),
        ("--tp-size, '16', --nnodes, '2'", ""),
        ("--tp-size, '16', --nnodes, '3'", "tp 16 x pp 1 on 3 nodes"),
        ("--tp-size, $(TP), --nnodes, '3'", ""),
        ("--tp, '4', --pp-size, '2', --nnodes, '2', --dp-size, '4', --enable-dp-attention", ""),
    ],
)
def test_ranks_against_the_gpus_of_a_pod(words: str, told: str) -> None:
    assert [each.observed for each in found(manifest(POD.format(words=words)), "PD504")] == ([told] if told else [])


def test_two_instances_must_not_meet_at_one_rendezvous() -> None:
    same = "--dist-init-addr 10.0.0.1:20000"
    (said,) = found(pair(same, same), "PD504")
    assert said.observed == "--dist-init-addr 10.0.0.1:20000 and node rank 0 are also prefill:30000's"
    assert not found(pair(same, "--dist-init-addr 10.0.0.1:20032"), "PD504")
    assert not found(pair(f"{same} --node-rank 0", f"{same} --node-rank 1"), "PD504")


@for_each(
    ("gpus", "flags", "told"),
    [
        ("0,1", "--tp 4", ["name 4 GPUs in CUDA_VISIBLE_DEVICES"]),
        ("0,1,2,3", "--tp 4", []),
        ("0,1", "--tp 4 --nnodes 2", []),
        ("$GPUS", "--tp 4", []),
        ("", "--tp 4", []),
        ("0", "--tp $TP", []),
    ],
)
def test_a_script_shows_an_engine_as_many_gpus_as_it_has_ranks(gpus: str, flags: str, told: list[str]) -> None:
    facts = script(f"CUDA_VISIBLE_DEVICES={gpus} {ENGINE} {PREFILL} {flags}")
    assert [each.fix for each in found(facts, "PD504")] == told
    for launcher in ("ssh 10.0.0.1", "docker run --gpus all image"):  # neither passes the variable on
        assert not found(script(f"CUDA_VISIBLE_DEVICES={gpus} {launcher} {ENGINE} {PREFILL} {flags}"), "PD504")
