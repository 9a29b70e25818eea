"""The fleet before a switch, and why an instance may not switch, decided before anything is touched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.engines.kinds import ROUTERS
from pdctl.fleet import bootstrap_probe, peer_json
from pdctl.fleet.address import host_and_port
from pdctl.fleet.engine_probe import probe_engines
from pdctl.fleet.observations import Endpoint
from pdctl.fleet.router_probe import probe_router
from pdctl.quick_definitions import NamedTuple
from pdctl.shell_quoting import pasteable
from pdctl.switch.switch_order import PREFILL, ROLES, other

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pdctl.fleet.observations import ObservedEngine, ObservedRouter, RouterWorker
    from pdctl.switch.switch_order import SwitchOrder

LOOK = 30.0  # seconds for the whole fleet
EMBEDDED = "sglang_compat"  # reported only by pdctl's own engine
# SGLang 0.5.23: backends whose KV managers can be rebuilt. ascend inherits this from mooncake.
SWITCHABLE = frozenset(("mooncake", "mooncake_tcp", "mori", "ascend"))
FLAG = "enable_pd_role_switch"
DECODE_CACHE = "disaggregation_decode_enable_radix_cache"
# Settings that must be equal, or the instance would not fit into the other role's pool.
ALIKE = (
    ("tp_size", "tensor parallel size"),
    ("pp_size", "pipeline stages"),
    ("dp_size", "data parallel size"),
    ("attn_dp_size", "attention DP groups"),
    ("page_size", "page size"),
    ("kv_cache_dtype", "KV cache type"),
    ("served_model_name", "served model"),
)
BOOTSTRAP_WITHIN = 5.0  # seconds


class Member(NamedTuple):
    """An instance: what it reports about itself, and each router's entry for it, None if it has none."""

    name: str
    url: str
    engine: ObservedEngine
    listed: tuple[RouterWorker | None, ...]

    @property
    def role(self) -> str:
        """Its present role."""
        return self.engine.mode

    @property
    def healthy(self) -> bool:
        return self.engine.health is not None and self.engine.health.ok

    @property
    def host(self) -> str:
        return host_and_port(self.url)[0]

    @property
    def embedded(self) -> bool:
        return EMBEDDED in self.engine.info

    @property
    def states(self) -> tuple[Mapping[str, object], ...]:
        """The states of its schedulers."""
        return peer_json.mappings(self.engine.info.get("internal_states"))

    @property
    def bootstrap_port(self) -> int | None:
        return self.engine.number("disaggregation_bootstrap_port")

    @property
    def ranks(self) -> int:
        """How many ranks register at its bootstrap server when it is a prefill."""
        sizes = (self.engine.number(name) or 1 for name in ("tp_size", "pp_size", "dp_size"))
        tp, pp, dp = sizes
        inside = self.engine.info.get("enable_dp_attention") is True  # its DP groups share the TP ranks
        return tp * pp * (1 if inside else dp)


@dataclass(frozen=True, slots=True)
class Fleet:
    """The instance to switch (`target`), all the other instances, and the routers."""

    target: Member
    others: tuple[Member, ...]
    routers: tuple[ObservedRouter, ...]

    def of(self, role: str) -> tuple[Member, ...]:
        return tuple(member for member in self.others if member.role == role)

    def ready(self, role: str) -> tuple[Member, ...]:
        """The instances of a role that now accept requests from every router."""
        return tuple(
            member
            for member in self.of(role)
            if member.healthy
            and all(entry is not None and entry.healthy and entry.role == role for entry in member.listed)
        )


def probe_fleet(order: SwitchOrder) -> Fleet:
    """Probe the fleet. What does not answer raises nothing; `refusals` reports it."""
    routers = tuple(probe_router(url, LOOK, key=order.key) for url in order.routers)
    lists = [{worker.url: worker for worker in router.workers or ()} for router in routers]
    names = {endpoint.url.rstrip("/"): endpoint.name for endpoint in order.known}
    urls = list(dict.fromkeys([order.url, *names, *(url for listed in lists for url in listed)]))
    engines = probe_engines([Endpoint(names.get(url, url), "", url) for url in urls], LOOK, key=order.key)
    members = [
        Member(engine.endpoint.name, engine.endpoint.url, engine, tuple(listed.get(url) for listed in lists))
        for url, engine in zip(urls, engines, strict=True)
    ]
    return Fleet(members[0]._replace(name=order.name), tuple(members[1:]), routers)


