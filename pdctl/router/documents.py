"""What the router reports about itself: the JSON of /workers and /readiness, the Prometheus text of /metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.router.registry import BreakerState, Registry, Worker, WorkerPair, WorkerRole
from pdctl.router.router_args import KEY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.router.room_ledger import Histogram, RoomLedger, RouterStats

WORKERS = "pdctl.router.workers/1"
READINESS = "pdctl.router.readiness/1"
STATES = {BreakerState.CLOSED: 0, BreakerState.OPEN: 1, BreakerState.HALF_OPEN: 2}
CONTENT_TYPE = b"content-type: text/plain; version=0.0.4; charset=utf-8\r\n"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def workers(registry: Registry) -> dict[str, object]:
    """Return the document of GET /workers."""
    prefills, decodes = registry.of(WorkerRole.PREFILL), registry.of(WorkerRole.DECODE)
    return {
        "schema": WORKERS,
        **rehearsal(registry),
        "workers": [worker(one, registry) for one in (*prefills, *decodes)],
        "total": len(registry.workers),
        "stats": {"prefill_count": len(prefills), "decode_count": len(decodes), "regular_count": 0},
        "pairs": [pair(one) for one in registry.pairs.values()],
        "leaving": [{"id": one.id, "url": one.url, "in_flight": one.load} for one in registry.leaving],
    }


def worker(one: Worker, registry: Registry) -> dict[str, object]:
    """Return an entry of GET /workers (sglang_router 0.3.2). For a prefill, an unknown `bootstrap_port` is null.

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
    if one.role is WorkerRole.PREFILL and not (registry.misled and one.bootstrap_port is None):
        entry["bootstrap_port"] = one.bootstrap_port
        entry["bootstrap_host"] = one.origin.uri_host
        entry["bootstrap_port_source"] = one.port_source.value if one.port_source else None
    return entry


def pair(one: WorkerPair) -> dict[str, object]:
    """Return one pair's attempts by outcome, and its breaker."""
    return {
        "prefill": one.prefill.url,
        "decode": one.decode.url,
        "usable": one.prefill.usable and one.decode.usable and one.breaker.allows,
        "breaker": one.breaker.state.value,
        "failures_in_a_row": one.breaker.failures,
        "attempts": dict(one.stats.attempts),
    }


def readiness(registry: Registry, draining: bool) -> dict[str, object]:
    """Return the document of GET /readiness: ready means that a request sent now would find a pair."""
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


def rehearsal(registry: Registry) -> dict[str, object]:
    """Return the key that every document of a rehearsing router has; empty otherwise."""
    return {KEY: [registry.rehearsal]} if registry.rehearsal else {}


def exposition(registry: Registry, stats: RouterStats, ledger: RoomLedger, clients: int) -> bytes:
    out = Exposition()
    out.family(
        "pdctl_router_requests_total", "counter", "Answers to clients by route and status; 0: the client left first."
    )
    for (path, status), count in stats.requests.items():
        out.sample("pdctl_router_requests_total", count, path=path, status=status)
    out.family("pdctl_router_retries_total", "counter", "Attempts after the first.")
    out.sample("pdctl_router_retries_total", stats.retries)
    out.family(
        "pdctl_router_client_disconnects_total", "counter", "Clients that left before their answer was complete."
    )
    out.sample("pdctl_router_client_disconnects_total", stats.client_gone)
    out.family("pdctl_router_rooms_in_flight", "gauge", "Rooms whose request has not ended.")
    out.sample("pdctl_router_rooms_in_flight", ledger.running)
    out.family("pdctl_router_client_connections", "gauge", "Open connections of clients.")
    out.sample("pdctl_router_client_connections", clients)
    _workers(out, registry)
    _pairs(out, registry)
    return out.text()


def _workers(out: Exposition, registry: Registry) -> None:
    out.family("pdctl_router_worker_usable", "gauge", "1 when the worker may be routed to.")
    for one in registry.workers.values():
        out.sample("pdctl_router_worker_usable", int(one.usable), worker=one.url, role=one.role.value)
    out.family("pdctl_router_worker_in_flight", "gauge", "Legs in flight.")
    for one in registry.workers.values():
        out.sample("pdctl_router_worker_in_flight", one.load, worker=one.url, role=one.role.value)
    out.family("pdctl_router_worker_idle_connections", "gauge", "Pooled connections without a request.")
    for one in registry.workers.values():
        out.sample("pdctl_router_worker_idle_connections", one.pool.idle, worker=one.url, role=one.role.value)
    out.family("pdctl_router_bootstrap_port", "gauge", "Bootstrap port sent for this prefill; 0 when unknown.")
    for one in registry.of(WorkerRole.PREFILL):
        source = one.port_source.value if one.port_source else "unknown"
        out.sample("pdctl_router_bootstrap_port", one.bootstrap_port or 0, worker=one.url, source=source)


def _pairs(out: Exposition, registry: Registry) -> None:
    pairs = [({"prefill": one.prefill.url, "decode": one.decode.url}, one) for one in registry.pairs.values()]
    out.family("pdctl_router_attempts_total", "counter", "Attempts by pair and outcome.")
    for named, one in pairs:
        for outcome, count in one.stats.attempts.items():
            out.sample("pdctl_router_attempts_total", count, **named, outcome=outcome)
    out.family("pdctl_router_leg_failures_total", "counter", "Failed legs by pair, leg and cause.")
    for named, one in pairs:
        for (leg, cause), count in one.stats.leg_failures.items():
            out.sample("pdctl_router_leg_failures_total", count, **named, leg=leg, cause=cause)
    out.family("pdctl_router_breaker_state", "gauge", "0 closed, 1 open, 2 half open.")
    for named, one in pairs:
        out.sample("pdctl_router_breaker_state", STATES[one.breaker.state], **named)
    out.family("pdctl_router_first_byte_seconds", "histogram", "From dispatch to the first byte for the client.")
    for named, one in pairs:
        out.histogram("pdctl_router_first_byte_seconds", one.stats.first_byte, **named)
    out.family("pdctl_router_attempt_seconds", "histogram", "From dispatch to the last byte.")
    for named, one in pairs:
        out.histogram("pdctl_router_attempt_seconds", one.stats.duration, **named)


class Exposition:
    """Builds the text of one scrape.

    Without prometheus_client: importing it makes the router start a third slower, and it sorts labels, which would
    change the text of every series.
    """

    def __init__(self) -> None:
        self._lines: list[str] = []

    def family(self, name: str, kind: str, text: str) -> None:
        self._lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]

    def sample(self, name: str, value: float, **named: object) -> None:
        self._lines.append(f"{name}{{{labels(named)}}} {value}" if named else f"{name} {value}")

    def histogram(self, name: str, histogram: Histogram, **named: object) -> None:
        self._lines += histogram.lines(name, labels(named))

    def text(self) -> bytes:
        return ("\n".join(self._lines) + "\n").encode()


def labels(values: Mapping[str, object]) -> str:
    """Return `a="b",c="d"`, escaped as the exposition format requires."""
    return ",".join(f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in values.items())
