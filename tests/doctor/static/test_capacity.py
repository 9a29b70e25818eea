"""Whether the numbers come out."""

from __future__ import annotations

from pdctl.catalogue.entry import Severity
from tests.cases import for_each
from tests.doctor.written import (
    DECODE,
    ENGINE,
    LAUNCH_ROUTER,
    PREFILL,
    ROUTER,
    doubt,
    embedded,
    found,
    manifest,
    pair,
    pods,
    script,
    topology,
)

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
        ("0,1", "--tp 4", ["list 4 GPUs in CUDA_VISIBLE_DEVICES"]),
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


VISIBLE = "CUDA_VISIBLE_DEVICES"
P, D = f"{ENGINE} {PREFILL}", f"{ENGINE} {DECODE}".replace(" --base-gpu-id 1", "")
LOCAL = f"{LAUNCH_ROUTER} {ROUTER}"
SHOW, BEGIN = f"set {VISIBLE} of decode:30001 to", "start decode:30001 with --base-gpu-id"
RUN = "docker run --gpus"


@for_each(
    ("commands", "told"),
    [
        ((f"{VISIBLE}=0,1 {P} --tp 2", f"{VISIBLE}=1,2 {D} --tp 2"), [f"{SHOW} 3,4"]),
        ((f"{VISIBLE}=0,1 {P} --tp 2", f"{VISIBLE}=2,3 {D} --tp 2"), []),
        ((f"{VISIBLE}=0,1 {P} --tp 2", f"{VISIBLE}=0,1 {D} --tp 2 --device cpu"), []),
        ((f"{VISIBLE}=0,1 {P} --tp 2", f"{VISIBLE}=$GPUS {D} --tp 2"), []),
        ((f"{VISIBLE}=GPU-8f {P}", f"{VISIBLE}=GPU-8f {D}"), [f"{SHOW} GPUs that no other engine uses"]),
        ((f"{VISIBLE}=0,GPU-8f {P} --tp 2", f"{VISIBLE}=GPU-8f,0 {D} --tp 2"),
         [f"{SHOW} GPUs that no other engine uses"]),
        ((f"export {VISIBLE}=2,3,0,1", f"{P} --tp 2", f"{D} --tp 2 --base-gpu-id 2"), []),
        ((f"{P} --tp 4", f"{D} --base-gpu-id 3"), [f"{BEGIN} 4"]),
        ((f"{P} --tp 4", f"{D} --base-gpu-id 4"), []),
        ((f"{P} --tp 2 --gpu-id-step 2", f"{D} --base-gpu-id 1"), []),
        ((f"{P} --tp 2 --gpu-id-step 2", f"{D} --base-gpu-id 2"), [f"{BEGIN} 1"]),
        ((f"{P} --tp 2 --dp 2", f"{D} --base-gpu-id 3"), [f"{BEGIN} 4"]),
        ((f"{P} --tp 2 --dp 2 --enable-dp-attention", f"{D} --base-gpu-id 3"), []),
        ((f"{P} --tp 8", f"{D} --tp 8 --base-gpu-id 4"), ["start decode:30001 on another host"]),
        ((P, f"{D} --base-gpu-id 1", f"{P} --port 30002"), ["start prefill:30002 with --base-gpu-id 2"]),
        ((P, f"{P} --port 30003 --base-gpu-id 0", D), ["start prefill:30003 with --base-gpu-id 1", f"{BEGIN} 2"]),
        # Who shares a GPU on purpose says how.
        ((f"{VISIBLE}=0 {P} --mem-fraction-static 0.4", f"{VISIBLE}=0 {D} --mem-fraction-static 0.4"), []),
        ((f"{VISIBLE}=0 {P} --mem-fraction-static 0.8", f"{VISIBLE}=0 {D} --mem-fraction-static 0.8"), [f"{SHOW} 1"]),
        # On which host?
        ((P, D), []),
        ((P, D, LOCAL), [f"{BEGIN} 1"]),
        ((f"ssh a {P}", f"ssh b {D} --base-gpu-id 0"), []),
        ((f"ssh a {P}", f"ssh a {D}"), [f"{BEGIN} 1"]),
        ((f"srun {P}", f"srun {D} --base-gpu-id 0"), []),
        ((f"ssh $A {P}", f"ssh $A {D} --base-gpu-id 0"), []),
        ((f"ssh a {VISIBLE}=0 {P}", f"ssh a {VISIBLE}=1 {D}"), []),
        ((f"ssh a '{VISIBLE}=0 {P}'", f"ssh a '{VISIBLE}=0 {D}'"), [f"{SHOW} 1"]),
        ((f"{P} --tp 100000000000000000", f"{D} --tp 100000000000000000 --base-gpu-id 0"), []),
        ((f"{P} --host 10.0.0.1 --base-gpu-id 0", f"{D} --host 10.0.0.2"), []),
        ((f"{P} --tp 2 --nnodes 2 --node-rank $RANK --base-gpu-id 0", f"{D} --tp 2 --nnodes 2 --node-rank $RANK"),
         []),
        # Docker has its own numbers.
        ((f"{RUN} all image {P}", f"{RUN}=all image {D}", LOCAL), [f"{BEGIN} 1"]),
        ((f"{RUN} '\"device=0\"' image {P}", f"{RUN} device=1 image {D}"), []),
        ((f"{RUN} 1 image {P}", f"{RUN} device=0 image {D}"), ["give the container of decode:30001 GPU 1 instead"]),
        ((f"{RUN} all -e {VISIBLE}=0 image {P}", f"{RUN} all --env={VISIBLE}=0 image {D}"), [f"{SHOW} 1"]),
        ((f"docker run image {P}", f"docker run image {D}", LOCAL), []),
    ],
)  # fmt: skip
def test_each_gpu_of_a_host_has_one_engine(commands: tuple[str, ...], told: list[str]) -> None:
    assert [each.fix for each in found(script(*commands), "PD504")] == told


