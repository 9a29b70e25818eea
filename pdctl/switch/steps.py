"""What a switch would do, in words: `--dry-run`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.switch.order import PREFILL, Note, Step, other
from pdctl.switch.refusals import graph_memory, has_graphs, port_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.switch.fleet import Fleet
    from pdctl.switch.order import Order


CANARY = 60.0  # seconds
# A decode of sglang 0.5.23 keeps the address that a prefill had before it was a decode, and its bootstrap server does
# not tell: it asks anew once a room has waited SGLANG_DISAGGREGATION_WAITING_TIMEOUT (300 s; seen, in 321 s).
CANARY_OF_RETURNED = 400.0


def canary_seconds(order: Order, fleet: Fleet) -> float:
    if order.canary is not None:
        return order.canary
    return CANARY if order.to != PREFILL or fleet.target.embedded else CANARY_OF_RETURNED


def steps(order: Order, fleet: Fleet) -> Iterator[Note]:
    """In order; those that have nothing to do are left out."""
    target, old, new = fleet.target, other(order.to), order.to
    for router, entry in zip(fleet.routers, target.listed, strict=True):
        if entry is not None:
            yield Note(Step.REMOVE, f"DELETE {order.url} at {router.url} ({router.kind}), and wait until it is gone")
    if target.role != new:
        yield Note(Step.DRAIN, f"wait up to {order.drain:g} s until it holds nothing in two looks")
        graphs = "" if target.embedded or new == PREFILL or has_graphs(target) else _graphs(order, fleet)
        yield Note(Step.SWITCH, f"POST {order.url}/pd_role_switch: {old} -> {new}{graphs}; again while it is not idle")
    yield Note(Step.VERIFY, f"its role reads {new}, /health answers 200" + _ranks(order, fleet))
    peers = [member.name for member in fleet.of(old) if member.healthy]
    yield Note(Step.CANARY, f"one request with each of {', '.join(peers)}, within {canary_seconds(order, fleet):g} s")
    for router in fleet.routers:
        port = f" with bootstrap port {port_of(order, fleet)}" if new == PREFILL else ""
        yield Note(Step.ADD, f"POST it at {router.url} as a {new}{port}, and wait until it is routed to")


def _graphs(order: Order, fleet: Fleet) -> str:
    return f" with {graph_memory(order, fleet):g} GB for its CUDA graphs"


def _ranks(order: Order, fleet: Fleet) -> str:
    if order.to != PREFILL:
        return ""
    return f", {fleet.target.ranks} rank(s) at {fleet.target.host}:{port_of(order, fleet)}"
