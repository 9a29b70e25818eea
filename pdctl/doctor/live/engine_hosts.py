"""This host, for engines that run here: RDMA (PD401 to PD403, PD405, PD406, PD412), environment (PD407, PD411 …)."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pdctl.catalogue.entry import Needs, Severity
from pdctl.doctor import server_info
from pdctl.doctor.bootstrap_ports import address, host_key
from pdctl.doctor.check import Check, Skipped, Unknown, finding, names
from pdctl.doctor.static import environment_checks
from pdctl.doctor.static.servers import Server, Servers, WrittenSetting
from pdctl.engines import numerals
from pdctl.engines.kinds import EMBEDDED, RELEASED
from pdctl.manifests.command_lines import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pdctl.doctor.check import Facts, Finding, Verdict
    from pdctl.fleet.observations import Host, ObservedEngine, RdmaDevice

RDMA_BACKENDS = ("mooncake", "nixl", "mori")
ACTIVE = "ACTIVE"
LARGE, SLOW = 64.0, 0.1  # MB from which a transfer's speed is meaningful; share of a NIC's rate that is too slow
CRAWL = 0.001  # GB/s; any network is above it
NOTICED = 200.0  # ms; a shorter transfer is not noticed
NOT_HERE = "no instance runs on this host; run doctor where they do"
LOCAL = (Needs.ENDPOINT, Needs.HOST)
PLACE = "this shell"


def here(facts: Facts) -> list[ObservedEngine]:
    """The engines that run on this host, by their address."""
    host = facts.host
    if host is None:
        return []
    own = {host_key(one) for one in host.addresses} | {"127.0.0.1", host.name}
    return [engine for engine in facts.engines if host_key(address(engine.endpoint.url)[0]) in own]


def missing(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD401: a named device that this host does not have."""
    seen = engines_of_host(facts)
    if not isinstance(seen, list):
        return seen
    return [
        finding(
            "PD401",
            engine.endpoint.name,
            observed=name,
            expected=", ".join(_names(facts)) or "none",
            evidence=(f"{engine.endpoint.url}/server_info: disaggregation_ib_device {name}",),
        )
        for engine in seen
        for name in _named_devices(engine)
        if name not in _names(facts)
    ]


