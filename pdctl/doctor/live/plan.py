"""Could the planned deployment start on this host? PD218 and PD408."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.catalogue.entry import Needs
from pdctl.doctor.check import Check, Skipped, Unknown, finding

if TYPE_CHECKING:
    from pdctl.doctor.facts import Facts
    from pdctl.doctor.finding import Finding
    from pdctl.fleet.facts import Host

NIXL = ("nixl", "nixl-cu12", "nixl-cu13")
NOT_LOCAL = Skipped("no topology that runs on this host")


def taken(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD218: somebody else holds a port of an instance that is not up."""
    plan, host = facts.plan, facts.host
    if plan is None or plan.target != "local":
        return NOT_LOCAL
    if host is None:
        return Unknown("this host was not looked at")
    up = {engine.endpoint.name for engine in facts.engines if engine.reached}
    return [
        finding(
            "PD218",
            one.name,
            observed=str(port.port),
            expected="a free port",
            evidence=(f"{port.purpose} port {port.port} of {one.name}: {host.busy[port.port]}",),
            other=host.busy[port.port],
            fix=f"end {host.busy[port.port]}, or move the ports of the topology",
        )
        for one in plan.instances
        if one.name not in up
        for port in one.ports
        if port.port in host.busy
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
    if plan.engine != "embedded" and wanted[0].serving.command:
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
    Check("PD218", (Needs.TOPOLOGY, Needs.ENDPOINT, Needs.HOST), taken),
    Check("PD408", LOCAL, nixl),
)
