"""What this host offers the processes of a run: ports, devices, packages, memory, files, disk.

PD218, PD401, PD404, PD408, PD804, PD806 and PD807.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from pdctl.catalogue.entry import Needs, Severity
from pdctl.doctor import server_info
from pdctl.doctor.check import Check, Skipped, Unknown, finding, names
from pdctl.doctor.live.engine_hosts import LOCAL, engines_of_host, here, used_devices
from pdctl.engines.kinds import EMBEDDED
from pdctl.fleet import peer_json
from pdctl.shell_quoting import pasteable

if TYPE_CHECKING:
    from pdctl.doctor.check import Facts, Finding
    from pdctl.fleet.observations import DiskSpace, Holder, Host, ObservedEngine, ProcessLimits
    from pdctl.layout.ports import BoundPort


NIXL = ("nixl", "nixl-cu12", "nixl-cu13")
GIB = 1 << 30
PER_RANK = 8  # sockets per rank of the other side: ZMQ in both directions, bootstrap, transfer library, and a reserve
OF_A_RUN = "name the run, with pdctl doctor --run RUN, on the host it runs on"
NEAR, OVER = 0.8, 0.95  # share of a process's limit of open files
CLOSING = 128  # sockets in CLOSE_WAIT; a server that closes its sockets has only a few, briefly
LITTLE, NOTHING_LEFT = 256 << 20, 1 << 20  # bytes of free space
BASE = 256  # files a process has open before it connects to anything
PLANNED = (Needs.TOPOLOGY, Needs.HOST)
NOT_LOCAL = Skipped("no topology that runs on this host")


def ports_taken(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD218: a foreign process listens on a port of an instance that does not serve.

    A server that hangs still holds its own ports. It is recognised by its pid if a run recorded it, else by its --port.
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
    """PD401: an RDMA device that the topology names but this host does not have."""
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
    """PD408: the transfer library is missing, or installed twice in different builds."""
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


def memlock(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD404: an engine's KV pool cannot be pinned."""
    used = used_devices(facts)
    if not isinstance(used, list):
        return used
    limits = _limits(facts)
    found: list[Finding] = []
    unseen: list[str] = []
    unsized: list[str] = []
    for engine in here(facts):
        name, pool = engine.endpoint.name, _pool(engine)
        bounded = [one for one in limits.get(name, []) if one.memlock is not None]
        if not limits.get(name):
            unseen.append(name)
        for least in sorted(bounded, key=lambda one: one.memlock or 0)[:1]:
            limit = least.memlock or 0
            if pool is None and limit >= GIB:
                unsized.append(name)
            elif pool is None or limit < pool:
                need = f"{pool / GIB:.1f} GiB, its KV pool" if pool is not None else "the size of its KV pool"
                shown = f"{limit >> 10} KiB"
                evidence = (f"/proc/{least.pid}/limits: Max locked memory {shown}", f"needed: {need}")
                found.append(finding("PD404", name, observed=shown, expected=need, evidence=evidence))
    if found or not unsized:
        return found or _unseen(unseen)
    return Unknown(f"how large the KV pools of {names(unsized)} are is not known, and locked memory is limited")


def _pool(engine: ObservedEngine) -> int | None:
    """Size of its KV pool in bytes, from /v1/loads (0.5.8 and later)."""
    for load in engine.loads:
        size = peer_json.number(peer_json.mapping(load.get("memory")).get("kv_cache_gb"))
        if size is not None and size > 0:
            return int(size * GIB)
    return None


