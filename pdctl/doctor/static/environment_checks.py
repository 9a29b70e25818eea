"""Checks of written settings: variables and time limits, logs and metrics, RDMA devices, UCX and Mooncake."""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING

from pdctl.catalogue.entry import Severity
from pdctl.doctor.check import Skipped, finding
from pdctl.doctor.static.server_sources import written
from pdctl.engines import numerals
from pdctl.engines.environment import lint
from pdctl.engines.kinds import EMBEDDED, MINI_LB_FLAG, router_kind
from pdctl.engines.sglang import behaviour
from pdctl.engines.versions import NEWEST, Span
from pdctl.fleet.address import host_and_port
from pdctl.quick_definitions import NamedTuple
from pdctl.shell_quoting import pasteable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.doctor.check import Finding, Verdict
    from pdctl.doctor.static.servers import RouterLine, Server, Servers
    from pdctl.manifests.command_lines import Listed

INTERVAL, FAILURES = "SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL", "SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE"
SHORTEST = 10.0  # seconds of silence after which SGLang, by default, declares a prefill dead: 2 misses, 5 s apart
MOONCAKE = ("mooncake", "mooncake_tcp")
CUDA = ("all", "cuda", "cuda_copy", "cuda_ipc")
WIRES = ("all", "tcp", "ib", "rc", "rc_x", "rc_v", "rc_verbs", "rc_mlx5", "ud", "ud_x", "ud_v", "dc", "dc_x", "srd")
WORKER_SCHEMES = ("http", "https", "grpc")  # what the URL of a worker may begin with
RDMA = ("mlx", "bnxt_re", "rdmap", "efa", "hfi", "irdma", "ibp", "roce")


def wrong(servers: Servers) -> Iterator[Finding]:
    for side in servers.sides:
        if side.engine == EMBEDDED:
            continue
        env = {name: said.value for name, said in side.env.items() if said.value is not None and "$" not in said.value}
        for remark in lint(env, side.version or NEWEST):
            names = remark.names or (remark.name,)
            evidence = [side.env[name].evidence for name in names if name in side.env]
            yield finding("PD416", side.name, remark.message, remark.expected, evidence, fix=remark.fix)


class Limit(NamedTuple):
    """A limit in seconds, or a count. `most`: above this it no longer limits anything."""

    name: str
    default: str
    most: float


LIMITS: tuple[Limit, ...] = (
    Limit("SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT", "300 s", 3600),
    Limit("SGLANG_DISAGGREGATION_WAITING_TIMEOUT", "300 s", 3600),
    Limit("SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL", "5 s", 120),
    Limit("SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE", "2", 100),
    Limit("SGLANG_DISAGGREGATION_ENGINE_INIT_TIMEOUT", "60 s", 3600),
    Limit("SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT", "30 s", 3600),
)
FLAG_LIMITS: tuple[Limit, ...] = (Limit("watchdog-timeout", "300 s", 3600),)


def neutered(servers: Servers) -> Iterator[Finding]:
    for side in servers.sides:
        for limit in LIMITS:
            value = side.quantity(limit.name)
            if value is not None and value > limit.most:
                said = side.env[limit.name]
                observed = f"{limit.name}={said.value}"
                yield finding("PD606", side.name, observed, limit.default, [said.evidence], name=limit.name)
        for limit in FLAG_LIMITS:
            number, flag = side.flags.number(limit.name), side.flags.find(limit.name)
            if number is not None and flag is not None and number > limit.most:
                yield finding("PD606", side.name, str(flag), limit.default, [flag.evidence], name=f"--{limit.name}")


def hasty(servers: Servers) -> Iterator[Finding]:
    """PD617. SGLang uses at least 2 s and at least one failure, whatever is set."""
    for side in servers.of("decode"):
        interval, failures = side.quantity(INTERVAL), side.quantity(FAILURES)
        said = [side.env[name].evidence for name in (INTERVAL, FAILURES) if name in side.env]
        silence = max(interval if interval is not None else 5.0, 2.0) * max(failures if failures is not None else 2, 1)
        if said and silence < SHORTEST:
            observed = f"a prefill is given up after {silence:g} s without an answer"
            yield finding("PD617", side.name, observed, f"{SHORTEST:g} s or more", said)


def without_logging(servers: Servers) -> Iterator[Finding]:
    return _without(servers, "PD801", "enable-request-time-stats-logging")


def unmeasured(servers: Servers) -> Iterator[Finding]:
    return _without(servers, "PD802", "enable-metrics")


