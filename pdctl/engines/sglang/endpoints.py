"""What one SGLang instance listens on, release by release: HTTP routes, what a request may carry, and TCP ports."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from pdctl.engines import history
from pdctl.engines.versions import V0_5_3, V0_5_3_POST2, V0_5_6_POST2, V0_5_10, V0_5_13, V0_5_17, Span, Version


class Route(NamedTuple):
    """`purpose` says what the route is used for; of two routes with one purpose, the earlier row is preferred.

    proves: what a 200 proves about serving PD, "" for nothing beyond a live process.
    """

    purpose: str
    method: str
    path: str
    proves: str = ""
    note: str = ""

    @property
    def span(self) -> Span:
        """The releases with the route. /metrics is not one: prometheus_client's own application is mounted there."""
        return Span() if self.path == "/metrics" else history.span("routes", "server", self.path)


ROUTES: tuple[Route, ...] = (
    Route("health", "GET", "/health", proves="a scheduler answers a one-token request to a fake peer"),
    Route(
        "health_generate", "GET", "/health_generate", proves="any scheduler message arrived",
        note="bootstrap_host 2.2.2.2: no KV cache moves",
    ),
    Route("ready", "GET", "/ready"),
    Route("ping", "GET", "/ping"),
    Route("server_info", "GET", "/server_info", note="asks the scheduler: hangs when that is stuck"),
    Route("server_info", "GET", "/get_server_info", note="deprecated since 0.5.6; each call writes a warning there"),
    Route("model_info", "GET", "/model_info"),
    Route("model_info", "GET", "/get_model_info"),
    Route("loads", "GET", "/v1/loads"),
    Route("loads", "GET", "/get_load"),
    Route("metrics", "GET", "/metrics", note="only with --enable-metrics"),
    Route("models", "GET", "/v1/models"),
    Route("generate", "POST", "/generate"),
    Route("completions", "POST", "/v1/completions"),
    Route("chat", "POST", "/v1/chat/completions"),
    Route("abort", "POST", "/abort_request", note="body {rid, abort_all}; rid is a prefix"),
    Route("flush_cache", "POST", "/flush_cache", note="400 while requests run"),
    Route("pause", "POST", "/pause_generation"),
    Route("continue", "POST", "/continue_generation"),
    Route("internal_state", "POST", "/set_internal_state"),
    Route("logging", "POST", "/configure_logging", note="turns --log-requests on without a restart"),
    Route("trace_level", "POST", "/set_trace_level"),
    Route("role_switch", "POST", "/pd_role_switch"),
)  # fmt: skip


class Body(NamedTuple):
    """A field of a /generate body that PD reads; the OpenAI routes also take the bootstrap fields at top level."""

    name: str
    type: str
    span: Span = Span()
    note: str = ""


BODY: tuple[Body, ...] = (
    Body("bootstrap_host", "str", note="null: 0.5.10 and later raise AttributeError in the decode's scheduler"),
    Body("bootstrap_port", "int", note="null: the receiving server's own --disaggregation-bootstrap-port, silently"),
    Body("bootstrap_room", "int", note="never 0, which means `not written` from 0.5.9 on; unique per request"),
    Body("bootstrap_pair_key", "str"),
    Body("decode_tp_size", "int", Span(V0_5_6_POST2)),
    Body("data_parallel_rank", "int", note="from 0.5.10 an alias of routed_dp_rank"),
    Body("routed_dp_rank", "int", Span(V0_5_10)),
    Body("disagg_prefill_dp_rank", "int", Span(V0_5_10), "tells a decode which prefill DP rank has the room"),
    Body("rid", "str"),
)

FAKE_HOST = "2.2.2.2"  # as bootstrap_host, it makes both sides use a fake peer (warm-up, health, probes)
DEFAULT_BOOTSTRAP_PORT = 8998
DEFAULT_PORT = 30000


def paths(purpose: str, version: Version | None = None) -> tuple[str, ...]:
    """Paths for one purpose, the preferred one first; `version` None: those of every release, to be tried in turn."""
    return tuple(
        dict.fromkeys(
            route.path for route in ROUTES
            if route.purpose == purpose and (version is None or route.span.holds(version))
        )
    )  # fmt: skip


class Anchor(str, Enum):
    """What a port number is counted from."""

    HTTP = "http"  # --port
    BOOTSTRAP = "bootstrap"  # --disaggregation-bootstrap-port
    DIST = "dist"  # D: the port of --dist-init-addr, else --port + 233
    BASE = "base"  # B: D + 1, or below D near the end of the port range
    NCCL = "nccl"  # --nccl-port


class When(str, Enum):
    """Which instances occupy a port."""

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
    # Followers bind the same port only to answer /health; pdctl gives every node the leader's port.
    PortRow("http", "http", Anchor.HTTP, 0, When.ALWAYS, every_node=True),
    PortRow("bootstrap", "http", Anchor.BOOTSTRAP, 0, When.PREFILL),
    PortRow("dist-init", "tcp", Anchor.DIST, 0, When.DIST),
    PortRow("tokenizer", "zmq", Anchor.BASE, 0, When.TCP_CHANNELS),
    PortRow("detokenizer", "zmq", Anchor.BASE, 1, When.TCP_CHANNELS),
    PortRow("rpc", "zmq", Anchor.BASE, 2, When.TCP_CHANNELS),
    PortRow("metrics", "zmq", Anchor.BASE, 3, When.TCP_CHANNELS),
    PortRow("dp-controller", "zmq", Anchor.BASE, 4, When.TCP_CHANNELS),
    PortRow("scheduler-input", "zmq", Anchor.BASE, 5, When.PER_DP_RANK, Span(V0_5_3, V0_5_3_POST2)),
    # Bound only with several nodes, but the start-up check always requires it to be free.
    PortRow("load-collector", "zmq", Anchor.BASE, 5, When.TCP_CHANNELS, Span(V0_5_3_POST2)),
    PortRow("worker-handshake", "zmq", Anchor.DIST, 13, When.TCP_CHANNELS, Span(V0_5_3_POST2)),
    PortRow("nccl", "tcp", Anchor.NCCL, 0, When.ALWAYS),
)

# One of each per rank, on every node, on a port the kernel picks: nothing to reserve, but a firewall must let it pass.
EPHEMERAL: tuple[str, ...] = ("KV manager (zmq)", "transfer engine")

DIST_OFFSET = 233  # D without --dist-init-addr, from --port
LAST_PORT = 65535


class Fallback(NamedTuple):
    """Where a block is placed if its port + `reach` exceeds the port range: `below` its anchor."""

    reach: int
    below: int
    span: Span


DIST_FALLBACK: tuple[Fallback, ...] = (Fallback(0, DIST_OFFSET, Span(V0_5_13)),)  # of D, below --port
BASE_FALLBACK: tuple[Fallback, ...] = (  # of B, below D
    Fallback(5, 6, Span(V0_5_13, V0_5_17)),
    Fallback(6, 7, Span(V0_5_17)),
)
