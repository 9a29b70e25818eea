"""Looking at a worker before it gets requests: its role, and for a prefill the bootstrap port and who answers there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.router.args import BootstrapCheck, RouterArgs
from pdctl.router.origin import Origin
from pdctl.router.registry import Facts, PortSource, Role, Worker
from pdctl.router.rehearsal import misleads
from pdctl.router.upstream import Pool, UpstreamError, ask

if TYPE_CHECKING:
    from collections.abc import Mapping

# sglang 0.5.3 has the second only; 0.5.8 on has both and warns about the second.
INFO_PATHS = ("/server_info", "/get_server_info")
# The "all -1" query asks for the topology. The names changed after 0.5.8; the other style is answered 400.
TOPOLOGY_QUERIES = (
    "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1",
    "/route?engine_rank=-1&target_dp_group=-1&target_pp_rank=-1",
)


class Rejected(Exception):
    """Why a worker is not routed to."""


@dataclass(frozen=True, slots=True)
class Findings:
    """`note` is odd but no obstacle."""

    facts: Facts
    bootstrap_port: int | None = None
    port_source: PortSource | None = None
    note: str = ""


async def examine(worker: Worker, args: RouterArgs, auth: bytes) -> Findings:
    """What may be relied on about this worker; Rejected says why nothing may."""
    info = await _server_info(worker.pool, args.probe_timeout, auth)
    facts = _facts(info)
    if misleads(args.rehearse):  # what a worker says of itself is shown and not heeded, as by sglang-router 0.3.2
        await _check_health(worker, args)
        return Findings(facts, worker.given_port, worker.port_source)
    _check_role(worker, facts)
    if worker.role is Role.DECODE:
        await _check_health(worker, args)
        return Findings(facts)
    port, source, note = _port(worker, info)
    if args.bootstrap_check is not BootstrapCheck.OFF:
        try:
            await _check_bootstrap(Origin("http", worker.origin.host, port), info, args)
        except UpstreamError as error:
            text = f"bootstrap server http://{worker.origin.uri_host}:{port} {error}"
            if args.bootstrap_check is BootstrapCheck.REQUIRE:
                fix = "start it, correct the port, or use --bootstrap-check warn if only decodes can reach it"
                raise Rejected(f"{text}; {fix}") from None
            note = f"{note}; {text}" if note else text
    await _check_health(worker, args)
    return Findings(facts, port, source, note)


async def _server_info(pool: Pool, timeout: float, auth: bytes) -> Mapping[str, object] | None:
    """None from a worker that has no such path: it speaks the protocol of another engine."""
    for path in INFO_PATHS:
        try:
            reply = await ask(pool, "GET", path, timeout=timeout, headers=auth)
            if reply.status == 200:
                return reply.json()
        except UpstreamError as error:
            raise Rejected(f"{path}: {error}") from None
        if reply.status not in (404, 405):
            raise Rejected(f"{path} answered {reply.status} {reply.text(100)}".rstrip())
    return None


def _facts(info: Mapping[str, object] | None) -> Facts:
    if info is None:
        return Facts()

    def text(name: str) -> str:
        value = info.get(name)
        return value if isinstance(value, str) else ""

    def number(name: str) -> int | None:
        value = info.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    return Facts(
        disaggregation_mode=_role_now(info) or text("disaggregation_mode"),
        model_path=text("model_path"),
        served_model_name=text("served_model_name"),
        version=text("version"),
        transfer_backend=text("disaggregation_transfer_backend"),
        tp_size=number("tp_size"),
        dp_size=number("dp_size"),
        page_size=number("page_size"),
    )


def _role_now(info: Mapping[str, object]) -> str:
    """The role its schedulers have: another than the one it was started with after a role switch (sglang 0.5.23)."""
    states = info.get("internal_states")
    modes = (
        {state.get("disaggregation_mode") for state in states or () if isinstance(state, dict)}
        if isinstance(states, list)
        else set()
    )
    mode = modes.pop() if len(modes) == 1 else None
    return mode if isinstance(mode, str) else ""


def _check_role(worker: Worker, facts: Facts) -> None:
    mode = facts.disaggregation_mode
    if not mode or mode == worker.role.value:
        return
    if mode in (Role.PREFILL.value, Role.DECODE.value):
        raise Rejected(f"roles swapped: it runs with --disaggregation-mode {mode}; name it with --{mode}")
    raise Rejected(f"it runs with --disaggregation-mode {mode}, not {worker.role.value}")


def _port(worker: Worker, info: Mapping[str, object] | None) -> tuple[int, PortSource, str]:
    told = info.get("disaggregation_bootstrap_port") if info is not None else None
    known = told if isinstance(told, int) and not isinstance(told, bool) and 0 < told < 65536 else None
    given = worker.given_port
    if given is not None and worker.port_source is not None:
        if known is not None and known != given:
            raise Rejected(f"bootstrap port {given} was given, but its /server_info says {known}; give {known} or none")
        return given, worker.port_source, "" if known else "the given bootstrap port is not confirmed by /server_info"
    if known is None:
        where = "its /server_info does not name it" if info is not None else "it has no /server_info"
        raise Rejected(f"bootstrap port unknown: none was given and {where}; give it: --prefill {worker.url} PORT")
    return known, PortSource.SERVER_INFO, ""


async def _check_bootstrap(origin: Origin, info: Mapping[str, object] | None, args: RouterArgs) -> None:
    """UpstreamError when nobody answers; Rejected when the answer is not that of this prefill's bootstrap server."""
    pool = Pool(origin, idle_timeout=1.0, connect_timeout=min(args.connect_timeout, args.probe_timeout))
    try:
        reply = await ask(pool, "GET", "/health", timeout=args.probe_timeout)
        if reply.status != 200:
            raise Rejected(f"no bootstrap server at {origin.url}: /health answered {reply.status}")
        topology = await _topology(pool, args.probe_timeout)
    finally:
        pool.close()
    _compare(origin, topology, info or {})


