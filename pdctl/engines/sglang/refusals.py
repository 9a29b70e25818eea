"""Combinations of flags that a release refuses after the model has loaded: it asserts or raises."""

from __future__ import annotations

from typing import NamedTuple

from pdctl.engines.versions import (
    V0_5_3,
    V0_5_3_POST2,
    V0_5_5_POST3,
    V0_5_7,
    V0_5_8,
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
)


class Refusal(NamedTuple):
    """All of `when` hold on a server of `role` ("" either): it asserts or raises.

    Terms: `flag` is given, `not flag` is not; `flag = a`, `flag != a b` (given, and neither), `flag > 1`; `env NAME` is
    on. `backend` is the transfer backend, `attention-tp` the width that follows.
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
