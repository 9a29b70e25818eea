"""Which TCP ports one SGLang instance occupies, release by release (`PortArgs.init_new` and the DP controller)."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from pdctl.engines.versions import V0_5_3, V0_5_3_POST2, V0_5_13, V0_5_17, Span


class Anchor(str, Enum):
    """What a port's number is counted from."""

    HTTP = "http"  # --port
    BOOTSTRAP = "bootstrap"  # --disaggregation-bootstrap-port
    DIST = "dist"  # D: the port of --dist-init-addr, else --port + 233
    BASE = "base"  # B: D + 1, or below D near the end of the port range
    NCCL = "nccl"  # --nccl-port


class When(str, Enum):
    """The instances that occupy a port."""

    ALWAYS = "always"
    PREFILL = "prefill"
    TCP_CHANNELS = "dp-attention"  # without DP attention every internal channel is an ipc:// file
    DIST = "dist"  # several nodes, or DP attention
    PER_DP_RANK = "per-dp-rank"


class PortRow(NamedTuple):
    purpose: str
    protocol: str
    anchor: Anchor
    offset: int
    when: When
    span: Span = Span()
    every_node: bool = False


PORTS: tuple[PortRow, ...] = (
    # Followers bind the same number for a /health answer only; pdctl gives every node the leader's number.
    PortRow("http", "http", Anchor.HTTP, 0, When.ALWAYS, every_node=True),
    PortRow("bootstrap", "http", Anchor.BOOTSTRAP, 0, When.PREFILL),
    PortRow("dist-init", "tcp", Anchor.DIST, 0, When.DIST),
    PortRow("tokenizer", "zmq", Anchor.BASE, 0, When.TCP_CHANNELS),
    PortRow("detokenizer", "zmq", Anchor.BASE, 1, When.TCP_CHANNELS),
    PortRow("rpc", "zmq", Anchor.BASE, 2, When.TCP_CHANNELS),
    PortRow("metrics", "zmq", Anchor.BASE, 3, When.TCP_CHANNELS),
    PortRow("dp-controller", "zmq", Anchor.BASE, 4, When.TCP_CHANNELS),
    PortRow("scheduler-input", "zmq", Anchor.BASE, 5, When.PER_DP_RANK, Span(V0_5_3, V0_5_3_POST2)),
    # Bound only with several nodes; the start-up check wants it free all the same.
    PortRow("load-collector", "zmq", Anchor.BASE, 5, When.TCP_CHANNELS, Span(V0_5_3_POST2)),
    PortRow("worker-handshake", "zmq", Anchor.DIST, 13, When.TCP_CHANNELS, Span(V0_5_3_POST2)),
    PortRow("nccl", "tcp", Anchor.NCCL, 0, When.ALWAYS),
)

# One of each per rank, on every node, at a number the kernel picks: nothing to reserve, much for a firewall to pass.
EPHEMERAL: tuple[str, ...] = ("KV manager (zmq)", "transfer engine")

DIST_OFFSET = 233  # D without --dist-init-addr, from --port
LAST_PORT = 65535


class Fallback(NamedTuple):
    """Where a block lies when its port + `reach` passes the end of the port range: `below` that port's anchor."""

    reach: int
    below: int
    span: Span


DIST_FALLBACK: tuple[Fallback, ...] = (Fallback(0, DIST_OFFSET, Span(V0_5_13)),)  # of D, below --port
BASE_FALLBACK: tuple[Fallback, ...] = (  # of B, below D
    Fallback(5, 6, Span(V0_5_13, V0_5_17)),
    Fallback(6, 7, Span(V0_5_17)),
)