class SwitchRefusal(NamedTuple):
    """`reason` says what is wrong and where, `fix` what to do."""

    reason: str
    fix: str


def refusals(order: SwitchOrder, fleet: Fleet) -> tuple[SwitchRefusal, ...]:
    """Why the switch may not be tried; () if it may."""
    target = fleet.target
    if not target.engine.reached or not target.role:
        reason = target.engine.reason or "it does not say what role it has"
        return (SwitchRefusal(f"{target.name}: {reason}", f"curl -sS {pasteable(target.url)}/server_info"),)
    if target.role not in ROLES:
        return (SwitchRefusal(f"{target.name} serves alone (disaggregation_mode {target.role}): it has no role", ""),)
    found = (*_routers(order, fleet), *_able(order, target), *_peers(order, fleet), *_bootstrap(order, fleet))
    return (*found, *_cache(order, fleet), *_graphs(order, fleet)) if target.role != order.to else found


def _routers(order: SwitchOrder, fleet: Fleet) -> Iterator[SwitchRefusal]:
    del order
    for router in fleet.routers:
        where = f"router {router.url}{f' ({router.kind})' if router.kind else ''}"
        if not router.reached:
            yield SwitchRefusal(f"{where}: {router.reason}", f"curl -sS {pasteable(router.url)}/workers")
        elif router.kind not in ROUTERS or not ROUTERS[router.kind].edits_workers:
            reason = router.reason or "its list of workers cannot be changed while it runs"
            yield SwitchRefusal(f"{where}: {reason}", "use pdctl's own router, smg or sglang-router")


def _able(order: SwitchOrder, target: Member) -> Iterator[SwitchRefusal]:
    info, name = target.engine.info, target.name
    flag = f"--{FLAG.replace('_', '-')}"
    if FLAG not in info:
        version = target.engine.version or "of this version"
        yield SwitchRefusal(f"{name}: sglang {version} cannot switch its role", "sglang 0.5.21 or later")
    elif info[FLAG] is not True:
        started_as = next((one.role for one in order.known if one.url.rstrip("/") == target.url.rstrip("/")), "")
        fix = f"pdctl launch … --set roles.{started_as}.args.{flag[2:]}=true" if started_as else f"start it with {flag}"
        if target.role == order.to:
            yield SwitchRefusal(
                f"{name} is a {order.to} already, and runs without {flag}",
                f"leave it as it is; to make it a {other(order.to)}, {fix}",
            )
        else:
            yield SwitchRefusal(f"{name} runs without {flag}", fix)
    backend = target.engine.text("disaggregation_transfer_backend") or ""
    if not target.embedded and backend not in SWITCHABLE:
        fix = f"--disaggregation-transfer-backend {' or '.join(sorted(SWITCHABLE - {'mooncake_tcp', 'ascend'}))}"
        yield SwitchRefusal(f"{name}: transfer backend {backend!r} does not support runtime role switch", fix)
    if not target.healthy:
        health = target.engine.health
        said = f"{health.path} answered {health.status or health.reason}" if health is not None else "nobody asked"
        yield SwitchRefusal(
            f"{name} is not healthy: {said}", f"curl -sS {pasteable(target.url)}/health; its log says why"
        )


