"""The staging buffer (0.5.13+, SGLANG_DISAGG_STAGING_BUFFER): heads are resliced through it when TP widths differ."""

from __future__ import annotations

from pdctl.engines.row import Level, Row, Speaker
from pdctl.engines.sign import Phase
from pdctl.engines.versions import V0_5_10, V0_5_11, V0_5_12, V0_5_17, V0_5_18, V0_5_23, Span

_ROOM = "1707339780048244443"

# Not in the sets we recorded.
ROWS = (
    Row(
        "staging-unaligned", Speaker.SGLANG, Level.ERROR, "decode", b"[STAGING] decode prefix length ",
        r"\[STAGING\] decode prefix length (?P<tokens>\d+) is not page-aligned \(page_size=(?P<page_size>\d+)\); "
        r"failing room=(?P<room>\d+)",
        f"[2026-11-21 02:06:50] [STAGING] decode prefix length 5 is not page-aligned (page_size=16); failing "
        f"room={_ROOM} (staging scatter offsets would be wrong).",
        Span(V0_5_18), Phase.FAILED, cause="PD302",
    ),
    Row(
        "staging-incomplete", Speaker.SGLANG, Level.ERROR, "decode", b" after all-ranks Success",
        r"\[STAGING\] room=(?P<room>\d+) not complete (?P<seconds>[\d.]+)s after all-ranks Success",
        f"[2026-11-21 02:06:50] [STAGING] room={_ROOM} not complete 30s after all-ranks Success (a scatter never "
        "arrived); failing the request.",
        Span(V0_5_18), Phase.FAILED, cause="PD708",
    ),
    Row(
        "staging-alloc-failed", Speaker.SGLANG, Level.ERROR, "decode", b"[STAGING_REQ] alloc failed room=",
        r"\[STAGING_REQ\] alloc failed room=(?P<room>\d+) chunk=(?P<chunk>\d+) \(need (?P<bytes>\d+) bytes",
        f"[2026-11-21 02:06:50] [STAGING_REQ] alloc failed room={_ROOM} chunk=1 (need 1048576 bytes, buffer "
        "total=524288 bytes). Increase SGLANG_DISAGG_STAGING_POOL_SIZE_MB.",
        Span(V0_5_10), Phase.FAILED, cause="PD501",
    ),
    Row(
        "staging-request-dropped", Speaker.SGLANG, Level.WARNING, "decode", b"STAGING_REQ ",
        r"STAGING_REQ (?:dropped: no receiver for|ignored: allocator is None|received for unregistered) "
        r"room=(?P<room>\d+)",
        f"[2026-11-21 02:06:50] STAGING_REQ dropped: no receiver for room={_ROOM} chunk=1 session=127.0.0.1:15794",
        Span(V0_5_10), cause="PD708",
    ),
    Row(
        "staging-reply-unknown", Speaker.SGLANG, Level.WARNING, "prefill", b"STAGING_RSP RECV but tinfo=None",
        r"STAGING_RSP RECV but tinfo=None room=(?P<room>\d+) chunk=(?P<chunk>-?\d+) session=(?P<session>\S+)",
        f"[2026-11-21 02:06:50] STAGING_RSP RECV but tinfo=None room={_ROOM} chunk=1 session=127.0.0.1:15794",
        Span(V0_5_10), cause="PD708",
    ),
    Row(
        "staging-chunk-unknown", Speaker.SGLANG, Level.WARNING, "decode", b"Staging chunk arrived for unregistered",
        r"Staging chunk arrived for unregistered room=(?P<room>\d+) chunk=(?P<chunk>-?\d+), skipping",
        f"[2026-11-21 02:06:50] Staging chunk arrived for unregistered room={_ROOM} chunk=1, skipping",
        Span(V0_5_12), cause="PD708",
    ),
    Row(
        "staging-released", Speaker.SGLANG, Level.WARNING, "decode", b"[STAGING] releasing unscattered staging",
        r"\[STAGING\] releasing unscattered staging allocation room=(?P<room>\d+) chunk=(?P<chunk>\S+)",
        f"[2026-11-21 02:06:50] [STAGING] releasing unscattered staging allocation room={_ROOM} chunk=1 alloc_id=4",
        Span(V0_5_17), echo=True,
    ),
    Row(
        "staging-scatter-unregistered", Speaker.SGLANG, Level.WARNING, "decode", b"[STAGING] submit_",
        r"\[STAGING\] submit_(?:chunk_scatter|last_scatter_async): room=(?P<room>\d+) not registered",
        f"[2026-11-21 02:06:50] [STAGING] submit_chunk_scatter: room={_ROOM} not registered, chunk_idx=1. This should "
        "not happen if register_decode_req is called at kv_receiver.init() time.",
        Span(V0_5_10), cause="PD708",
    ),
    Row(
        "staging-scatter-failed", Speaker.SGLANG, Level.WARNING, "decode", b"submit_chunk_scatter failed room=",
        r"submit_chunk_scatter failed room=(?P<room>\d+) chunk_idx=(?P<chunk>\S+) tp_rank=(?P<rank>\S+)",
        f"[2026-11-21 02:06:50] submit_chunk_scatter failed room={_ROOM} chunk_idx=1 tp_rank=0", Span(V0_5_10),
        cause="PD708",
    ),
    Row(
        "staging-falls-back", Speaker.SGLANG, Level.WARNING, "prefill", b"Falling back to per-token slice path",
        r"\[Staging\]\[tp(?P<rank>\d+)\] Falling back to per-token slice path \(room=(?P<room>\d+)\)",
        f"[2026-11-21 02:06:50] [Staging][tp0] Falling back to per-token slice path (room={_ROOM})",
        Span(V0_5_10, V0_5_17), backend="mooncake", cause="PD412",
    ),
    Row(
        "staging-ring-small", Speaker.SGLANG, Level.WARNING, "prefill", b"the staging ring; failing affected requests.",
        r"\[Staging\] a chunk (?:does not fit|exceeds) the staging ring; failing affected requests\.",
        "[2026-11-21 02:06:50] [Staging] a chunk exceeds the staging ring; failing affected requests. Increase "
        "SGLANG_DISAGG_STAGING_POOL_SIZE_MB or reduce chunked_prefill_size.",
        Span(V0_5_17), backend="mooncake", cause="PD501",
    ),
    Row(
        "staging-buffer-small", Speaker.SGLANG, Level.WARNING, "prefill", b" staging too small",
        r"(?:Decode|Prefill) staging too small(?:: need| for) (?P<bytes>\d+) bytes",
        "[2026-11-21 02:06:50] Decode staging too small: need 1048576 bytes, have 524288, falling back", Span(V0_5_10),
        cause="PD412",
    ),
    Row(
        "staging-chunk-ready-unhandled", Speaker.SGLANG, Level.WARNING, "decode", b"CHUNK_READY for room ",
        r"CHUNK_READY for room (?P<room>\d+) without a staging handler",
        f"[2026-11-21 02:06:50] CHUNK_READY for room {_ROOM} without a staging handler", Span(V0_5_23), cause="PD708",
    ),
    Row(
        "staging-device-mismatch", Speaker.SGLANG, Level.WARNING, "", b"Device index mismatch: device=",
        r"Device index mismatch: device=(?P<device>\S+) ",
        "[2026-11-21 02:06:33] Device index mismatch: device=cuda:1 (index=1) but gpu_id=0. Using device.index=1.",
        Span(V0_5_23),
    ),
    Row(
        "staging-pool-ignored", Speaker.SGLANG, Level.WARNING, "", b"Custom memory pools are a CUDA construct",
        r"Custom memory pools are a CUDA construct and are ignored on (?P<device>[^.]+)\.",
        "[2026-11-21 02:06:33] Custom memory pools are a CUDA construct and are ignored on xpu. Using the default "
        "allocator instead; memory may not be RDMA-compatible.",
        Span(V0_5_23),
    ),
    Row(
        "staging-allocated", Speaker.SGLANG, Level.INFO, "", b"Staging",
        r"Staging(?:Buffer allocated|Allocator \(ring\+overcommit\)): (?P<megabytes>[\d.]+) MB on (?P<device>[^,]+), ",
        "[2026-11-21 02:06:33] StagingBuffer allocated: 64.0 MB on cuda:0, method=cudaMalloc, ptr=0x7f0c40000000",
        Span(V0_5_10),
    ),
    Row(
        "staging-kind", Speaker.SGLANG, Level.INFO, "", b"Staging buffer using ",
        r"Staging buffer using (?P<kind>.*)",
        "[2026-11-21 02:06:33] Staging buffer using cudaMalloc (no custom mem pool). This works for all GPU "
        "architectures.",
        Span(V0_5_11),
    ),
)  # fmt: skip
