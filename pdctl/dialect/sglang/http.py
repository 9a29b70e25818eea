"""The HTTP surface of an engine that serves a PD role, release by release (srt/entrypoints/http_server.py)."""

from __future__ import annotations

from typing import NamedTuple

from pdctl.dialect.versions import V0_5_3, V0_5_8, V0_5_13, V0_5_23, Span, Version


class Route(NamedTuple):
    """`purpose` names what is asked for; of two routes with one purpose the earlier row is the better one.

    proves: what a 200 proves about serving PD, "" for nothing beyond a living process.
    """

    purpose: str
    method: str
    path: str
    span: Span = Span()
    proves: str = ""
    note: str = ""


ROUTES: tuple[Route, ...] = (
    Route("health", "GET", "/health", proves="a scheduler answers a one-token request to a fake peer"),
    Route(
        "health_generate", "GET", "/health_generate", proves="any scheduler message arrived",
        note="bootstrap_host 2.2.2.2: no KV cache moves",
    ),
    Route("ready", "GET", "/ready", Span(V0_5_23)),
    Route("ping", "GET", "/ping"),
    Route("server_info", "GET", "/server_info", Span(V0_5_8), note="asks the scheduler: hangs when that is stuck"),
    Route("server_info", "GET", "/get_server_info", note="deprecated since 0.5.8; each call writes a warning there"),
    Route("model_info", "GET", "/model_info", Span(V0_5_8)),
    Route("model_info", "GET", "/get_model_info"),
    Route("loads", "GET", "/v1/loads", Span(V0_5_8)),
    Route("loads", "GET", "/get_load", Span(V0_5_3, V0_5_23)),
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
    Route("trace_level", "POST", "/set_trace_level", Span(V0_5_13)),
    Route("role_switch", "POST", "/pd_role_switch", Span(V0_5_23)),
)  # fmt: skip


class Body(NamedTuple):
    """A field of a /generate body that PD reads; the OpenAI routes take the bootstrap fields at top level too."""

    name: str
    type: str
    span: Span = Span()
    note: str = ""


BODY: tuple[Body, ...] = (
    Body("bootstrap_host", "str", note="null: 0.5.13 and later raise AttributeError in the decode's scheduler"),
    Body("bootstrap_port", "int", note="null: the receiving server's own --disaggregation-bootstrap-port, silently"),
    Body("bootstrap_room", "int", note="never 0, which means `not written` from 0.5.13 on; unique per request"),
    Body("bootstrap_pair_key", "str"),
    Body("decode_tp_size", "int", Span(V0_5_8)),
    Body("data_parallel_rank", "int", note="from 0.5.13 an alias of routed_dp_rank"),
    Body("routed_dp_rank", "int", Span(V0_5_13)),
    Body("disagg_prefill_dp_rank", "int", Span(V0_5_13), "tells a decode which prefill DP rank has the room"),
    Body("rid", "str"),
)

FAKE_HOST = "2.2.2.2"  # as bootstrap_host: both sides use a peer that is not there (warm-up, health, probes)
DEFAULT_BOOTSTRAP_PORT = 8998
DEFAULT_PORT = 30000


def paths(purpose: str, version: Version | None = None) -> tuple[str, ...]:
    """Paths for one purpose, the better first; version None: every release's, to be tried in turn."""
    return tuple(
        dict.fromkeys(
            route.path for route in ROUTES
            if route.purpose == purpose and (version is None or route.span.holds(version))
        )
    )  # fmt: skip
