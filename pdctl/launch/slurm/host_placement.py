"""Map a topology to hosts: which hosts a job asks for, and the plan on the hosts it was given."""

from __future__ import annotations

import dataclasses
import socket
import time
from typing import TYPE_CHECKING

from pdctl.errors import InfeasibleError, LaunchError, NotReadyError
from pdctl.launch import deployment_plan
from pdctl.launch.run_record import Allocation, RunSeat
from pdctl.launch.slurm import queue
from pdctl.layout.hosts import Site
from pdctl.layout.planner import plan_topology
from pdctl.loopback import is_loopback
from pdctl.name_lookup import look_up
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.layout.instance_plan import Plan
    from pdctl.topology.model import Topology

EVERYWHERE = "0.0.0.0"
POLL = 2.0  # seconds between two queries of the queue


class Component(NamedTuple):
    """Hosts of one pool: a component of the job. `gpus`: per host, 0 if its ranks run on the CPU."""

    pool: str
    hosts: tuple[str, ...]
    gpus: int


def clustered(topology: Topology) -> Topology:
    """`topology` with a router that other hosts can reach, unless the topology sets `router.host` itself."""
    if not is_loopback(topology.router.host) or "router.host" in topology.spans:
        return topology
    return topology._replace(router=topology.router._replace(host=EVERYWHERE))


def planned(topology: Topology) -> Plan:
    """The plan before hosts are allocated. Raise InfeasibleError with every problem."""
    names = plan_topology(clustered(topology), "pools").host_names
    # The plan's own names stand in for the hosts, so that every command has its final form.
    plan = plan_topology(clustered(topology), "pools", sites={name: Site(name, name) for name in names})
    return _feasible(plan)


def plan_on_allocation(topology: Topology, seats: tuple[RunSeat, ...]) -> Plan:
    """The plan on the hosts of an allocation. Raise InfeasibleError with every problem."""
    sites = {seat.planned: Site(seat.node, seat.address) for seat in seats}
    return _feasible(plan_topology(clustered(topology), "pools", sites=sites))


def _feasible(plan: Plan) -> Plan:
    if not plan.feasible:
        raise InfeasibleError(f"`{plan.name}` cannot run:{''.join(map(deployment_plan.infeasible, plan.problems))}")
    return plan


def needs_several_jobs(topology: Topology) -> bool:
    """Whether each group of hosts gets a job of its own."""
    return topology.targets.slurm.get("layout") == "job-per-instance"


def components(topology: Topology, plan: Plan) -> tuple[Component, ...]:
    """The groups in which hosts are requested, the router's first. `plan`: with its own host names."""
    return _groups(topology, plan) if needs_several_jobs(topology) else pools(topology, plan)


def pools(topology: Topology, plan: Plan) -> tuple[Component, ...]:
    """One component per pool, prefill's first: its first host runs the router and the supervisor."""
    names = dict.fromkeys((topology.prefill.pool, topology.decode.pool))
    return tuple(
        _component(topology, plan, [host for host in plan.host_names if _pool(host) == pool]) for pool in names
    )


def _groups(topology: Topology, plan: Plan) -> tuple[Component, ...]:
    """One component per group of hosts: hosts that an instance spans, or that instances share, belong together."""
    groups: list[list[str]] = []
    for one in plan.instances:
        touched = [group for group in groups if set(group) & set(one.host_names)]
        merged = list(dict.fromkeys([*(host for group in touched for host in group), *one.host_names]))
        groups = [group for group in groups if group not in touched] + [merged]
    groups.sort(key=lambda group: min(map(plan.host_names.index, group)))
    return tuple(_component(topology, plan, group) for group in groups)


def _component(topology: Topology, plan: Plan, hosts: list[str]) -> Component:
    here = [one for one in plan.instances if set(one.host_names) & set(hosts)]
    on_gpu = any(rank.gpu is not None for one in here for rank in one.ranks)
    pool = _pool(hosts[0])
    ordered = sorted(hosts, key=lambda host: int(host.rpartition("-")[2]))
    return Component(pool, tuple(ordered), topology.pool(pool).gpus_per_host if on_gpu else 0)


def _pool(host: str) -> str:
    return host.rpartition("-")[0]


