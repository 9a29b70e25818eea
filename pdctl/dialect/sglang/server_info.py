"""The fields of /server_info that decide whether a prefill and a decode fit.

Most are fields of ServerArgs, dated by the table that was read from the wheels (dialect/releases/sglang/records.tsv).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from pdctl.dialect import history
from pdctl.dialect.versions import V0_5_3, V0_5_17, V0_5_20, V0_5_22, Span, Version


class Agreement(str, Enum):
    """How the two sides of a pair must stand to each other."""

    EQUAL = "equal"  # anything else breaks the pair
    SHAPE = "shape"  # compared by a rule (attention TP by model family, PP by release)
    OPPOSITE = "opposite"  # disaggregation_mode
    OWN = "own"  # each side's business
    FREE = "free"  # differs without harm


class Field(NamedTuple):
    """code: the finding a disagreement is; "" when it is none. broken: how it shows when nobody looks."""

    name: str
    type: str
    agreement: Agreement
    code: str = ""
    broken: str = ""

    @property
    def span(self) -> Span:
        return OTHERS.get(self.name) or history.span("records", "ServerArgs", self.name)


# What the server adds to its arguments (srt/entrypoints/http_server.py, and the scheduler's state).
OTHERS: dict[str, Span] = {
    "version": Span(),
    "max_total_num_tokens": Span(),
    "startup_time": Span(V0_5_17),
    "launch_command": Span(V0_5_20),
}


FIELDS: tuple[Field, ...] = (
    Field("disaggregation_mode", "str", Agreement.OPPOSITE, "PD301", broken="requests without a peer"),
    Field("disaggregation_transfer_backend", "str", Agreement.EQUAL, "PD309", broken="frames of another protocol"),
    Field("disaggregation_bootstrap_port", "int", Agreement.OWN),
    Field("disaggregation_ib_device", "str|null", Agreement.OWN, "PD414"),
    Field("version", "str", Agreement.EQUAL, "PD310", broken="bootstrap answers and ZMQ frames differ"),
    Field("model_path", "str", Agreement.EQUAL, "PD311", broken="KV cache of another model: wrong text"),
    Field("served_model_name", "str", Agreement.FREE),
    Field("page_size", "int", Agreement.EQUAL, "PD302", broken="0.5.3: silent corruption; later: scheduler dies"),
    Field("kv_cache_dtype", "str", Agreement.EQUAL, "PD303", broken="before 0.5.13: silent corruption"),
    Field("context_length", "int|null", Agreement.EQUAL, "PD307", broken="one side refuses, the other waits 300 s"),
    Field("tp_size", "int", Agreement.SHAPE, "PD305"),
    Field("pp_size", "int", Agreement.SHAPE, "PD315"),
    Field("dp_size", "int", Agreement.SHAPE, "PD313"),
    Field("attn_dp_size", "int", Agreement.SHAPE, "PD305"),
    Field("enable_dp_attention", "bool", Agreement.SHAPE, "PD305"),
    Field("attn_cp_size", "int", Agreement.SHAPE, "PD305"),
    Field("moe_dp_size", "int", Agreement.OWN, ""),
    Field("dcp_size", "int", Agreement.EQUAL, "PD305"),
    Field("ep_size", "int", Agreement.OWN),
    Field("nnodes", "int", Agreement.OWN),
    Field("node_rank", "int", Agreement.OWN),
    Field("dist_init_addr", "str|null", Agreement.OWN, "PD217"),
    Field("load_balance_method", "str", Agreement.SHAPE, "PD313"),
    Field("chunked_prefill_size", "int", Agreement.OWN, "PD314"),
    Field("max_running_requests", "int|null", Agreement.OWN),
    Field("max_total_num_tokens", "int", Agreement.OWN, "PD501"),
    Field("num_reserved_decode_tokens", "int", Agreement.OWN, "PD502"),
    Field("speculative_algorithm", "str|null", Agreement.EQUAL, "PD308", broken="metadata buffers misaligned"),
    Field("speculative_num_draft_tokens", "int|null", Agreement.EQUAL, "PD308"),
    Field("speculative_draft_model_path", "str|null", Agreement.EQUAL, "PD308"),
    Field("mamba_ssm_dtype", "str|null", Agreement.EQUAL, "PD312", broken="long outputs slowly become worse"),
    Field("attention_backend", "str|null", Agreement.FREE),
    Field("enable_request_time_stats_logging", "bool", Agreement.OWN, "PD801"),
    Field("log_requests", "bool", Agreement.OWN, "PD801"),
    Field("log_level", "str", Agreement.OWN, "PD801"),
    Field("enable_metrics", "bool", Agreement.OWN, "PD802"),
    Field("disaggregation_decode_tp", "int|null", Agreement.OWN, ""),
    Field("disaggregation_decode_dp", "int|null", Agreement.OWN, ""),
    Field("disaggregation_prefill_pp", "int|null", Agreement.OWN, ""),
    Field("disaggregation_decode_allocation_policy", "str", Agreement.EQUAL, "PD308"),
    Field("disaggregation_enable_kv_checksum", "bool", Agreement.EQUAL, "PD308"),
    Field("startup_time", "float", Agreement.FREE, ""),
    Field("launch_command", "str", Agreement.FREE, ""),
)


class Width(NamedTuple):
    """Where the attention-DP width stands: 0.5.22 and later report dp_size 1 and the width in a field of its own."""

    field: str
    only_if: str  # this field must be true, "" for no condition
    span: Span


ATTENTION_WIDTH: tuple[Width, ...] = (
    Width("attn_dp_size", "", Span(V0_5_22)),
    Width("dp_size", "enable_dp_attention", Span(V0_5_3, V0_5_22)),
)


def fields(version: Version | None = None) -> tuple[Field, ...]:
    return tuple(row for row in FIELDS if version is None or row.span.holds(version))
