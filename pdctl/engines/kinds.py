"""The engines and routers that a topology may name and a command line may start: the properties of each, in one row.

Checked against sglang-router 0.3.2 and smg 1.13.0 as installed from their wheels, and sglang 0.5.3 to 0.5.23.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any

from pdctl.program import served_command
from pdctl.quick_definitions import NamedTuple

EMBEDDED = "embedded"

Object = Mapping[str, Any]  # an object of a JSON document

OWN_SCHEMA = "pdctl.router."
# Keys in an entry of /workers that only smg writes.
SMG_KEYS = frozenset(("labels", "models", "runtime_type", "pd_pairing", "http2"))


class EngineKind(NamedTuple):
    """`name` as in `engine.kind`.

    package: the one it is installed from, whose releases have their own rules; "": pdctl's. backends: the values of
    its --disaggregation-transfer-backend.
    """

    name: str
    command: tuple[str, ...]
    package: str
    backends: tuple[str, ...]


class RouterKind(NamedTuple):
    """`name` as in `router.kind`.

    command: replaced by a topology's `router.command`; `flags` come right after it. package: the one it is installed
    from; "": pdctl's. port: where it listens by default; None: not assumed. metrics: a port of its own that it always
    opens for metrics. default_policy: the policy used if none is given; "": not assumed.
    edits_workers: POST and DELETE on /workers change its list. watches_pods: it can find workers by their labels;
    pods_doubt: what speaks against that, and the fix. turns_by_role: round_robin counts prefills and decodes
    separately, so some pairs never occur. ip_only: its --host must be an IP address. ready, alive: the paths that a
    cluster probes. images: the published images whose entrypoint starts it, without registry and owner.
    """

    name: str
    command: tuple[str, ...]
    package: str
    policies: tuple[str, ...]
    flags: tuple[str, ...] = ()
    port: int | None = None
    metrics: int | None = None
    default_policy: str = ""
    edits_workers: bool = True
    watches_pods: bool = False
    pods_doubt: tuple[str, str] = ("", "")
    turns_by_role: bool = False
    ip_only: bool = False
    ready: str = "/readiness"  # answers whether a request would find a pair
    alive: str = "/liveness"
    images: tuple[str, ...] = ()

    @property
    def always_pd(self) -> bool:
        return not self.package

    @property
    def words(self) -> tuple[str, ...]:
        return self.command + self.flags


ENGINES = {
    one.name: one
    for one in (
        EngineKind(
            EMBEDDED, served_command("pdctl.engine"), "", ("auto", "nixl", "shm", "mooncake", "mooncake_tcp", "fake")
        ),
        EngineKind(
            "sglang", ("python", "-m", "sglang.launch_server"), "sglang",
            ("auto", "mooncake", "mooncake_tcp", "nixl", "ascend", "mori", "fake"),
        ),
    )
}  # fmt: skip

# What `plan`, `import` and the checks assume for an engine or a router that nothing names.
RELEASED, RELEASED_ROUTER = "sglang", "sglang-router"
_RUST = ("random", "round_robin", "power_of_two", "cache_aware", "manual", "bucket")
_LAUNCH_ROUTER = ("python", "-m", "sglang_router.launch_router")
_PD = "--pd-disaggregation"

ROUTERS = {
    one.name: one
    for one in (
        RouterKind(
            "pdctl", served_command("pdctl.router"), "", ("random", "round_robin", "power_of_two", "cache_aware")
        ),
        RouterKind(
            "sglang-router", _LAUNCH_ROUTER, "sglang-router", _RUST, (_PD,), port=30000, metrics=29000,
            default_policy="cache_aware", watches_pods=True, turns_by_role=True, ip_only=True,
            images=("sglang-router", "sgl-model-gateway"),  # sglang docker/gateway.Dockerfile
        ),
        RouterKind(
            "smg", ("smg", "launch"), "smg",
            (*_RUST, "passthrough", "least_load", "consistent_hashing", "prefix_hash"), (_PD,), port=30000,
            metrics=29000, default_policy="cache_aware", watches_pods=True, turns_by_role=True,
            images=("smg",),  # smg docker/Dockerfile
            pods_doubt=(
                "smg with discovery: builds after 2026-08-30 leave PD mode for it",
                "pin smg 1.13.0, or check that its start line says PrefillDecode",
            ),
        ),
        # It comes with sglang-router's package.
        RouterKind(
            "mini-lb", _LAUNCH_ROUTER, "sglang-router", ("random",), (_PD, "--mini-lb"), edits_workers=False,
            ip_only=True, ready="/health", alive="/health",
        ),
    )
}  # fmt: skip
# `embedded` and `sglang` were the names of the first release; `mini_lb` is what SGLang calls it elsewhere.
ROUTER_ALIASES = ((EMBEDDED, "pdctl"), ("sglang", "sglang-router"), ("mini_lb", "mini-lb"))
MINI_LB_FLAG = "mini-lb"  # the flag that makes sglang-router a mini-lb
PREFILL_ONLY = ("bucket",)  # policies that the routers accept only for --prefill-policy


class CommandLine(NamedTuple):
    """`words` are adjacent in the command line of a `kind`, with `flag` ("": none needed) somewhere after them."""

    role: str  # engine | router
    kind: str
    words: tuple[str, ...]
    flag: str = ""


# The first that matches counts. From sglang 0.5.3 to 0.5.23, sglang_router 0.3.2, smg 1.13.0.
COMMAND_LINES = (
    CommandLine("engine", "sglang", ("-m", "sglang.launch_server")),
    CommandLine("engine", "sglang", ("sglang", "serve")),
    CommandLine("engine", "dynamo", ("-m", "dynamo.sglang")),
    CommandLine("engine", EMBEDDED, ("-m", "pdctl.engine")),
    CommandLine("router", "mini-lb", ("-m", "sglang_router.launch_router"), "--mini-lb"),
    CommandLine("router", "mini-lb", ("sglang-router", "launch"), "--mini-lb"),
    CommandLine("router", "sglang-router", ("-m", "sglang_router.launch_router")),
    CommandLine("router", "sglang-router", ("sglang-router", "launch")),
    CommandLine("router", "smg", ("smg", "launch")),
    CommandLine("router", "smg", ("-m", "smg.launch_router")),
    # Since 0.5.3, a stub that points to the router's wheel.
    CommandLine("router", "mini-lb", ("-m", "sglang.srt.disaggregation.mini_lb")),
    CommandLine("router", "pdctl", ("-m", "pdctl.router")),
)


_KINDS: tuple[EngineKind | RouterKind, ...] = (*ENGINES.values(), *ROUTERS.values())


def _modules() -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for one in _KINDS:
        if one.package and one.command[1:2] == ("-m",):
            found[one.name] = (one.command[2], one.package)
    return found


# Kinds from other packages that are started as `python -m MODULE` → the module, and its package.
MODULES = _modules()
PACKAGES = tuple(dict.fromkeys(one.package for one in _KINDS if one.package))


def router_kind(name: str) -> RouterKind | None:
    """The router kind by either spelling of `router.kind`; None if pdctl does not know it."""
    return ROUTERS.get(dict(ROUTER_ALIASES).get(name, name))


def router_words(
    kind: str,
    prefills: Iterable[tuple[str, int | str | None]],
    decodes: Iterable[str],
    host: str = "",
    port: int | str = "",
) -> list[str]:
    """The command line of a router with these workers: each prefill's URL and bootstrap port, each decode's URL.

    kind: by either spelling; of one that pdctl does not know, SGLang's own router stands in. host: left out if it is a
    name, because these routers refuse one.
    """
    words = list((router_kind(kind) or ROUTERS[RELEASED_ROUTER]).words)
    words += ["--host", host] if _is_address(host) else []
    words += ["--port", str(port)] if port != "" else []
    for url, bootstrap in prefills:
        words += ["--prefill", url, *(() if bootstrap is None else (str(bootstrap),))]
    for url in decodes:
        words += ["--decode", url]
    return words


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def router_answering(workers: Object, readiness: Object, summary: Object) -> str:
    """The kind as in `router.kind`, mini_lb in SGLang's spelling; "" if unknown. Arguments: answered bodies, or {}.

    workers: of /workers. readiness: of /readiness. summary: of /get_server_info, where mini_lb lists its workers.
    """
    if any(str(body.get("schema")).startswith(OWN_SCHEMA) for body in (workers, readiness)):
        return "pdctl"
    if "router_manager" in summary and "stats" in workers:
        return "sglang-router"
    listed = workers.get("workers")
    entries = [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
    stats = workers.get("stats")
    # No worker yet; a body that merely has such a key is another server's.
    empty = listed == [] and isinstance(stats, Mapping) and bool(stats)
    if any(not SMG_KEYS.isdisjoint(entry) for entry in entries) or empty:
        return "smg"
    if any("metadata" in entry for entry in entries):
        return "sglang-router"
    both = isinstance(summary.get("prefill"), list) and isinstance(summary.get("decode"), list)
    return "mini_lb" if both else ""