def _without(servers: Servers, code: str, flag: str) -> Iterator[Finding]:
    for side in servers.sides:
        if side.role and not side.flags.has(flag):
            if side.container is not None and side.container.argv:
                where = f"{side.place(side.container.argv[0].line)}: no --{flag}"
            else:
                where = f"{flag} stands neither in engine.args nor in roles.{side.role}.args"
            yield finding(code, side.name, f"no --{flag}", f"--{flag}", [where])


def gap(servers: Servers) -> Verdict:
    """PD615. Measured with sglang-router and smg; pdctl's router cycles through all pairs, mini_lb picks at random."""
    routers = [one for one in servers.routers if (known := router_kind(one.kind)) and known.turns_by_role]
    if not routers:
        return Skipped("no sglang-router and no smg")
    found = []
    for router in routers:
        sizes = len(router.prefills), len(router.decodes)
        policies = router.policy("prefill"), router.policy("decode")
        pairs = sizes[0] * sizes[1]
        used = lcm(*sizes) if pairs else 0
        if policies == ("round_robin", "round_robin") and used < pairs:
            said = [flag.evidence for flag in router.flags.given if flag.name.endswith("policy")]
            values: dict[str, object] = {"unused": pairs - used, "pairs": pairs}
            found.append(finding("PD615", router.name, f"{used} pairs", f"{pairs} pairs", said, None, **values))
    return found


def unservable(servers: Servers) -> Iterator[Finding]:
    for router in servers.routers:
        for role, each in _listed(router):
            problem = _refused_address(router, role, each)
            if problem is not None:
                expected, fix = problem
                observed = f"it does not start with --{role} {' '.join(filter(None, (each.url, each.said)))}"
                yield finding("PD618", router.name, observed, expected, [each.evidence], fix=fix)
        for observed, expected, fix, severity in _unservable(router):
            place = f"{_place(router)}: " if router.pod is not None else ""
            yield finding("PD618", router.name, observed, expected, [f"{place}{router.name}"], severity, fix=fix)


def _listed(router: RouterLine) -> Iterator[tuple[str, Listed]]:
    yield from (("prefill", each) for each in router.prefills)
    yield from (("decode", each) for each in router.decodes)


def _refused_address(router: RouterLine, role: str, each: Listed) -> tuple[str, str] | None:
    """What a router expects that ends at once on this address, and a fix; None if it takes it.

    Measured with sglang-router 0.3.2, whose code smg has: both parse the URL of every worker before anything else.
    """
    known = router_kind(router.kind)
    if known is None or not known.turns_by_role or router.flags.has(MINI_LB_FLAG):
        return None
    if not router.flags.has("pd-disaggregation") or "$" in each.url or "$" in each.said:
        return None
    scheme, _, rest = each.url.partition("://") if "://" in each.url else ("", "", each.url)
    address, _, behind = rest.partition(",")
    port = each.said or (behind if numerals.port(behind) is not None else "BOOTSTRAP-PORT")
    right = f"{scheme if scheme in WORKER_SCHEMES else 'http'}://{address}"
    if host_and_port(right) == ("", None):
        right = "http://HOST:PORT"
    fix = f"write --{role} {pasteable(right)}{f' {pasteable(port)}' if role == 'prefill' else ''}"
    if scheme not in WORKER_SCHEMES:
        return "a URL that begins with http://, https:// or grpc://", fix
    if host_and_port(each.url) == ("", None):
        return "a URL, and the bootstrap port behind a space" if behind else "a URL such as http://HOST:PORT", fix
    if role == "prefill" and each.said.lower() not in ("", "none") and numerals.port(each.said) is None:
        return "a bootstrap port from 1 to 65535, or none", f"write --{role} {pasteable(each.url)} BOOTSTRAP-PORT"
    return None


def _place(router: RouterLine) -> str:
    """Where its command begins, which in a script is not where its pod begins."""
    argv = router.container.argv if router.container is not None else ()
    return router.pod.at(argv[0].line if argv else 0) if router.pod is not None else ""