def test_two_engines_that_name_one_gpu_are_said_with_it() -> None:
    (one,) = found(script(f"{VISIBLE}=0,1 {P} --tp 2", f"{VISIBLE}=1 {D}"), "PD504")
    assert one.headline == "decode:30001 cannot be placed: GPU 1 of its host is prefill:30000's as well"
    assert one.severity is Severity.ERROR
    assert one.evidence[0] == f"run.sh:2: {VISIBLE}=0,1"
    (two,) = found(script(P, D, LOCAL), "PD504")
    assert two.severity is Severity.WARNING  # neither names a GPU, and SGLang may find none
    assert two.headline == "decode:30001 cannot be placed: GPU 0 of its host is prefill:30000's as well"


COMPOSE = """
services:
  prefill: {{image: i, command: {prefill}, {first}}}
  decode: {{image: i, command: {decode}, {second}}}
"""
RESERVED = "deploy: {{resources: {{reservations: {{devices: [{}]}}}}}}"


@for_each(
    ("first", "second", "told"),
    [
        ("tty: true", "tty: true", 0),  # which GPUs they are given is not written
        ("gpus: all", "gpus: all", 1),
        ("gpus: [{count: 1}]", "gpus: [{count: 1}]", 1),  # Docker takes the first one for both
        (RESERVED.format("{count: 1}"), RESERVED.format("{count: all}"), 1),
        (RESERVED.format("{device_ids: ['0']}"), RESERVED.format("{device_ids: ['1']}"), 0),
        (RESERVED.format("{device_ids: ['3']}"), RESERVED.format("{device_ids: ['3']}"), 1),
        ("environment: {CUDA_VISIBLE_DEVICES: 1}", "environment: [CUDA_VISIBLE_DEVICES=1]", 1),
        ("environment: {CUDA_VISIBLE_DEVICES: 1}", "environment: [CUDA_VISIBLE_DEVICES=0]", 0),
        ("environment: {CUDA_VISIBLE_DEVICES: 1}", "environment: [CUDA_VISIBLE_DEVICES]", 0),
    ],
)
def test_each_gpu_of_a_compose_file_has_one_service(first: str, second: str, told: int) -> None:
    facts = manifest(COMPOSE.format(prefill=P, decode=D, first=first, second=second), "compose.yaml")
    assert [each.instance for each in found(facts, "PD504")] == ["decode"] * told


def test_pods_are_given_gpus_of_their_own() -> None:
    same = "env: [{name: CUDA_VISIBLE_DEVICES, value: '0'}]"
    assert not found(pods(container=same), "PD504")


@for_each(
    ("commands", "told"),
    [
        (f"{VISIBLE}=0,1 {P} --tp 2 --base-gpu-id 2",
         "it sees 2 GPUs, of which it is to use GPUs 2 and 3, counted from 0"),
        (f"{VISIBLE}=0,1 {P} --tp 4", "4 ranks on a node, which sees 2 GPUs"),
        (f"{VISIBLE}=4,5 {P} --base-gpu-id 1", ""),
    ],
)  # fmt: skip
def test_an_engine_sees_the_gpus_it_is_to_use(commands: str, told: str) -> None:
    assert [each.observed for each in found(script(commands), "PD504")] == [told] * bool(told)


def test_a_topology_does_not_show_an_instance_the_gpus_of_another() -> None:
    told = found(topology("roles.prefill.instances=1", "engine.env.CUDA_VISIBLE_DEVICES=0,1"), "PD504")
    assert [(each.instance, each.fix) for each in told] == [
        ("decode-0", "remove CUDA_VISIBLE_DEVICES from the topology")
    ]
    assert not found(topology("roles.prefill.instances=1"), "PD504")


def test_each_of_many_engines_is_held_against_the_first_with_its_gpu() -> None:
    """Five hundred of them, as a loop of a script may start: one look at each."""
    loop = f"for i in $(seq 0 15); do for j in $(seq 0 31); do\n{P} --port $((30000 + i * 32 + j)) --base-gpu-id $j &\n"
    facts = manifest(f"#!/bin/bash\n{loop}done\ndone\n", "run.sh")
    told = found(facts, "PD504")
    assert told
    assert all(each.fix.endswith(" on another host") for each in told)
