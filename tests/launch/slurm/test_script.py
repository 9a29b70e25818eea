"""What Slurm is asked for, word by word."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from pdctl import program
from pdctl.errors import LaunchError, UsageError
from pdctl.launch import deployment_plan
from pdctl.launch.run_directory import RunDir
from pdctl.launch.run_record import Allocation, RunSeat
from pdctl.launch.slurm import host_placement, submission
from pdctl.launch.targets.slurm import SlurmRuntime, SlurmTarget
from pdctl.launch.targets.target import LaunchOrder
from pdctl.topology import resolve
from pdctl.topology.model import Topology

MIXED = """
version: pdctl/v1
name: mixed
model: {path: Qwen/Qwen3-4B}
engine: {kind: sglang}
pools:
  cheap: {gpus-per-host: 4}
  big: {gpus-per-host: 8}
roles:
  prefill: {instances: 4, tp: 2, pool: cheap}
  decode: {instances: 1, tp: 16, pool: big}
targets:
  slurm:
    time: 90m
    account: llm
    extra-sbatch: ["#SBATCH --qos=high", --comment=pd]
    pools: {cheap: {partition: l40s}, big: {partition: h200, constraint: ib, account: big}}
"""


def topology(tmp_path: Path, text: str) -> Topology:
    file = tmp_path / "mixed.yaml"
    file.write_text(text)
    return resolve.load([file])


def test_every_pool_is_a_component_with_its_own_partition(tmp_path: Path) -> None:
    mixed = topology(tmp_path, MIXED)
    plan = host_placement.planned(mixed)
    parts = host_placement.components(mixed, plan)
    assert parts == (
        host_placement.Component("cheap", ("cheap-0", "cheap-1"), 4),
        host_placement.Component("big", ("big-0", "big-1"), 8),
    )
    assert submission.batch(mixed, parts, "blue", Path("/shared/blue")).splitlines() == [
        "#!/bin/sh",
        "#SBATCH --job-name=blue",
        "#SBATCH --output=/shared/blue/logs/supervisor.log",
        "#SBATCH --open-mode=append",
        "#SBATCH --time=90",
        "#SBATCH --no-requeue",
        "#SBATCH --no-kill",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --partition=l40s",
        "#SBATCH --account=llm",
        "#SBATCH --exclusive",
        "#SBATCH --mem=0",
        "#SBATCH --gres=gpu:4",
        "#SBATCH --qos=high",
        "#SBATCH --comment=pd",
        "#SBATCH hetjob",
        "#SBATCH --job-name=blue",
        "#SBATCH --time=90",
        "#SBATCH --no-requeue",
        "#SBATCH --no-kill",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --partition=h200",
        "#SBATCH --account=big",
        "#SBATCH --constraint=ib",
        "#SBATCH --exclusive",
        "#SBATCH --mem=0",
        "#SBATCH --gres=gpu:8",
        "#SBATCH --qos=high",
        "#SBATCH --comment=pd",
        "",
        f"exec {shlex.join(program.command('pdctl.launch.slurm'))} /shared/blue",
    ]


def test_an_instance_sees_its_own_gpus_and_advertises_its_own_host(tmp_path: Path) -> None:
    mixed = topology(tmp_path, MIXED)
    plan = host_placement.planned(mixed)
    specs = {spec.name: spec for spec in deployment_plan.deployment(mixed, plan).specs}
    second = specs["prefill-1"]
    assert second.place == "cheap-0"
    assert dict(second.env) == {"CUDA_VISIBLE_DEVICES": "2,3", "SGLANG_HOST_IP": "cheap-0"}
    assert "--base-gpu-id" not in second.argv
    follower = specs["decode-0-node1"]
    assert follower.place == "big-1"
    assert dict(follower.env)["SGLANG_HOST_IP"] == "big-1"
    assert follower.argv[follower.argv.index("--dist-init-addr") + 1].startswith("big-0:")
    assert specs["router"].place == "cheap-0"


def test_a_step_names_its_hosts_and_shares_them(tmp_path: Path) -> None:
    mixed = topology(tmp_path, MIXED)
    plan = host_placement.planned(mixed)
    parts = host_placement.components(mixed, plan)
    decode = [spec for spec in deployment_plan.deployment(mixed, plan).specs if spec.instance == "decode-0"]
    words = submission.planned_step(mixed, parts, plan, decode)
    assert words[:5] == ["srun", "--het-group=1", "--nodelist=big-0,big-1", "--nodes=2", "--ntasks=2"]
    assert "--gres=gpu:8" in words
    assert {"--overlap", "--kill-on-bad-exit=1"} <= set(words)
    assert "--gpus-per-node=0" in submission.step(["n0"], [], "")


def test_a_dry_run_shows_each_step_whole(tmp_path: Path) -> None:
    order = LaunchOrder(topology(tmp_path, MIXED), "", [], [], [], name="blue")
    steps = dict(SlurmTarget(order).dry_run().steps)
    for name, words in steps.items():
        assert words[0] == "srun"
        assert words[-3:-1] == ["-m", "pdctl.launch.slurm.rank"]
        assert words[-1].endswith(f"/blue/steps/{name}.g1.json")


def test_ranks_on_the_cpu_ask_for_no_gpu(tmp_path: Path) -> None:
    plain = topology(tmp_path, "version: pdctl/v1\nroles: {prefill: {}, decode: {}}\n")
    parts = host_placement.components(plain, host_placement.planned(plain))
    assert parts == (host_placement.Component("default", ("default-0",), 0),)
    assert "--gres" not in submission.batch(plain, parts, "x", Path("/x"))


def test_a_job_for_each_instance_asks_for_its_hosts_alone(tmp_path: Path) -> None:
    mixed = topology(tmp_path, MIXED.replace("time: 90m", "time: 90m\n    layout: job-per-instance"))
    plan = host_placement.planned(mixed)
    parts = host_placement.components(mixed, plan)
    # two prefills share each host of four GPUs; the decode spans two
    assert [part.hosts for part in parts] == [("cheap-0",), ("cheap-1",), ("big-0", "big-1")]
    leader = submission.batch(mixed, parts[:1], "blue", Path("/shared/blue"))
    assert "hetjob" not in leader
    assert "#SBATCH --nodes=1" in leader
    held = submission.holder(mixed, parts[2], "blue", Path("/shared/blue"))
    assert "#SBATCH --partition=h200" in held
    assert held.endswith(f'exec {shlex.join(program.command("pdctl.launch.slurm.queue"))} "$1"\n')
    decode = [spec for spec in deployment_plan.deployment(mixed, plan).specs if spec.instance == "decode-0"]
    assert submission.planned_step(mixed, parts, plan, decode)[:2] == ["srun", "--jobid=JOB2"]


def test_a_generation_moves_every_port_past_those_of_its_neighbours(tmp_path: Path) -> None:
    mixed = topology(tmp_path, MIXED)
    hosts = ("cheap-0", "cheap-1", "big-0", "big-1")
    seats = tuple(RunSeat(host, f"n{at}", f"10.0.0.{at}", at // 2) for at, host in enumerate(hosts))
    plan = host_placement.plan_on_allocation(mixed, seats)
    runtime = SlurmRuntime("blue", RunDir(tmp_path), mixed, plan, Allocation("slurm", "12", seats))
    first = tuple(spec for spec in deployment_plan.deployment(mixed, plan).specs if spec.instance == "prefill-0")
    ports = [runtime.moved(first, generation)[0].port for generation in range(1, 6)]
    # two instances on its host, 32 ports each; the fifth generation is back at the first place
    assert [port - ports[0] for port in ports] == [0, 64, 128, 192, 0]
    moved = runtime.moved(first, 2)[0]
    assert moved.bootstrap_port == (first[0].bootstrap_port or 0) + 64
    assert moved.place == first[0].place
    assert str(moved.port) in moved.argv
    router = tuple(spec for spec in deployment_plan.deployment(mixed, plan).specs if spec.name == "router")
    assert runtime.moved(router, 2) == router


def test_a_hosts_name_becomes_a_number() -> None:
    assert host_placement.numeric("n0", "localhost") == "127.0.0.1"
    assert host_placement.numeric("n0", "10.0.0.7") == "10.0.0.7"
    with pytest.raises(LaunchError, match=r"n0: Slurm's address nowhere\.invalid cannot be resolved"):
        host_placement.numeric("n0", "nowhere.invalid")


@pytest.mark.parametrize("key", ["partition", "account", "gres"])
@pytest.mark.parametrize("letter", ["\n", "\r", "\x1b", "\u2028"])
def test_a_value_cannot_begin_a_line_of_its_own(tmp_path: Path, key: str, letter: str) -> None:
    text = (
        MIXED.replace("account: llm", "")
        .replace("partition: l40s", "")
        .replace("    time: 90m", "    time: 90m\n    KEY")
    )
    value = json.dumps(f"x{letter}#SBATCH --uid=root")
    mixed = topology(tmp_path, text.replace("KEY", f"{key}: {value}"))
    parts = host_placement.components(mixed, host_placement.planned(mixed))
    with pytest.raises(UsageError, match=rf"targets\.slurm\.{key}: .* has a line break or another control character"):
        submission.batch(mixed, parts, "blue", Path("/shared/blue"))


def test_a_further_line_is_one_line(tmp_path: Path) -> None:
    mixed = topology(tmp_path, MIXED.replace('"#SBATCH --qos=high"', '"--qos=high\\nrm -r x"'))
    parts = host_placement.components(mixed, host_placement.planned(mixed))
    with pytest.raises(UsageError, match=r"targets\.slurm\.extra-sbatch"):
        submission.batch(mixed, parts, "blue", Path("/shared/blue"))


def test_a_path_is_quoted_as_sbatch_reads_it(tmp_path: Path) -> None:
    mixed = topology(tmp_path, MIXED)
    parts = host_placement.components(mixed, host_placement.planned(mixed))
    text = submission.batch(mixed, parts, "blue", Path('/shared/my runs/50%/a"b'))
    assert '#SBATCH --output="/shared/my runs/50%%/a\\"b/logs/supervisor.log"\n' in text