def files(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD804: too few open files for an engine that talks to every rank while all its slots are in use."""
    engines = engines_of_host(facts)
    if not isinstance(engines, list):
        return engines
    limits = _limits(facts)
    ranks = sum(server_info.ranks(engine) or 1 for engine in facts.engines)
    slots = max((engine.number("max_running_requests") or 0 for engine in engines), default=0)
    needed = BASE + PER_RANK * ranks + 2 * slots
    told = {engine.endpoint.name: limits.get(engine.endpoint.name, []) for engine in engines}
    found = [
        finding(
            "PD804",
            name,
            observed=str(least.files),
            expected=str(needed),
            evidence=(
                f"/proc/{least.pid}/limits: Max open files {least.files}",
                f"{ranks} ranks in all, {slots} requests at once on one instance",
            ),
        )
        for name, some in told.items()
        if some and (least := min(some, key=lambda one: one.files)).files < needed
    ]
    return found or _unseen([name for name, some in told.items() if not some])


def _limits(facts: Facts) -> dict[str, list[ProcessLimits]]:
    found: dict[str, list[ProcessLimits]] = {}
    for one in facts.host.processes if facts.host is not None else ():
        found.setdefault(one.instance, []).append(one)
    return found


def _unseen(who: list[str]) -> list[Finding] | Unknown:
    """Unknown for engines whose limits were not read: those of doctor's own shell say nothing about theirs."""
    return Unknown(f"the limits of {names(who)} are not known: {OF_A_RUN}") if who else []


def descriptors(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD806: a process is close to its limit of open files, or keeps connections that its peers have closed."""
    if facts.host is None:
        return Unknown("this host was not looked at")
    seen = [(one, one.open) for one in facts.host.processes if one.open is not None]
    if not seen:
        return Skipped(f"no process to look at: {OF_A_RUN}")
    worst: dict[str, tuple[float, Finding]] = {}
    for one, count in seen:
        share = count / max(1, one.files)
        if share < NEAR and one.closing < CLOSING:
            continue
        observed = f"{count} of {one.files} files open" if share >= NEAR else f"{one.closing} sockets in CLOSE_WAIT"
        said = finding(
            "PD806",
            one.instance,
            observed=observed,
            expected=f"fewer than {NEAR:.0%} of its limit, and fewer than {CLOSING} sockets in CLOSE_WAIT",
            evidence=(f"/proc/{one.pid}/fd: {count} open, {one.closing} of them sockets in CLOSE_WAIT",
                      f"/proc/{one.pid}/limits: Max open files {one.files}"),
            severity=Severity.ERROR if share >= OVER else None,
            fix=f"restart {pasteable(one.instance)} from a shell with ulimit -n {max(65536, 4 * one.files)}"
            if share >= NEAR
            else f"ss -tnp state close-wait | grep pid={one.pid},",
        )  # fmt: skip
        if share >= worst.get(one.instance, (-1.0, said))[0]:
            worst[one.instance] = (share, said)
    return [said for _, said in worst.values()]


def disks(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD807: a filesystem the run writes to is full or nearly full."""
    if facts.host is None:
        return Unknown("this host was not looked at")
    if not facts.host.disks:
        return Skipped(f"no folder to look at: {OF_A_RUN}")
    return [_disk(facts.host, one) for one in facts.host.disks if one.lost or one.free < LITTLE or _no_files(one)]


def _no_files(one: DiskSpace) -> bool:
    return one.total_files > 0 and one.free_files == 0


def _disk(host: Host, one: DiskSpace) -> Finding:
    full = bool(one.lost) or one.free < NOTHING_LEFT or _no_files(one)
    left = "no file (inode)" if _no_files(one) else f"{one.free} bytes"
    return finding(
        "PD807",
        host.name,
        observed=f"{left} left",
        expected=f"{LITTLE >> 20} MiB or more",
        evidence=(f"{one.folder}: {one.free} of {one.total} bytes left", *([one.lost] if one.lost else [])),
        severity=None if full else Severity.WARNING,
        folder=one.folder,
    )


CHECKS = (
    Check("PD218", (Needs.TOPOLOGY, Needs.ENDPOINT, Needs.HOST), ports_taken),
    Check("PD401", PLANNED, missing_devices),
    Check("PD408", PLANNED, nixl),
    Check("PD404", LOCAL, memlock),
    Check("PD804", LOCAL, files),
    Check("PD806", (Needs.HOST,), descriptors),
    Check("PD807", (Needs.HOST,), disks),
)
