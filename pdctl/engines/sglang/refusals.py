"""What SGLang refuses or fails to refuse, release by release: parallel shapes, and incompatible flags."""

from __future__ import annotations

from enum import Enum

from pdctl.engines.sglang.behaviour import PAGE_SIZES_COMPARED
from pdctl.engines.versions import (
    V0_5_3,
    V0_5_3_POST2,
    V0_5_5_POST1,
    V0_5_5_POST3,
    V0_5_6_POST1,
    V0_5_7,
    V0_5_8,
    V0_5_9,
    V0_5_10,
    V0_5_11,
    V0_5_13,
    V0_5_14,
    V0_5_15,
    V0_5_16,
    V0_5_17,
    V0_5_20,
    V0_5_21,
    V0_5_22,
    V0_5_23,
    Span,
    Version,
)
from pdctl.quick_definitions import NamedTuple


class Enforced(str, Enum):
    """How a release answers a broken rule."""

    ASSERT = "assert"
    ERROR = "ValueError"
    FLAG = "flag"  # argparse does not know the flag
    RUN_TIME = "run time"  # accepted at start-up; an assertion ends the scheduler on the first request
    NOTHING = "nothing"  # accepted; then ranks are missing or duplicated, or the KV is wrong


class Rule(NamedTuple):
    """`terms`: the rule as SGLang states it."""

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
    # Rules between two instances.
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

# SGLang's own warning, once per process, if the attention widths differ and the model is not MLA.
HETEROGENEOUS_TP = "Performance is NOT guaranteed when using different TP sizes for non-MLA models."
STAGING_ENV = "SGLANG_DISAGG_STAGING_BUFFER"
STAGING_SPAN = Span(V0_5_10)
ALL_CP_RANKS_ENV = "SGLANG_DISAGGREGATION_ALL_CP_RANKS_TRANSFER"


def rule(code: str, version: Version) -> Rule | None:
    """The row of this rule for this release; None if the release has no such rule."""
    for row in RULES:
        if row.code == code and row.span.holds(version):
            return row
    return None


class Refusal(NamedTuple):
    """A server of `role` ("": either) for which all of `when` are true asserts or raises.

    Terms: `flag`: it is given; `not flag`: it is not; `flag = a`; `flag != a b`: given, and neither; `flag > 1`;
    `env NAME`: it is on. `backend` is the transfer backend, `attention-tp` the resulting width.
    """

    when: tuple[str, ...]
    role: str
    span: Span
    fix: str


RADIX = "disaggregation-decode-enable-radix-cache"
COMPLETE = "disaggregation-decode-allocation-policy = prefill_complete"
SWITCH = "enable-pd-role-switch"
BUFFER = "disaggregation-decode-host-receive-threshold != 1 1.0"
TIERED = "enable-hierarchical-cache"
LOCAL_CONTROL = "enable-dp-attention-local-control-broadcast"
SINCE_10, SINCE_11, SINCE_13 = Span(V0_5_10), Span(V0_5_11), Span(V0_5_13)
SINCE_21, SINCE_22, SINCE_23 = Span(V0_5_21), Span(V0_5_22), Span(V0_5_23)
DCP = Span(V0_5_17, V0_5_21)

