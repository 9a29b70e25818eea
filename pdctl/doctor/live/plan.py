"""Could the planned deployment start on this host? PD218, PD401 and PD408."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from pdctl.catalogue.entry import Needs
from pdctl.doctor.check import Check, Skipped, Unknown, finding
from pdctl.doctor.finding import names
from pdctl.engines.kinds import EMBEDDED

if TYPE_CHECKING:
    from pdctl.doctor.facts import Facts
    from pdctl.doctor.finding import Finding
    from pdctl.fleet.observations import Holder, Host
    from pdctl.layout.serving import BoundPort

NIXL = ("nixl", "nixl-cu12", "nixl-cu13")
NOT_LOCAL = Skipped("no topology that runs on this host")


def ports_taken(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD218: a process of somebody else listens on a port of an instance that does not serve.

    A server that hangs holds its own ports. It is known by its pid, where a run recorded it, and else by its --port.
    """
    plan, host = facts.plan, facts.host
    if plan is None or plan.target != "local":
        return NOT_LOCAL
    if host is None:
        return Unknown("this host was not looked at")
    serves = {engine.endpoint.name for engine in facts.engines if engine.info}
    found: list[Finding] = []
    hidden: list[int] = []
    for one in plan.instances:
        if one.name in serves or _its_own(host.busy.get(one.http_port), one.http_port):
            continue
        for port in one.ports:
            holder = host.busy.get(port.port)
            if holder is not None and holder.pid is None:
                hidden.append(port.port)
            elif holder is not None and not holder.instance:
                found.append(_port_taken(one.name, port, holder))
    if hidden and not found:
        return Unknown(f"who listens on {names([str(port) for port in hidden])}: a process that this user cannot see")
    return found


def _its_own(holder: Holder | None, port: int) -> bool:
    return holder is not None and (bool(holder.instance) or bool(re.search(rf"--port[ =]{port}\b", holder.command)))


def _port_taken(name: str, port: BoundPort, holder: Holder) -> Finding:
    found = finding(
        "PD218",
        name,
        observed=f"{holder} listens on {port.port}",
        expected=f"port {port.port} is free, or held by {name}",
        evidence=(f"{port.purpose} port of {name}: {port.port}",),
        fix=f"stop pid {holder.pid} to free port {port.port}: kill {holder.pid}",
    )
    return replace(found, headline=f"port {port.port} ({name}, {port.purpose}) is taken by {holder}")


def missing_devices(facts: Facts) -> list[Finding] | Skipped:
    """PD401: an RDMA device that the topology names, and this host does not have."""
    plan, host = facts.plan, facts.host
    if plan is None or host is None or plan.target != "local":
        return NOT_LOCAL
    there = [device.name for device in host.rdma]
    users: dict[str, list[str]] = {}
    for one in plan.instances:
        for device in dict.fromkeys(one.serving.ib_devices):
            users.setdefault(device, []).append(one.name)
    return [
        finding("PD401", names(who), observed=device, expected=", ".join(there) or "none", evidence=())
        for device, who in sorted(users.items())
        if device not in there
    ]


def nixl(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD408: the transfer library is not there, or there twice in different builds."""
    plan, host = facts.plan, facts.host
    if plan is None or plan.target != "local":
        return NOT_LOCAL
    wanted = [one for one in plan.instances if one.serving.backend == "nixl"]
    if not wanted:
        return Skipped("no instance of the topology asks for nixl")
    if host is None:
        return Unknown("this host was not looked at")
    if plan.engine != EMBEDDED and wanted[0].serving.command:
        return Unknown("the engine has a command of its own, so its packages are not those of this Python")
    return _nixl(host, ", ".join(one.name for one in wanted))


def _nixl(host: Host, who: str) -> list[Finding]:
    there = {package.name: package.version for package in host.packages if package.name in NIXL}
    builds = {name: version for name, version in there.items() if name != "nixl"}
    if builds and len(set(there.values())) == 1:
        return []
    if not builds:
        observed = "no nixl-cu12 or nixl-cu13 in this Python"
    else:
        observed = "versions that do not belong together: " + ", ".join(f"{name} {there[name]}" for name in there)
    evidence = (f"{who} would start with backend nixl", *(f"{name} {version}" for name, version in there.items()))
    return [finding("PD408", host.name, observed=observed, expected="one build of one version", evidence=evidence)]


LOCAL = (Needs.TOPOLOGY, Needs.HOST)
CHECKS = (
    Check("PD218", (Needs.TOPOLOGY, Needs.ENDPOINT, Needs.HOST), ports_taken),
    Check("PD401", LOCAL, missing_devices),
    Check("PD408", LOCAL, nixl),
)
