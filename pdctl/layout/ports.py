"""The ports of an instance: those named on its command line, and every one that its processes bind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines.sglang.endpoints import (
    BASE_FALLBACK,
    DIST_FALLBACK,
    DIST_OFFSET,
    LAST_PORT,
    PORTS,
    Anchor,
    PortRow,
    When,
)
from pdctl.engines.versions import NEWEST, Version
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from pdctl.layout.shape import Shape


BLOCK_WORDS = (
    ("dist-init", "tcp"),
    ("tokenizer", "zmq"),
    ("rpc", "tcp"),
    ("dp-controller", "zmq"),
    ("worker-handshake", "zmq"),
)


class BoundPort(NamedTuple):
    node: int
    port: int
    purpose: str
    protocol: str


class Numbers(NamedTuple):
    """The ports given on the command line; None: the flag is not given."""

    http: int
    bootstrap: int | None = None  # of a prefill, or of a decode that may become one
    dist: int | None = None  # of --dist-init-addr
    nccl: int | None = None


def occupied(shape: Shape, numbers: Numbers, version: Version) -> tuple[BoundPort, ...]:
    """The ports of one SGLang instance whose number is known before it starts, on each of its nodes."""
    ports: list[BoundPort] = []
    for row in PORTS:
        first = _first(row, shape, numbers, version)
        if first is None or not row.span.holds(version):
            continue
        count = shape.dp if row.when is When.PER_DP_RANK else 1
        for node in range(shape.nodes if row.every_node else 1):
            ports += [BoundPort(node, first + rank, row.purpose, row.protocol) for rank in range(count)]
    return tuple(ports)


class PortBlock(NamedTuple):
    """The embedded engine's own ports on node 0 of an instance with several nodes, at sglang 0.5.23's places.

    The other numbers of that block stay free: its detokenizer and its metrics need no socket.
    """

    dist: int
    tokenizer: int
    rpc: int  # heartbeats between the nodes of the instance
    controller: int
    handshake: int

    @classmethod
    def of(cls, dist: int) -> PortBlock:
        base = base_port(dist, NEWEST)
        return cls(dist, base, base + 2, base + 4, dist + 13)


def embedded(numbers: Numbers, nodes: int = 1) -> tuple[BoundPort, ...]:
    """On one node the ranks talk over private ipc:// sockets: only what others must reach has a port."""
    ports = [BoundPort(node, node_http(numbers, node), "http", "http") for node in range(nodes)]
    if numbers.bootstrap is not None:
        ports.append(BoundPort(0, numbers.bootstrap, "bootstrap", "http"))
    if numbers.dist is not None:
        pairs = zip(BLOCK_WORDS, PortBlock.of(numbers.dist), strict=True)
        ports += [BoundPort(0, port, purpose, protocol) for (purpose, protocol), port in pairs]
    return tuple(ports)


def node_http(numbers: Numbers, node: int) -> int:
    """Nodes of the embedded engine may share a host: each has its own HTTP port, counting up from node 0's."""
    return numbers.http + node


def dist_port(numbers: Numbers, version: Version) -> int:
    """D: where the derived block starts."""
    if numbers.dist is not None:
        return numbers.dist
    port = numbers.http + DIST_OFFSET
    below = next((row.below for row in DIST_FALLBACK if row.span.holds(version)), None)
    return numbers.http - below if port > LAST_PORT and below is not None else port


def base_port(dist: int, version: Version) -> int:
    """B: the first internal channel."""
    for row in BASE_FALLBACK:
        if row.span.holds(version) and dist + row.reach > LAST_PORT:
            return dist - row.below
    return dist + 1


def _first(row: PortRow, shape: Shape, numbers: Numbers, version: Version) -> int | None:
    """The row's (first) port, or None where this instance has no such port."""
    wanted = {
        When.ALWAYS: True,
        When.PREFILL: numbers.bootstrap is not None,
        When.TCP_CHANNELS: shape.dp_attention,
        When.PER_DP_RANK: shape.dp_attention,
        When.DIST: shape.dp_attention or shape.nodes > 1,
    }[row.when]
    if not wanted:
        return None
    dist = dist_port(numbers, version)
    anchor = {
        Anchor.HTTP: numbers.http,
        Anchor.BOOTSTRAP: numbers.bootstrap,
        Anchor.DIST: dist,
        Anchor.BASE: base_port(dist, version),
        Anchor.NCCL: numbers.nccl,
    }[row.anchor]
    if row.purpose == "worker-handshake" and numbers.dist is None:
        anchor = numbers.http  # without --dist-init-addr it is counted from --port
    return None if anchor is None else anchor + row.offset
