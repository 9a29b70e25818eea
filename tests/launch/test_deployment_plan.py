"""What is started is what was planned; what one machine cannot be is refused in words."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pdctl.errors import InfeasibleError, LaunchError
from pdctl.launch import deployment_plan
from pdctl.launch.deployment import OnDeath, ServerPort
from pdctl.topology import resolve
from pdctl.topology.model import Topology


def topology(name: str, *sets: str) -> Topology:
    return resolve.load([resolve.topology_file(name)], sets, {})


def test_two_prefills_one_decode_and_a_router() -> None:
    written = topology("2p1d")
    plan = deployment_plan.plan_here(written)
    made = deployment_plan.deployment(written, plan)
    assert (made.name, made.shape, made.engine, made.url) == ("2p1d", "2P1D", "embedded", "http://127.0.0.1:8000")
    assert (Path(made.checkpoint) / "config.json").is_file()
    assert [spec.argv for spec in made.roles] == [instance.commands[0].argv for instance in plan.instances]
    assert made.router is not None
    assert plan.router is not None
    assert made.router.argv == plan.router.command.argv
    assert made.router.argv[:3] == (sys.executable, "-m", "pdctl.router")
    second = made.prefills[1]
    assert (second.url, second.bootstrap_port, second.ranks) == ("http://127.0.0.1:30001", 8999, 1)
    assert second.ports == (ServerPort(30001, "http", "ports.http"), ServerPort(8999, "bootstrap", "ports.bootstrap"))
    assert made.decodes[0].bootstrap_port is None


def test_every_node_of_an_instance_is_a_process_and_only_the_first_serves() -> None:
    written = topology("tp16dp8-two-nodes")
    plan = deployment_plan.plan_here(written)
    made = deployment_plan.deployment(written, plan)
    assert [spec.name for spec in made.specs] == ["prefill-0", "prefill-0-node1", "decode-0", "router"]
    assert [spec.argv for spec in made.roles] == [one.argv for each in plan.instances for one in each.commands]
    assert made.shape == "1P1D"
    assert [spec.name for spec in made.servers] == ["prefill-0", "decode-0"]
    first, second, _ = made.roles
    assert (first.ranks, first.bootstrap_port, second.ranks, second.bootstrap_port) == (16, 8998, 0, None)
    assert (second.url, second.health_path) == ("http://127.0.0.1:30001", "/health")
    assert second.ports == (ServerPort(30001, "http", "ports.http"),)
    assert {port.key for port in first.ports} == {"ports.http", "ports.bootstrap", "ports.dist-init"}


def test_what_the_command_line_says_goes_before_the_topology() -> None:
    written = topology("2p1d", "readiness.restart.policy=instance", "readiness.restart.max=7", "readiness.timeout=90s")
    told = deployment_plan.options(written, None, None, verify=True)
    assert (told.timeout, told.on_death, told.max_restarts) == (90.0, OnDeath.INSTANCE, 7)
    before = [OnDeath(word) for word in ("keep-serving", "stop", "restart", "restart-all")]
    assert before == [OnDeath(word) for word in ("keep-serving", "none", "instance", "all")]
    said = deployment_plan.options(written, 5.0, OnDeath.NONE, verify=False)
    assert (said.timeout, said.on_death, said.verify) == (5.0, OnDeath.NONE, False)


def test_a_deployment_for_many_hosts_is_not_started_here() -> None:
    with pytest.raises(LaunchError, match="needs 8 hosts with 64 GPUs") as refused:
        deployment_plan.plan_here(topology("deepseek-v3-wide"))
    assert "pdctl plan" in refused.value.fix


def test_an_infeasible_plan_names_its_problems_and_what_would_fit() -> None:
    with pytest.raises(InfeasibleError) as refused:
        deployment_plan.plan_here(topology("2p1d", "engine.kind=sglang", "model.path=m", "roles.prefill.ep=3"))
    lines = refused.value.message.splitlines()
    assert lines[0] == "`2p1d` cannot run here:"
    assert lines[1].startswith("  ep-")
    assert lines[2].startswith("    nearest: ")
