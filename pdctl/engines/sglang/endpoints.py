"""What one SGLang instance listens on, release by release: HTTP routes, what a request may carry, TCP ports.

And of a prefill's bootstrap server: routes, query words, answers (srt/disaggregation/common/conn.py).
"""

from __future__ import annotations

from enum import Enum

from pdctl.engines import versions
from pdctl.engines.versions import (
    V0_5_3,
    V0_5_3_POST2,
    V0_5_6_POST2,
    V0_5_8,
    V0_5_10,
    V0_5_13,
    V0_5_16,
    V0_5_17,
    V0_5_21,
    V0_5_22,
    V0_5_23,
    Span,
    Version,
)
from pdctl.quick_definitions import NamedTuple


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
        return Span() if self.path == "/metrics" else versions.span("routes", "server", self.path)


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


# --- the bootstrap server

TO_10 = Span(V0_5_3, V0_5_10)
FROM_10 = Span(V0_5_10)


class Query(NamedTuple):
    """The query parameters of GET /route. All -1 asks for the topology; ranks ask for one rank's address.

    refused: the status of a request with the other style's parameters.
    """

    style: str
    names: tuple[str, ...]
    span: Span
    refused: int = 400


QUERIES: tuple[Query, ...] = (
    Query("new", ("prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank"), FROM_10),
    Query("old", ("engine_rank", "target_dp_group", "target_pp_rank"), TO_10),
)


class TopologyKey(NamedTuple):
    """A key of the topology answer. `meaning`: one word for both styles. `always`: it is written even if null."""

    name: str
    meaning: str
    span: Span
    always: bool = True


SHAPE_KEYS: tuple[TopologyKey, ...] = (
    TopologyKey("prefill_attn_tp_size", "attn_tp_size", TO_10),
    TopologyKey("prefill_dp_size", "dp_size", TO_10),
    TopologyKey("prefill_pp_size", "pp_size", TO_10),
    TopologyKey("prefill_page_size", "page_size", Span(V0_5_8, V0_5_10)),
    TopologyKey("attn_tp_size", "attn_tp_size", FROM_10),
    TopologyKey("attn_cp_size", "attn_cp_size", FROM_10),
    TopologyKey("dp_size", "dp_size", FROM_10),
    TopologyKey("pp_size", "pp_size", FROM_10),
    TopologyKey("page_size", "page_size", FROM_10),
    TopologyKey("kv_cache_dtype", "kv_cache_dtype", FROM_10),
    TopologyKey("follow_bootstrap_room", "follow_bootstrap_room", FROM_10),
    TopologyKey("enable_dsa_cache_layer_split", "enable_dsa_cache_layer_split", Span(V0_5_16)),
    TopologyKey("prefill_http_port", "prefill_http_port", Span(V0_5_16)),
    TopologyKey("decode_allocation_policy", "decode_allocation_policy", Span(V0_5_22)),
    TopologyKey("enable_kv_cache_sharding", "enable_kv_cache_sharding", Span(V0_5_23)),
    TopologyKey("kv_layout", "kv_layout", Span(V0_5_23), always=False),
    TopologyKey("dsv41_spec_layout", "dsv41_spec_layout", Span(V0_5_21), always=False),
)
RANK_KEYS = ("rank_ip", "rank_port")


class Sent(NamedTuple):
    """A field a prefill rank sends when it registers (PUT /route). `required`: without it the server answers 500."""

    name: str
    span: Span = Span()
    required: bool = True


REGISTERED: tuple[Sent, ...] = (
    Sent("role", TO_10),
    Sent("attn_tp_size"),
    Sent("attn_tp_rank"),
    Sent("attn_cp_size", FROM_10),
    Sent("attn_cp_rank", FROM_10),
    Sent("attn_dp_size"),
    Sent("attn_dp_rank"),
    Sent("pp_size"),
    Sent("pp_rank"),
    Sent("system_dp_size"),
    Sent("system_dp_rank"),
    Sent("rank_ip"),
    Sent("rank_port"),
    Sent("page_size", Span(V0_5_8)),
    Sent("kv_cache_dtype", FROM_10),
    Sent("load_balance_method", FROM_10, False),
    Sent("enable_dsa_cache_layer_split", Span(V0_5_16), False),
    Sent("prefill_http_port", Span(V0_5_16), False),
    Sent("kv_layout", Span(V0_5_23), False),
    Sent("dsv41_spec_layout", Span(V0_5_21), False),
    Sent("enable_kv_cache_sharding", Span(V0_5_23), False),
    Sent("decode_allocation_policy", Span(V0_5_22), False),
)


class StatusMeaning(NamedTuple):
    """The meaning of a status for one kind of request."""

    question: str  # health | shape | rank | other
    status: int
    text: str
    meaning: str
    span: Span = Span()


NOT_COMPLETE = r"Prefill server not fully registered yet \((?P<registered>\d+) workers registered\)\."

ANSWERS: tuple[StatusMeaning, ...] = (
    StatusMeaning("health", 200, "OK", "the socket listens; says nothing about registration"),
    StatusMeaning("shape", 200, "", "every rank is registered", FROM_10),
    StatusMeaning("shape", 200, "", "what is registered so far; null before the first rank", TO_10),
    StatusMeaning("shape", 503, NOT_COMPLETE, "ranks are missing", FROM_10),
    StatusMeaning("shape", 400, "Missing inputs for bootstrap server.", "asked in the other style's words"),
    StatusMeaning("rank", 200, "", "the rank's ZMQ address"),
    StatusMeaning("rank", 404, "Bootstrap info not found for", "no such rank", FROM_10),
    StatusMeaning("rank", 500, "", "no such rank (KeyError)", TO_10),
    StatusMeaning("rank", 503, NOT_COMPLETE, "ranks are missing", FROM_10),
    StatusMeaning("other", 405, "Method not allowed", "a bootstrap server asked with another method"),
    StatusMeaning("other", 404, "404: Not Found", "a bootstrap server, or any other aiohttp server"),
)

# Only 0.5.10 and later: which DP rank of a prefill has a room.
DP_RANK_ROUTES = ("/register_dp_rank", "/query_dp_ranks")


def query(version: Version) -> Query:
    """The query parameters that this release's decode uses and its bootstrap server understands."""
    return next(row for row in QUERIES if row.span.holds(version))


def shape_keys(version: Version) -> tuple[TopologyKey, ...]:
    return tuple(key for key in SHAPE_KEYS if key.span.holds(version))
