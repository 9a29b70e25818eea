"""GET /metrics: everything the router counts, at the moment of the scrape."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.router.breaker import BreakerState
from pdctl.router.metrics import Exposition, RouterStats
from pdctl.router.registry import Registry, Role

if TYPE_CHECKING:
    from pdctl.router.ledger import Ledger

STATES = {BreakerState.CLOSED: 0, BreakerState.OPEN: 1, BreakerState.HALF_OPEN: 2}


def exposition(registry: Registry, stats: RouterStats, ledger: Ledger, clients: int) -> bytes:
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
    for one in registry.of(Role.PREFILL):
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