def _peers(order: SwitchOrder, fleet: Fleet) -> Iterator[SwitchRefusal]:
    """Refusals because of the pools: the old one without the target, the new one with it."""
    target = fleet.target
    if target.role != order.to:
        left = fleet.ready(target.role)
        if len(left) < order.min_ready:
            names = ", ".join(member.name for member in left) or "none"
            reason = (
                f"{target.name} is needed as a {target.role}: without it {len(left)} would be ready ({names}), "
                f"and --min-ready is {order.min_ready}"
            )
            yield SwitchRefusal(reason, f"start another {target.role} first, or lower --min-ready")
    if not fleet.of(other(order.to)):
        yield SwitchRefusal(f"{target.name} would be a {order.to} without any {other(order.to)} to work with", "")
    for member in fleet.of(order.to):
        for key, what in ALIKE:
            ours, theirs = target.engine.info.get(key), member.engine.info.get(key)
            if key in target.engine.info and key in member.engine.info and ours != theirs:
                reason = f"{target.name} is no {order.to} like the others: {what} {ours}, of {member.name} {theirs}"
                yield SwitchRefusal(reason, f"start it with the {what} of the {order.to}s")


def _bootstrap(order: SwitchOrder, fleet: Fleet) -> Iterator[SwitchRefusal]:
    """Refusals because of the bootstrap port, which only a prefill needs: without it routers send null."""
    target = fleet.target
    if order.to != PREFILL:
        return
    port = port_of(order, fleet)
    if port is None:
        yield SwitchRefusal(f"{target.name}: its bootstrap port is not known", "--bootstrap-port PORT")
        return
    told = target.bootstrap_port
    if told is not None and told != port:
        yield SwitchRefusal(f"{target.name} says its bootstrap port is {told}, not {port}", f"--bootstrap-port {told}")
    for member in fleet.others:
        if (member.host, member.bootstrap_port) == (target.host, port) and member.role == PREFILL:
            reason = f"bootstrap address {target.host}:{port} is already that of {member.name}"
            yield SwitchRefusal(reason, "give every instance of a host its own --disaggregation-bootstrap-port")
    there = bootstrap_probe.registration(target.host, port, 1, BOOTSTRAP_WITHIN)
    if not there.reached:
        reason = f"nobody answers at the bootstrap address {target.host}:{port} of {target.name}: {there.reason}"
        yield SwitchRefusal(reason, "an instance that may switch runs its bootstrap server from its start")


def port_of(order: SwitchOrder, fleet: Fleet) -> int | None:
    return order.bootstrap_port if order.bootstrap_port is not None else fleet.target.bootstrap_port


def _cache(order: SwitchOrder, fleet: Fleet) -> Iterator[SwitchRefusal]:
    """Refuse a prefix cache. Seen with sglang 0.5.23: such a decode answers its first requests and dies once idle."""
    target, info = fleet.target, fleet.target.engine.info
    kept = info.get("disable_radix_cache") is False and info.get(DECODE_CACHE) is not True
    if order.to != PREFILL and not target.embedded and kept:
        reason = (
            f"{target.name} keeps a prefix cache: as a decode, sglang takes the pages in it for a leak and ends its "
            'scheduler ("pool memory leak detected")'
        )
        yield SwitchRefusal(reason, "start it with --disable-radix-cache, as decodes are")


def _graphs(order: SwitchOrder, fleet: Fleet) -> Iterator[SwitchRefusal]:
    target = fleet.target
    if order.to == PREFILL or target.embedded or has_graphs(target) or graph_memory(order, fleet) is not None:
        return
    reason = f"{target.name} has captured no decode CUDA graphs, and no decode says how much memory they need"
    yield SwitchRefusal(
        reason, "--graph-memory GB: decode_cuda_graph_memory_gb in /server_info of a decode of this shape"
    )


def has_graphs(member: Member) -> bool:
    return any(state.get("decode_cuda_graph_bs") for state in member.states)


def graph_memory(order: SwitchOrder, fleet: Fleet) -> float | None:
    """GB that SGLang must find free: as requested, else the most any decode uses; 0 without graphs, None: unknown."""
    if order.graph_memory is not None:
        return order.graph_memory
    found = [
        float(value)
        for member in fleet.of(order.to)
        for state in member.states
        if isinstance(value := state.get("decode_cuda_graph_memory_gb"), int | float)
    ]
    if found:
        return max(found)
    return 0.0 if fleet.of(order.to) and not any(map(has_graphs, fleet.of(order.to))) else None