REFUSALS: tuple[Refusal, ...] = (
    Refusal(("backend = fake",), "prefill", SINCE_10, "use another transfer backend on prefill"),
    Refusal((RADIX, "enable-hisparse"), "decode", SINCE_11, f"drop --{RADIX}"),
    Refusal((RADIX, "backend = fake"), "decode", SINCE_11, f"drop --{RADIX}"),
    Refusal((RADIX, "backend != nixl mooncake"), "decode", Span(V0_5_11, V0_5_14), f"drop --{RADIX}"),
    Refusal((RADIX, "speculative-algorithm"), "decode", Span(V0_5_11, V0_5_21), f"drop --{RADIX}"),
    Refusal(
        (RADIX, "speculative-algorithm != EAGLE EAGLE3 NEXTN DSPARK"), "decode", SINCE_21, f"drop --{RADIX}"
    ),
    Refusal(
        ("env SGLANG_DISAGG_STAGING_BUFFER", "backend != nixl mooncake mooncake_tcp"), "", SINCE_10,
        "unset SGLANG_DISAGG_STAGING_BUFFER",
    ),
    Refusal((SWITCH, "ep-size > 1"), "", SINCE_21, f"drop --{SWITCH}"),
    Refusal((SWITCH, "moe-a2a-backend != none"), "", SINCE_21, f"drop --{SWITCH}"),
    Refusal((SWITCH, "pp-size > 1"), "", SINCE_21, f"drop --{SWITCH}"),
    Refusal((SWITCH, "dcp-size > 1"), "", SINCE_21, f"drop --{SWITCH}"),
    Refusal((SWITCH, "speculative-algorithm"), "", SINCE_21, f"drop --{SWITCH}"),
    Refusal((SWITCH, LOCAL_CONTROL, "attn-dp-size > 1"), "", SINCE_23, f"drop --{SWITCH}"),
    Refusal((BUFFER, SWITCH), "", SINCE_21, f"drop --{SWITCH}"),
    Refusal((BUFFER, "enable-hisparse"), "", SINCE_21, "drop --enable-hisparse"),
    Refusal(
        (BUFFER, "disaggregation-decode-retraction-backup = cpu_tensor"), "", SINCE_21,
        "set --disaggregation-decode-retraction-backup host_pool",
    ),
    Refusal((COMPLETE, "backend != mooncake mooncake_tcp"), "", SINCE_22, "set the transfer backend to mooncake"),
    Refusal((COMPLETE, "pp-size > 1"), "", SINCE_22, "set --pp-size 1"),
    Refusal((COMPLETE, "attn-cp-size > 1"), "", SINCE_22, "set --attn-cp-size 1"),
    Refusal((COMPLETE, "dcp-size > 1"), "", SINCE_22, "set --dcp-size 1"),
    Refusal((COMPLETE, "language-only"), "", SINCE_22, "drop --language-only"),
    Refusal((COMPLETE, BUFFER), "", SINCE_22, "drop --disaggregation-decode-host-receive-threshold"),
    Refusal((COMPLETE, TIERED), "decode", SINCE_22, f"drop --{TIERED} on decode"),
    Refusal(
        (COMPLETE, TIERED, "not hicache-write-policy"), "prefill", SINCE_22, "set --hicache-write-policy write_back"
    ),
    Refusal(
        (COMPLETE, TIERED, "hicache-write-policy != write_back"), "prefill", SINCE_22,
        "set --hicache-write-policy write_back",
    ),
    Refusal((COMPLETE, TIERED, "hicache-storage-backend"), "prefill", SINCE_22, "drop --hicache-storage-backend"),
    Refusal((COMPLETE, "attention-tp > 1"), "", SINCE_22, "make --attn-dp-size equal to --tp-size"),
    Refusal((COMPLETE, "enable-hisparse"), "", SINCE_22, "drop --enable-hisparse"),
    Refusal((COMPLETE, SWITCH), "", SINCE_22, f"drop --{SWITCH}"),
    Refusal((COMPLETE, RADIX), "decode", SINCE_22, f"drop --{RADIX}"),
    Refusal((COMPLETE, "env SGLANG_DISAGG_STAGING_BUFFER"), "", SINCE_22, "unset SGLANG_DISAGG_STAGING_BUFFER"),
    Refusal((COMPLETE, "env SGLANG_RUST_SERVER"), "", SINCE_22, "unset SGLANG_RUST_SERVER"),
    Refusal(
        ("dcp-size > 1", "backend != nixl mooncake mooncake_tcp"), "decode", Span(V0_5_17, V0_5_22),
        "set --dcp-size 1 on decode",
    ),
    Refusal(("dcp-size > 1", RADIX), "decode", DCP, f"drop --{RADIX}"),
    Refusal(("dcp-size > 1", TIERED), "decode", DCP, f"drop --{TIERED} on decode"),
    Refusal(("pp-size > 1", "min-free-slots-delay"), "", Span(V0_5_15), "drop --min-free-slots-delay"),
    Refusal(("pp-size > 1", "speculative-algorithm"), "", Span(V0_5_3, V0_5_21), "set --pp-size 1"),
    Refusal(("pp-size > 1", "speculative-algorithm"), "decode", SINCE_21, "set --pp-size 1"),
    Refusal(("pp-size > 1", "speculative-algorithm != EAGLE DSPARK"), "prefill", SINCE_21, "set --pp-size 1"),
    Refusal(("pp-size > 1", "enable-mixed-chunk"), "", Span(V0_5_3, V0_5_11), "drop --enable-mixed-chunk"),
    Refusal(("pp-size > 1", "not disable-overlap-schedule"), "", Span(), "add --disable-overlap-schedule"),
    Refusal(
        ("enable-nsa-prefill-context-parallel",), "decode", Span(V0_5_8, V0_5_13),
        "drop --enable-nsa-prefill-context-parallel on decode",
    ),
    Refusal(
        ("enable-dsa-prefill-context-parallel",), "decode", Span(V0_5_13, V0_5_14),
        "drop --enable-dsa-prefill-context-parallel on decode",
    ),
    Refusal(("enable-prefill-cp",), "decode", Span(V0_5_14), "drop --enable-prefill-cp on decode"),
    Refusal(("disaggregation-decode-tp",), "decode", Span(V0_5_3, V0_5_10), "drop --disaggregation-decode-tp"),
    Refusal(("disaggregation-decode-dp",), "decode", Span(V0_5_3, V0_5_10), "drop --disaggregation-decode-dp"),
    Refusal(
        ("dp-size > 1", "not prefill-round-robin-balance"), "decode", Span(V0_5_3, V0_5_8),
        "add --prefill-round-robin-balance",
    ),
    Refusal(("enable-pdmux",), "", Span(V0_5_3_POST2), "drop --enable-pdmux"),
    Refusal(("encoder-only",), "", Span(V0_5_7), "drop --encoder-only"),
    Refusal(
        ("enable-priority-scheduling", "schedule-policy != fcfs lof"), "", Span(), "set --schedule-policy fcfs or lof"
    ),
    Refusal(
        ("retraction-policy = priority", "not enable-priority-scheduling"), "", Span(V0_5_16),
        "add --enable-priority-scheduling",
    ),
    Refusal(
        ("export-metrics-to-file", "not export-metrics-to-file-dir"), "", Span(V0_5_5_POST3),
        "add --export-metrics-to-file-dir",
    ),
    Refusal(("enable-two-batch-overlap", "not moe-a2a-backend"), "", Span(V0_5_7, V0_5_15), "add --moe-a2a-backend"),
    Refusal(
        ("enable-two-batch-overlap", "moe-a2a-backend = none"), "", Span(V0_5_7, V0_5_15),
        "set another --moe-a2a-backend",
    ),
    Refusal(("disable-cuda-graph-padding", "enable-torch-compile"), "", SINCE_10, "drop one of the two"),
    Refusal(("kv-canary-sweep-interval > 0", "not kv-canary"), "", SINCE_13, "add --kv-canary log"),
    Refusal(("enable-watermark",), "", SINCE_22, "drop --enable-watermark"),
    Refusal(("enable-response-store",), "", Span(V0_5_20), "drop --enable-response-store"),
)  # fmt: skip
