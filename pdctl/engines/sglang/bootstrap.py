"""The bootstrap server of a prefill instance: routes, query words, answers (srt/disaggregation/common/conn.py)."""

from __future__ import annotations

from typing import NamedTuple

from pdctl.engines.versions import V0_5_3, V0_5_8, V0_5_10, V0_5_16, V0_5_21, V0_5_22, V0_5_23, Span, Version

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