def _unservable(router: RouterLine) -> Iterator[tuple[str, str, str, Severity | None]]:
    known = router_kind(router.kind)
    if (known and known.always_pd) or router.flags.has(MINI_LB_FLAG):
        return
    if not router.flags.has("pd-disaggregation"):
        if router.prefills:
            yield "it lists --prefill but is not in PD mode", "--pd-disaggregation", "add --pd-disaggregation", None
        return
    if router.discovers:
        missing = [name for name in ("prefill-selector", "decode-selector") if not router.flags.has(name)]
        if missing:
            observed = f"it discovers pods without {' and '.join(f'--{name}' for name in missing)}"
            expected = "a selector for the pods of each role"
            yield observed, expected, f"add {' and '.join(f'--{name} key=value' for name in missing)}", None
        observed, fix = known.pods_doubt if known else ("", "")
        if observed:
            yield observed, "PD mode", fix, Severity.INFO
        return
    if not router.prefills:
        yield "PD mode without --prefill", "every prefill", "add --prefill http://HOST:PORT BOOTSTRAP-PORT", None
    if not router.decodes:
        observed = "PD mode without --decode: every request is answered 503"
        yield observed, "every decode", "add --decode http://HOST:PORT", None


def missing_devices(servers: Servers) -> Verdict:
    """Names in transfer.ib-devices that the hosts of a role lack, if the pool lists what they have."""
    topology = servers.topology
    if topology is None or not isinstance(topology.transfer.ib_devices, tuple):
        return Skipped("no devices are named in transfer.ib-devices")
    found = []
    for side in servers.sides:
        role = topology.prefill if side.role == "prefill" else topology.decode
        pool = topology.pool(role.pool)
        for name in topology.transfer.ib_devices:
            if pool.nic_devices and name not in pool.nic_devices:
                said = side.flags.find("disaggregation-ib-device")
                evidence = [said.evidence] if said is not None else []
                evidence.append(f"pools.{pool.name}.nic.devices: {', '.join(pool.nic_devices)}")
                found.append(finding("PD401", side.name, name, ", ".join(pool.nic_devices), evidence))
    return found


def pools_differ(servers: Servers) -> Verdict:
    """Rails are paired by position, so the hosts of both roles should have the same number."""
    topology = servers.topology
    if topology is None:
        return Skipped("no pools: this is no topology")
    one, other = topology.pool(topology.prefill.pool), topology.pool(topology.decode.pool)
    named = isinstance(topology.transfer.ib_devices, tuple)  # then both sides were given the same
    if named or not one.nic_devices or not other.nic_devices or len(one.nic_devices) == len(other.nic_devices):
        return []
    said = [", ".join(pool.nic_devices) for pool in (other, one)]
    evidence = [f"pools.{pool.name}.nic.devices" for pool in (one, other)]
    return [finding("PD414", "decode", said[0], said[1], evidence, other="prefill")]


def ucx(servers: Servers) -> Iterator[Finding]:
    for side in servers.sides:
        if side.backend != "nixl" or side.flags.text("device") == "cpu":
            continue
        yield from _transports(side)
        said = side.env.get("UCX_NET_DEVICES")
        names = _list(said.value) if said is not None else ()
        if said is not None and names and all(name.startswith(RDMA) for name in names):
            expected = "it lists RDMA devices alone, and UCX needs a TCP device for itself"
            fix = f"export UCX_NET_DEVICES={pasteable(said.value)},eth0"
            yield _ucx(side, said.evidence, expected, fix, "UCX_NET_DEVICES", Severity.WARNING)


def _transports(side: Server) -> Iterator[Finding]:
    """UCX_TLS: a list of allowed transports or, with `^`, of forbidden ones."""
    said = side.env.get("UCX_TLS")
    names = _list(said.value) if said is not None else ()
    if said is None or not names:
        return
    if names[0].startswith("^"):
        banned = {names[0][1:], *names[1:]}
        if banned & {"cuda", "cuda_copy"}:
            yield _ucx(side, said.evidence, "it forbids cuda_copy", "unset UCX_TLS", "UCX_TLS", None)
        return
    if not set(names) & set(CUDA):
        expected = "it allows no cuda transport, so GPU memory is taken for host memory"
        yield _ucx(side, said.evidence, expected, f"export UCX_TLS={said.value},cuda_copy,cuda_ipc", "UCX_TLS", None)
    elif not set(names) & set(WIRES):
        expected = "it allows no transport that leaves the host"
        fix = f"export UCX_TLS={pasteable(said.value)},rc,tcp"
        yield _ucx(side, said.evidence, expected, fix, "UCX_TLS", Severity.WARNING)


def _ucx(side: Server, evidence: str, reason: str, fix: str, name: str, severity: Severity | None) -> Finding:
    values: dict[str, object] = {"variable": name, "reason": reason, "fix": fix}
    observed = f"{name}={side.env[name].value}"
    return finding("PD407", side.name, observed, fix.removeprefix("export "), [evidence], severity, **values)