async def _topology(pool: Pool, timeout: float) -> Mapping[str, object]:
    status, text = 0, ""
    for query in TOPOLOGY_QUERIES:
        reply = await ask(pool, "GET", query, timeout=timeout)
        if reply.status == 200:
            sizes = reply.json()
            if all(value is None for value in sizes.values()):
                status, text = 200, "no rank is registered yet"  # sglang 0.5.3 and 0.5.8 answer nulls
                break
            return sizes
        status, text = reply.status, reply.text()
        if reply.status != 400:
            break
    raise Rejected(f"bootstrap server {pool.origin.url} answered {status} on /route: {text}")


def _compare(origin: Origin, topology: Mapping[str, object], info: Mapping[str, object]) -> None:
    """Whether this is the bootstrap server of that prefill: two on one host with one port look alike otherwise."""
    pairs = (
        ("HTTP port", topology.get("prefill_http_port"), info.get("port")),  # sglang 0.5.18+
        ("pp_size", topology.get("pp_size", topology.get("prefill_pp_size")), info.get("pp_size")),
        ("page_size", topology.get("page_size", topology.get("prefill_page_size")), info.get("page_size")),
    )
    for what, registered, reported in pairs:
        if isinstance(registered, int) and isinstance(reported, int) and registered != reported:
            raise Rejected(
                f"bootstrap server {origin.url} belongs to another prefill: {what} {registered} is registered there, "
                f"/server_info says {reported}"
            )


async def _check_health(worker: Worker, args: RouterArgs) -> None:
    try:
        await check_health(worker, args)
    except UpstreamError as error:
        raise Rejected(str(error)) from None


async def check_health(worker: Worker, args: RouterArgs) -> None:
    """UpstreamError unless the worker answers 200 in time."""
    try:
        reply = await ask(worker.pool, "GET", args.health_path, timeout=args.health_timeout)
    except UpstreamError as error:
        raise UpstreamError(f"{args.health_path}: {error}") from None
    if reply.status != 200:
        raise UpstreamError(f"{args.health_path} answered {reply.status} {reply.text(100)}".rstrip())