def allocation(
    wanted: tuple[Component, ...], submitted: Allocation, interfaces: Mapping[str, str], environ: Mapping[str, str]
) -> Allocation:
    """The allocated hosts, seen from inside the supervisor's job.

    `interfaces`: pool → the network interface whose address to use instead of Slurm's. Raise LaunchError if hosts or
    addresses are missing.
    """
    seats: list[RunSeat] = []
    lists = _own(submitted) if submitted.others else _listed(len(wanted), environ)
    for number, (component, listed) in enumerate(zip(wanted, lists, strict=True)):
        names = queue.hosts(listed)
        if len(names) < len(component.hosts):
            few = f"{len(names)} hosts for pool {component.pool}, {len(component.hosts)} are needed"
            raise LaunchError(f"job {submitted.job} has {few}", "this is what Slurm itself says; submit again")
        interface = interfaces.get(component.pool)
        if interface:
            known = _addresses(names, interface, part(submitted, len(wanted), number))
        else:
            known = {node.name: numeric(node.name, node.address) for node in queue.nodes(listed)}
        seats += [RunSeat(host, name, known[name], number) for host, name in zip(component.hosts, names, strict=False)]
    ends = [each.ends_at for job in submitted.jobs for each in queue.components(job) if each.ends_at]
    return dataclasses.replace(submitted, seats=tuple(seats), ends_at=min(ends, default=0.0))


def numeric(name: str, address: str) -> str:
    """A host's IP address, IPv4 if it has one: Slurm may give a name, but engines tell their peers an IP address."""
    try:
        found = look_up(address, 0)
    except OSError as error:
        fix = "set targets.slurm.interface to the interface the hosts reach each other by"
        raise LaunchError(f"{name}: Slurm's address {address} cannot be resolved: {error.strerror}", fix) from None
    return min(found, key=lambda entry: entry.family != socket.AF_INET).host


def part(submitted: Allocation, components: int, number: int) -> list[str]:
    """The srun flags that select component `number` of a run's hosts."""
    if submitted.others:
        return [f"--jobid={submitted.jobs[number]}"]
    return [f"--het-group={number}"] if components > 1 else []


def _listed(components: int, environ: Mapping[str, str]) -> list[str]:
    if components == 1:
        return [environ["SLURM_JOB_NODELIST"]]
    return [environ.get(f"SLURM_JOB_NODELIST_HET_GROUP_{number}", "") for number in range(components)]


def _own(submitted: Allocation) -> list[str]:
    """Every job's host list, once all jobs run. Raise NotReadyError naming a job that does not start, and why."""
    deadline = time.monotonic() + submitted.patience
    while True:
        jobs = [queue.leader(job) for job in submitted.jobs]
        waiting = [job for job in jobs if job.pending]
        over = [job for job in jobs if job.over]
        if over:
            raise LaunchError(f"job {over[0].id} is {over[0].state or 'gone'} before the others run", "launch again")
        if not waiting:
            return [job.nodes for job in jobs]
        if time.monotonic() > deadline:
            message = f"job {waiting[0].id} did not start within {submitted.patience:g} s: {waiting[0].reason}"
            raise NotReadyError(message, "--queue-timeout waits longer")
        time.sleep(POLL)


def _addresses(names: tuple[str, ...], interface: str, group: list[str]) -> dict[str, str]:
    """Every host's IPv4 address on `interface`, as the host itself reports it."""
    answer = queue.ask(
        "srun", *group, "--overlap", "--gpus-per-node=0", f"--nodes={len(names)}", f"--ntasks={len(names)}",
        "--ntasks-per-node=1", "sh", "-c", f"echo $SLURMD_NODENAME $(ip -o -4 addr show dev '{interface}' | head -n 1)",
    )  # fmt: skip
    found: dict[str, str] = {}
    for line in answer.output.splitlines():
        words = line.split()
        if "inet" in words:
            found[words[0]] = words[words.index("inet") + 1].partition("/")[0]
    missing = [name for name in names if name not in found]
    if missing:
        said = f": {answer.error.splitlines()[-1]}" if answer.error else ""
        raise LaunchError(
            f"{', '.join(missing)}: no IPv4 address on interface {interface}{said}",
            "set targets.slurm.interface to the interface the hosts reach each other by (`ip -4 addr` on a host)",
        )
    return found


def interfaces(topology: Topology) -> dict[str, str]:
    common = topology.targets.slurm.get("interface")
    named = {pool.name: pool.interface or common for pool in topology.pools}
    return {pool: str(interface) for pool, interface in named.items() if interface}