def port_down(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD402: a device in use whose port is not active."""
    used = used_devices(facts)
    if not isinstance(used, list):
        return used
    return [
        finding(
            "PD402",
            facts.host.name if facts.host is not None else "",
            observed=device.state,
            expected=ACTIVE,
            evidence=(f"/sys/class/infiniband/{device.name}/ports/1/state: {device.state}",),
            device=device.name,
        )
        for device in used
        if device.state != ACTIVE
    ]


def gids(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD403: a RoCE device without a routable RoCE v2 address."""
    used = used_devices(facts)
    if not isinstance(used, list):
        return used
    roce = [device for device in used if device.link_layer == "Ethernet" and device.state == ACTIVE]
    return [
        finding(
            "PD403",
            facts.host.name if facts.host is not None else "",
            observed="; ".join(f"{index} {value} {kind}" for index, value, kind in device.gids[:4]) or "none at all",
            expected="a RoCE v2 GID with an IP address",
            device=device.name,
            evidence=(f"/sys/class/infiniband/{device.name}/ports/1/gids has no RoCE v2 entry with an IP address",),
        )
        for device in roce
        if not any(_routable(value, kind) for _, value, kind in device.gids)
    ]


def _routable(gid: str, kind: str) -> bool:
    try:
        return "v2" in kind and not ipaddress.IPv6Address(gid).is_link_local
    except ValueError:
        return False


def gpudirect(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD405: GPUs and RDMA, but nothing that connects the two; a warning if the driver might not need it."""
    used = used_devices(facts)
    if not isinstance(used, list):
        return used
    host = facts.host
    assert host is not None  # as above
    if not host.gpus or host.peermem or host.dma_buf:
        return []
    mooncake = [engine for engine in here(facts) if server_info.backend(engine) == "mooncake"]
    if not mooncake:
        return Skipped("no instance with mooncake runs on this host")
    why = "nvidia_peermem is not loaded" + (" and the driver is the proprietary one" if host.dma_buf is False else "")
    return [
        finding(
            "PD405",
            host.name,
            observed=why,
            expected="nvidia_peermem, or the open kernel module with dma-buf",
            evidence=("/sys/module has no nvidia_peermem", "/proc/driver/nvidia/version"),
            severity=None if host.dma_buf is False else Severity.WARNING,
        )
    ]


def tcp(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD406: mooncake without a working device."""
    seen = engines_of_host(facts)
    if not isinstance(seen, list):
        return seen
    host = facts.host
    assert host is not None  # as above
    if any(device.state == ACTIVE for device in host.rdma) or host.environ.get("MC_FORCE_TCP"):
        return []
    why = "no RDMA device of this host is active" if host.rdma else "this host has no RDMA device"
    return [
        finding(
            "PD406",
            engine.endpoint.name,
            observed=f"{why}, and nothing says that TCP is intended",
            expected="an active RDMA device, or mooncake_tcp",
            evidence=(f"{engine.endpoint.url}/server_info: disaggregation_transfer_backend mooncake",
                      "/sys/class/infiniband: " + (", ".join(_names(facts)) or "empty")),
        )
        for engine in seen
        if server_info.backend(engine) == "mooncake"
    ]  # fmt: skip


def crawling(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD412: transfers take a noticeable time at a speed below that of any fabric, whatever their size."""
    if not facts.engines:
        return Skipped("no instance was given")
    found: list[Finding] = []
    told = False
    for engine in facts.engines:
        speed, latency = (_mean(engine, name) for name in ("kv_transfer_speed_gb_s", "kv_transfer_latency_ms"))
        if not speed or not latency:
            continue
        told = True
        if speed < CRAWL and latency >= NOTICED:
            found.append(
                finding(
                    "PD412",
                    engine.endpoint.name,
                    observed=f"{speed:.3g} GB/s",
                    expected=f"{CRAWL:g} GB/s or more",
                    evidence=(f"{engine.endpoint.url}/metrics: a transfer took {latency:.0f} ms at {speed:.3g} GB/s",),
                )
            )
    return found if found or told else Unknown("no metric of a transfer")


def slow(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD412: large transfers at a fraction of what the NICs of this host carry."""
    used = used_devices(facts)
    if not isinstance(used, list):
        return used
    rate = max((_rate(device) for device in used if device.state == ACTIVE), default=0.0)
    found: list[Finding] = []
    told = False
    for engine in here(facts):
        speed, size = (_mean(engine, name) for name in ("kv_transfer_speed_gb_s", "kv_transfer_total_mb"))
        if speed is None or size is None or size < LARGE or not rate:
            continue
        told = True
        if speed < rate * SLOW:
            found.append(_slow(engine, speed, size, rate))
    return found if found or told else Unknown("no metric of a transfer of 64 MB or more, and of a NIC's rate")


def _slow(engine: ObservedEngine, speed: float, size: float, rate: float) -> Finding:
    return finding(
        "PD412",
        engine.endpoint.name,
        observed=f"{speed:.2f} GB/s",
        expected=f"about {rate:.0f} GB/s",
        evidence=(f"{engine.endpoint.url}/metrics: {size:.0f} MB a transfer on average, at {speed:.2f} GB/s",),
    )


def _mean(engine: ObservedEngine, name: str) -> float | None:
    """The metric's mean: of a histogram from 0.5.13 on; before, the gauge's value."""
    family = f"sglang:{name}"
    total, count = engine.metrics.get(f"{family}_sum"), engine.metrics.get(f"{family}_count")
    if total is not None and count:
        return total / count
    return engine.metrics.get(family)


def _rate(device: RdmaDevice) -> float:
    """GB/s of "400 Gb/sec (4X NDR)"."""
    found = re.match(r"\s*(\d+(?:\.\d+)?)\s*Gb/sec", device.rate)
    return (numerals.real(found[1]) or 0.0) / 8 if found else 0.0


def _named_devices(engine: ObservedEngine) -> tuple[str, ...]:
    """The devices it was configured to use; () for a map or a file, which only the engine can resolve."""
    said = server_info.ib_devices(engine)
    return tuple(str(one) for one in said if re.fullmatch(r"\w+", str(one))) if isinstance(said, tuple) else ()


def _names(facts: Facts) -> Sequence[str]:
    return [device.name for device in facts.host.rdma] if facts.host is not None else []


def engines_of_host(facts: Facts) -> list[ObservedEngine] | Skipped | Unknown:
    """The engines of this host, if any can be judged."""
    if facts.host is None:
        return Unknown("this host was not looked at")
    return here(facts) or Skipped(NOT_HERE)


def used_devices(facts: Facts) -> list[RdmaDevice] | Skipped | Unknown:
    """The devices that carry KV cache on this host: those named, else every active one."""
    seen = engines_of_host(facts)
    if not isinstance(seen, list):
        return seen
    host = facts.host
    rdma = [
        engine for engine in seen if server_info.backend(engine) in RDMA_BACKENDS and not server_info.on_cpu(engine)
    ]
    if host is None or not rdma or not host.rdma:
        return Skipped("no instance that moves KV cache over RDMA runs on this host")
    wanted = {name for engine in rdma for name in _named_devices(engine)}
    return [device for device in host.rdma if device.name in wanted or (not wanted and device.state == ACTIVE)]


def judged(judge: Callable[[Servers], Verdict], facts: Facts) -> list[Finding] | Skipped | Unknown:
    """A check of command lines, applied to the engines on this host with this shell's environment."""
    engines, host = engines_of_host(facts), facts.host
    if not isinstance(engines, list):
        return engines
    assert host is not None  # as above
    sides = _sides(host, engines)
    verdict = judge(Servers(sides, sides, ()))
    return verdict if isinstance(verdict, Skipped | Unknown) else [_at(one, host) for one in verdict]


def _sides(host: Host, engines: Sequence[ObservedEngine]) -> tuple[Server, ...]:
    """One Server per role, backend and device type; these checks do not depend on what else differs."""
    groups: dict[tuple[str, str, bool], list[ObservedEngine]] = {}
    for engine in engines:
        kind = (engine.endpoint.role, server_info.backend(engine), server_info.on_cpu(engine))
        groups.setdefault(kind, []).append(engine)
    env = {name: WrittenSetting(name, value, PLACE) for name, value in host.environ.items()}
    found: list[Server] = []
    for (role, backend, cpu), some in groups.items():
        words = ["--disaggregation-transfer-backend", backend, *(["--device", "cpu"] if cpu else [])]
        found.append(
            Server(
                name=names([engine.endpoint.name for engine in some]),
                role=role,
                engine=EMBEDDED if server_info.embedded(some[0]) else RELEASED,
                release=some[0].version,
                version=server_info.release(some[0]),
                flags=parse((word, "") for word in words),
                env=env,
                network=host.name,
                count=len(some),
            )
        )
    return tuple(found)


def _at(found: Finding, host: Host) -> Finding:
    """The finding at its instance if that is one, else at this host."""
    return found if "," not in found.instance else replace(found, instance=host.name)


CHECKS = (
    Check("PD401", LOCAL, missing),
    Check("PD402", LOCAL, port_down),
    Check("PD403", LOCAL, gids),
    Check("PD405", LOCAL, gpudirect),
    Check("PD406", LOCAL, tcp),
    Check("PD412", LOCAL, slow),
    Check("PD412", (Needs.ENDPOINT,), crawling),
    Check("PD407", LOCAL, partial(judged, environment_checks.ucx)),
    Check("PD411", LOCAL, partial(judged, environment_checks.dead)),
    Check("PD413", LOCAL, partial(judged, environment_checks.mnnvl)),
    Check("PD416", LOCAL, partial(judged, environment_checks.wrong)),
    Check("PD606", LOCAL, partial(judged, environment_checks.neutered)),
    Check("PD617", LOCAL, partial(judged, environment_checks.hasty)),
)