def _list(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def small_pages(servers: Servers) -> Iterator[Finding]:
    expected = str(servers.page_size)
    for side in servers.sides:
        if side.backend not in MOONCAKE or side.flags.unclear("page-size"):
            continue
        said, size = side.flags.find("page-size"), side.flags.number("page-size")
        if said is not None and size == 1:
            yield finding("PD410", side.name, "page size 1", expected, [said.evidence], backend=side.backend)
        elif said is None:
            observed = "the default page size (1, unless the attention backend wants more)"
            yield finding("PD410", side.name, observed, expected, [side.name], Severity.INFO, backend=side.backend)


class Dead(NamedTuple):
    """Variables with these prefixes that have no effect with these backends."""

    prefixes: tuple[str, ...]
    backends: tuple[str, ...]
    span: Span = Span()


# SGLANG_MOONCAKE_CUSTOM_MEM_POOL is left out on purpose: the KV pool reads it with any backend (sglang 0.5.23 source).
DEAD: tuple[Dead, ...] = (
    Dead(("MC_", "MOONCAKE_", "SGLANG_MOONCAKE_SEND_AUX_TCP"), ("nixl",)),
    Dead(("SGLANG_DISAGGREGATION_NIXL_", "NIXL_", "UCX_"), MOONCAKE),
)


def dead(servers: Servers) -> Iterator[Finding]:
    for side in servers.sides:
        if side.flags.text("hicache-storage-backend") == "mooncake" or side.env.get("NVSHMEM_REMOTE_TRANSPORT"):
            continue  # then other parts of the engine read the same variables
        for row in DEAD:
            for name, said in side.env.items():
                if side.backend in row.backends and name.startswith(row.prefixes):
                    expected = f"settings that {side.backend} reads"
                    yield finding("PD411", side.name, name, expected, [said.evidence], backend=side.backend)
        yield from _dead_device(side)


def _dead_device(side: Server) -> Iterator[Finding]:
    """--disaggregation-ib-device: mooncake_tcp clears it; newer NIXL reads it unless UCX_NET_DEVICES is set."""
    said = side.flags.find("disaggregation-ib-device")
    if said is None:
        return
    before = side.version is not None and not behaviour.NIXL_READS_IB_DEVICE.holds(side.version)
    overruled = side.env.get("UCX_NET_DEVICES")
    if side.backend == "mooncake_tcp" or (side.backend == "nixl" and (before or overruled is not None)):
        evidence = [said.evidence, *([overruled.evidence] if overruled is not None and not before else [])]
        expected = f"settings that {side.backend} reads"
        yield finding("PD411", side.name, f"--{said.name}", expected, evidence, backend=side.backend)


def mnnvl(servers: Servers) -> Iterator[Finding]:
    for side in servers.sides:
        forced = side.env.get("MC_FORCE_MNNVL")
        if forced is None or side.backend not in MOONCAKE or forced.value in ("0", ""):
            continue
        clashes = (
            ("SGLANG_MOONCAKE_CUSTOM_MEM_POOL", False, "MC_FORCE_MNNVL is set without SGLANG_MOONCAKE_CUSTOM_MEM_POOL"),
            ("MC_INTRANODE_NVLINK", True, "MC_FORCE_MNNVL is set together with MC_INTRANODE_NVLINK"),
        )
        for name, present, observed in clashes:
            if (name in side.env) is present:
                fix = f"unset {name}" if present else f"export {name}=True"
                expected = f"{name} unset" if present else f"{name}=True"
                yield finding("PD413", side.name, observed, expected, [forced.evidence], fix=fix)
        protocol = side.env.get("MOONCAKE_PROTOCOL")
        if protocol is not None and protocol.value == "efa":
            observed = "MC_FORCE_MNNVL is set with MOONCAKE_PROTOCOL=efa, whose adapters refuse fabric memory"
            evidence = [forced.evidence, protocol.evidence]
            yield finding("PD413", side.name, observed, "no MC_FORCE_MNNVL", evidence, fix="unset MC_FORCE_MNNVL")


CHECKS = (
    written("PD401", missing_devices, embedded=False),
    written("PD407", ucx, embedded=False),
    written("PD410", small_pages, embedded=False),
    written("PD411", dead, embedded=False),
    written("PD413", mnnvl, embedded=False),
    written("PD414", pools_differ, embedded=False),
    written("PD416", wrong, embedded=False),
    written("PD606", neutered),
    written("PD615", gap),
    written("PD617", hasty),
    written("PD618", unservable),
    written("PD801", without_logging, embedded=False),
    written("PD802", unmeasured, embedded=False),
)
