"""What SGLang refuses about a parallel shape, in its own terms, and what it fails to refuse, release by release."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from pdctl.engines.sglang.behaviour import PAGE_SIZES_COMPARED
from pdctl.engines.versions import (
    V0_5_3,
    V0_5_5_POST1,
    V0_5_6_POST1,
    V0_5_9,
    V0_5_10,
    V0_5_11,
    V0_5_13,
    V0_5_22,
    Span,
    Version,
)


class Enforced(str, Enum):
    """How a release answers a broken rule."""

    ASSERT = "assert"
    ERROR = "ValueError"
    FLAG = "flag"  # argparse knows no such flag
    RUN_TIME = "run time"  # accepted at start-up, an assertion ends the scheduler on the first request
    NOTHING = "nothing"  # accepted, then ranks are missing or doubled, or KV is wrong


class Rule(NamedTuple):
    """`terms` is the rule as SGLang states it."""

    code: str
    terms: str
    enforced: Enforced
    span: Span = Span()


PAIR_PP = "decode pp_size == prefill pp_size or decode pp_size == 1"
PAIR_PAGE = "page_size is the same on prefill and decode"
REPLICAS = "multi-node data-parallel replicas are not supported; use attention DP"

RULES: tuple[Rule, ...] = (
    Rule("sizes-positive", "every parallel size is at least 1", Enforced.ASSERT),
    Rule("gpu-ids", "base_gpu_id >= 0 and gpu_id_step >= 1", Enforced.ASSERT),
    Rule(
        "nodes-divide-gpus",
        "(tp_size * pp_size) % nnodes == 0: tp_size must be divisible by number of nodes",
        Enforced.ASSERT,
    ),
    Rule(
        "replicas-on-one-node",
        "dp_size > 1 and nnodes != 1 needs enable_dp_attention",
        Enforced.ASSERT,
        Span(V0_5_3, V0_5_22),
    ),
    Rule("replicas-on-one-node", REPLICAS, Enforced.ERROR, Span(V0_5_22)),
    Rule("attn-dp-divides-tp", "tp_size % dp_size == 0", Enforced.ASSERT, Span(V0_5_3, V0_5_22)),
    Rule("attn-dp-divides-tp", "tp_size % attn_dp_size == 0", Enforced.ASSERT, Span(V0_5_22)),
    Rule(
        "attn-dp-or-replicas",
        "dp_size is either the attention width or the number of replicas",
        Enforced.FLAG,
        Span(V0_5_3, V0_5_22),
    ),
    Rule("attn-dp-or-replicas", "attn_dp_size > 1 and dp_size > 1", Enforced.ERROR, Span(V0_5_22)),
    Rule("attn-cp-needs-release", "no --attn-cp-size before 0.5.9", Enforced.FLAG, Span(V0_5_3, V0_5_9)),
    Rule("moe-dp-needs-release", "no --moe-dp-size before 0.5.9", Enforced.FLAG, Span(V0_5_3, V0_5_9)),
    Rule(
        "attn-cp-divides-tp",
        "tp_size % attn_cp_size == 0 and tp_size % (dp_size * attn_cp_size) == 0",
        Enforced.ASSERT,
        Span(V0_5_9, V0_5_22),
    ),
    Rule(
        "attn-cp-divides-tp",
        "tp_size % attn_cp_size == 0 and tp_size % (attn_dp_size * attn_cp_size) == 0",
        Enforced.ASSERT,
        Span(V0_5_22),
    ),
    Rule("moe-dp-divides-tp", "tp_size % moe_dp_size == 0", Enforced.ASSERT, Span(V0_5_9)),
    Rule(
        "moe-dp-with-ep",
        "ep_size * moe_dp_size <= tp_size, and == tp_size if ep_size > 1",
        Enforced.ASSERT,
        Span(V0_5_9),
    ),
    Rule("moe-dp-without-pp", "moe_dp_size > 1 needs pp_size == 1", Enforced.ASSERT, Span(V0_5_9)),
    Rule("attn-cp-is-moe-dp", "attn_cp_size != moe_dp_size needs moe_dp_size == 1", Enforced.ASSERT, Span(V0_5_11)),
    Rule("ep-divides-tp", "tp_size % ep_size == 0", Enforced.NOTHING),
    Rule("pp-and-nodes", "one of pp_size and nnodes divides the other", Enforced.NOTHING),
    Rule("gpus-per-host", "the GPU ids of a node exist on it", Enforced.RUN_TIME),
    Rule("gpu-ids-distinct", "every rank of a node has a GPU of its own", Enforced.NOTHING),
    Rule("heads-divide", "num_attention_heads % attn_tp_size == 0", Enforced.ASSERT),
    Rule(
        "kv-heads-divide",
        "num_key_value_heads % attn_tp_size == 0, or attn_tp_size % num_key_value_heads == 0",
        Enforced.ASSERT,
    ),
    Rule("intermediate-divides", "intermediate_size % tp_size == 0", Enforced.ASSERT),
    Rule("experts-divide", "(num_experts + ep_num_redundant_experts) % ep_size == 0", Enforced.ASSERT),
    Rule("layers-for-stages", "num_hidden_layers >= pp_size", Enforced.NOTHING),
    Rule("served-name", "served_model_name cannot contain a colon", Enforced.ASSERT, Span(V0_5_5_POST1)),
    Rule("chunk-is-pages", "chunked_prefill_size % page_size == 0", Enforced.ASSERT),
    Rule("moe-dense-tp", "moe_dense_tp_size is 1 or not given", Enforced.ASSERT, Span(V0_5_3, V0_5_13)),
    Rule("moe-dense-tp", "moe_dense_tp_size is 1, tp_size or not given", Enforced.ASSERT, Span(V0_5_13)),
    # Two instances against each other.
    Rule(
        "pair-tp-divides",
        "the larger of tp_size and disaggregation_decode_tp is a multiple of the smaller",
        Enforced.ASSERT,
        Span(V0_5_3, V0_5_10),
    ),
    Rule(
        "pair-attn-tp-divides",
        "the larger attn_tp_size of prefill and decode is a multiple of the smaller",
        Enforced.NOTHING,
    ),
    Rule("pair-pp", PAIR_PP, Enforced.NOTHING, Span(V0_5_3, V0_5_6_POST1)),
    Rule("pair-pp", PAIR_PP, Enforced.RUN_TIME, Span(V0_5_6_POST1)),
    Rule("pair-decode-cp", "decode attn_cp_size == 1", Enforced.RUN_TIME, Span(V0_5_10)),
    Rule("pair-page-size", PAIR_PAGE, Enforced.NOTHING, Span(V0_5_3, PAGE_SIZES_COMPARED.since)),
    Rule("pair-page-size", PAIR_PAGE, Enforced.RUN_TIME, PAGE_SIZES_COMPARED),
)

# SGLang's own warning, once per process, when the attention widths differ and the model is not MLA.
HETEROGENEOUS_TP = "Performance is NOT guaranteed when using different TP sizes for non-MLA models."
STAGING_ENV = "SGLANG_DISAGG_STAGING_BUFFER"
STAGING_SPAN = Span(V0_5_10)
ALL_CP_RANKS_ENV = "SGLANG_DISAGGREGATION_ALL_CP_RANKS_TRANSFER"


def rule(code: str, version: Version) -> Rule | None:
    """The row of this rule for this release; None when the release has no such rule."""
    for row in RULES:
        if row.code == code and row.span.holds(version):
            return row
    return None
