"""The JSON documents of the management surface: sglang_router's shapes, with what an operator misses there added."""

from __future__ import annotations

from pdctl.router.breaker import BreakerState
from pdctl.router.registry import Pair, Registry, Role, Worker
from pdctl.router.rehearsal import KEY

WORKERS = "pdctl.router.workers/1"
READINESS = "pdctl.router.readiness/1"


def rehearsal(registry: Registry) -> dict[str, object]:
    """The key that every document of a rehearsing router carries; nothing otherwise."""
    return {KEY: [registry.rehearsal]} if registry.rehearsal else {}


def worker(one: Worker, registry: Registry) -> dict[str, object]:
    """An entry of GET /workers (sglang_router 0.3.2). A prefill always has `bootstrap_port`: null when not known.

    A rehearsing router leaves the key out instead, as sglang-router does.
    """
    facts = one.facts
    known: dict[str, object] = {
        "disaggregation_mode": facts.disaggregation_mode,
        "model_path": facts.model_path,
        "served_model_name": facts.served_model_name,
        "version": facts.version,
        "disaggregation_transfer_backend": facts.transfer_backend,
        "tp_size": facts.tp_size,
        "dp_size": facts.dp_size,
        "page_size": facts.page_size,
    }
    entry: dict[str, object] = {
        "id": one.id,
        "url": one.url,
        "model_id": facts.served_model_name or facts.model_path or "unknown",
        "priority": 50,
        "cost": 1.0,
        "worker_type": one.role.value,
        "is_healthy": one.usable,
        "load": one.load,
        "connection_mode": "http",
        "metadata": {name: value for name, value in known.items() if value not in ("", None)},
        "disable_health_check": False,
        "reason": one.reason or None,
        "routable": any(one in (pair.prefill, pair.decode) for pair in registry.table.cycle),
    }
    if one.role is Role.PREFILL and not (registry.misled and one.bootstrap_port is None):
        entry["bootstrap_port"] = one.bootstrap_port
        entry["bootstrap_host"] = one.origin.uri_host
        entry["bootstrap_port_source"] = one.port_source.value if one.port_source else None
    return entry


def workers(registry: Registry) -> dict[str, object]:
    """GET /workers."""
    prefills, decodes = registry.of(Role.PREFILL), registry.of(Role.DECODE)
    return {
        "schema": WORKERS,
        **rehearsal(registry),
        "workers": [worker(one, registry) for one in (*prefills, *decodes)],
        "total": len(registry.workers),
        "stats": {"prefill_count": len(prefills), "decode_count": len(decodes), "regular_count": 0},
        "pairs": [pair(one) for one in registry.pairs.values()],
        "leaving": [{"id": one.id, "url": one.url, "in_flight": one.load} for one in registry.leaving],
    }


def pair(one: Pair) -> dict[str, object]:
    """Attempts by outcome and the breaker of one prefill-decode pair."""
    return {
        "prefill": one.prefill.url,
        "decode": one.decode.url,
        "usable": one.prefill.usable and one.decode.usable and one.breaker.allows,
        "breaker": one.breaker.state.value,
        "failures_in_a_row": one.breaker.failures,
        "attempts": dict(one.stats.attempts),
    }


def readiness(registry: Registry, draining: bool) -> dict[str, object]:
    """GET /readiness: ready means that a request sent now would find a pair."""
    usable = len(registry.table.cycle)
    ready = usable > 0 and not draining
    return {
        "schema": READINESS,
        **rehearsal(registry),
        "status": "ready" if ready else "not ready",
        "healthy_workers": sum(one.usable for one in registry.workers.values()),
        "total_workers": len(registry.workers),
        "usable_pairs": usable,
        "total_pairs": len(registry.pairs),
        "open_breakers": sum(one.breaker.state is not BreakerState.CLOSED for one in registry.pairs.values()),
        "reasons": (["the router is draining"] if draining else []) + registry.obstacles(),
    }
