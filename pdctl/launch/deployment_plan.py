"""Turn a topology into the commands to start: those of its plan, so that what `pdctl plan` prints is what runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl import package_data
from pdctl.engines.kinds import EMBEDDED
from pdctl.errors import InfeasibleError, LaunchError
from pdctl.launch import installed_parts
from pdctl.launch.deployment import Deployment, LaunchOptions, OnDeath, ServerPort, ServerRole, Spec
from pdctl.layout.commands import METRICS_FLAG
from pdctl.layout.hosts import LOCAL
from pdctl.layout.planner import plan_topology

if TYPE_CHECKING:
    from pdctl.layout.instance_plan import InstancePlan, Plan, RouterPlan
    from pdctl.layout.serving import NodeCommand
    from pdctl.layout.shape import Problem
    from pdctl.topology.model import Topology

CLUSTER = (
    "launch it on a cluster with -t slurm or -t kubernetes, or start it host by host: pdctl plan FILE -o shell prints "
    "every command"
)
# The setting that moves a port of each purpose; ports of every other purpose are derived from the dist-init port.
KEYS = {"http": "ports.http", "bootstrap": "ports.bootstrap"}
ROUTER_KEYS = {"http": "router.port", "metrics": f"router.args.{METRICS_FLAG}"}


def plan_here(topology: Topology) -> Plan:
    """The plan for this machine. Raise InfeasibleError with every problem, LaunchError if it needs several hosts."""
    plan = plan_topology(topology, target="local")
    if plan.feasible:
        return plan
    elsewhere = plan_topology(topology)
    if elsewhere.feasible and len(elsewhere.host_names) > 1:
        hosts = f"{len(elsewhere.host_names)} hosts with {elsewhere.gpus} GPUs"
        message = f"`{plan.name}` needs {hosts}; `pdctl launch` starts processes on this machine only"
        raise LaunchError(message, CLUSTER)
    raise InfeasibleError(f"`{plan.name}` cannot run here:{''.join(map(infeasible, plan.problems))}")


def deployment(topology: Topology, plan: Plan) -> Deployment:
    """The commands of `plan`, which comes from `plan_here` or was made for the hosts that a target allocated."""
    model = topology.model
    local = topology.engine.kind == EMBEDDED or Path(model.path).is_dir()
    path = topology.readiness.path
    roles = tuple(spec for one in plan.instances for spec in specs(one, path))
    router = _router(plan.router) if plan.router else None
    checkpoint = str(Path(model.path).absolute()) if local else ""
    release = plan.version if plan.engine != EMBEDDED else ""
    if topology.engine.kind == EMBEDDED:
        package_data.unpack(Path(checkpoint))
    found = Deployment(topology.name, plan.engine, model.served_name, checkpoint, roles, router, release)
    return installed_parts.equipped(found)


def options(topology: Topology, timeout: float | None, on_death: OnDeath | None, verify: bool) -> LaunchOptions:
    """The topology's readiness settings; values from the command line take precedence."""
    readiness = topology.readiness
    return dataclasses.replace(
        LaunchOptions(),
        timeout=readiness.timeout if timeout is None else timeout,
        interval=readiness.interval,
        verify=verify,
        on_death=OnDeath(readiness.restart) if on_death is None else on_death,
        max_restarts=readiness.max_restarts,
        backoff=readiness.backoff,
        backoff_max=readiness.backoff_max,
    )


def infeasible(problem: Problem) -> str:
    ways = "".join(f"\n    nearest: {way}" for way in problem.nearest)
    return f"\n  {problem.code}: {problem.message}{ways}"


def specs(instance: InstancePlan, health_path: str) -> tuple[Spec, ...]:
    """The commands of one instance, one per node."""
    return tuple(_role(instance, command, health_path) for command in instance.commands)


def _role(instance: InstancePlan, command: NodeCommand, health_path: str) -> Spec:
    node = command.node
    prefill = instance.role == ServerRole.PREFILL.value and not node
    return Spec(
        name=f"{instance.name}-node{node}" if node else instance.name,
        role=ServerRole(instance.role),
        argv=command.argv,
        env=(*command.env, *_advertised(instance, node)),
        host=instance.node_address(node),
        port=next(port.port for port in instance.ports if port.node == node and port.purpose == "http"),
        ports=tuple(
            ServerPort(port.port, port.purpose, KEYS.get(port.purpose, "ports.dist-init"))
            for port in instance.ports
            if port.node == node
        ),
        # Nodes other than node 0 answer this path only.
        health_path="/health" if node else health_path,
        bootstrap_port=instance.bootstrap_port if prefill else None,
        ranks=len(instance.ranks) if prefill else 0,
        node=node,
        place=instance.host_names[node] if instance.addresses else "",
    )


def _advertised(instance: InstancePlan, node: int) -> tuple[tuple[str, str], ...]:
    """A host may have several addresses; both engines advertise this one to their peers (sglang 0.5.3 and later)."""
    return (("SGLANG_HOST_IP", instance.node_address(node)),) if instance.addresses else ()


def _router(router: RouterPlan) -> Spec:
    return Spec(
        name=router.name,
        role=ServerRole.ROUTER,
        argv=router.command.argv,
        env=router.command.env,
        host=router.address,
        port=router.port,
        ports=tuple(ServerPort(number, purpose, ROUTER_KEYS[purpose]) for number, purpose in router.ports),
        health_path="/readiness",
        place=router.host_name if router.host_name != LOCAL else "",
    )
