"""The staging buffer, and the transfer libraries' own lines: mooncake (glog), NIXL, UCX, mori (0.5.13+) and ascend.

Heads are resliced through the staging buffer (0.5.13+, SGLANG_DISAGG_STAGING_BUFFER) if the TP widths differ.

Of several errors the first is the cause, and the rest echo it.
"""

from __future__ import annotations

from pdctl.engines.base import Level, Phase, Row, Speaker
from pdctl.engines.versions import (
    V0_5_3,
    V0_5_9,
    V0_5_10,
    V0_5_11,
    V0_5_12,
    V0_5_14,
    V0_5_17,
    V0_5_18,
    V0_5_19,
    V0_5_20,
    V0_5_22,
    V0_5_23,
    Span,
)

DEBUG = "--log-level debug"
_ROOM = "1707339780048244443"

# Not in the logs we recorded.
_STAGING = (
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


# Not in the logs we recorded.
_LIBRARIES = (
    Row(
        "mori-transfer-failed", Speaker.SGLANG, Level.ERROR, "prefill", b"Mori ",
        r"Mori (?:(?:KV )?transfer submission|transfer drainer|transfer worker|transfer worker failover) "
        r"failed for (?:room |bootstrap_room=)(?P<room>\d+)",
        f"[2026-11-21 02:06:50] Mori transfer worker failed for room {_ROOM}",
        Span(V0_5_12), Phase.FAILED, "mori", "PD409",
    ),
    Row(
        "mori-status-not-synced", Speaker.SGLANG, Level.ERROR, "prefill", b" to decode endpoint ",
        r"Failed to sync status (?P<status>\S+) to decode endpoint (?P<addr>\S+) for room (?P<room>\d+)",
        f"[2026-11-21 02:06:50] Failed to sync status 4 to decode endpoint 127.0.0.1:41011 for room {_ROOM}",
        Span(V0_5_9, V0_5_20), Phase.FAILED, "mori", "PD704",
    ),
    Row(
        "mori-status-unknown", Speaker.SGLANG, Level.WARNING, "decode", b"Unknown status code ",
        r"Unknown status code (?P<status>\S+) received for room (?P<room>\d+)",
        f"[2026-11-21 02:06:50] Unknown status code 9 received for room {_ROOM}",
        Span(V0_5_9, V0_5_20), backend="mori", cause="PD310",
    ),
    Row(
        "mori-worker-failed", Speaker.SGLANG, Level.ERROR, "", b" worker failed",
        r"(?P<worker>Bootstrap|Decode status) worker failed",
        "[2026-11-21 02:06:50] Bootstrap worker failed", Span(V0_5_9), backend="mori", cause="PD710",
    ),
    Row(
        "mori-peer-failed", Speaker.SGLANG, Level.ERROR, "prefill", b"Failed to ",
        r"Failed to (?P<what>parse transfer info message|register remote peer)",
        "[2026-11-21 02:06:50] Failed to register remote peer", Span(V0_5_9), backend="mori", cause="PD409",
    ),
    Row(
        "mori-state-lengths", Speaker.SGLANG, Level.WARNING, "prefill", b"State index length mismatch for ",
        r"State index length mismatch for (?P<kind>[^:]+): src=(?P<ours>\d+) dst=(?P<theirs>\d+)",
        "[2026-11-21 02:06:50] State index length mismatch for MAMBA: src=4 dst=3; truncating to common prefix=3",
        Span(V0_5_12), backend="mori", cause="PD306",
    ),
    Row(
        "mori-incremental", Speaker.SGLANG, Level.INFO, "prefill", b"MoriKV incremental: room=",
        r"MoriKV incremental: room=(?P<room>\d+) prefix_len=(?P<tokens>\S+) peers=(?P<peers>\S+)",
        f"[2026-11-21 02:06:50] MoriKV incremental: room={_ROOM} prefix_len=4 peers=1",
        Span(V0_5_14), Phase.HANDSHAKE, "mori",
    ),
    Row(
        "mori-bootstrapped", Speaker.SGLANG, Level.DEBUG, "prefill", b" got enough transfer info (",
        r"Bootstrap room (?P<room>\d+) got enough transfer info \((?P<infos>\d+)\)",
        f"[2026-11-21 02:06:50] Bootstrap room {_ROOM} got enough transfer info (1)",
        Span(V0_5_9), Phase.HANDSHAKE, "mori", needs=DEBUG,
    ),
    Row(
        "mori-info-stale", Speaker.SGLANG, Level.DEBUG, "prefill", b"Ignoring stale transfer info for room ",
        r"Ignoring stale transfer info for room (?P<room>\d+) \(status=(?P<status>[^)]*)\)",
        f"[2026-11-21 02:06:50] Ignoring stale transfer info for room {_ROOM} (status=0)",
        Span(V0_5_12), backend="mori", needs=DEBUG,
    ),
    Row(
        "mori-aborted", Speaker.SGLANG, Level.DEBUG, "prefill", b" marked Failed via ABORT from decode",
        r"Room (?P<room>\d+) marked Failed via ABORT from decode",
        f"[2026-11-21 02:06:50] Room {_ROOM} marked Failed via ABORT from decode",
        Span(V0_5_19), Phase.ABORTED, "mori", echo=True, needs=DEBUG,
    ),
    Row(
        "mori-abort-ignored", Speaker.SGLANG, Level.DEBUG, "prefill", b" is already complete or not tracked",
        r"ABORT for room (?P<room>\d+) is already complete or not tracked",
        f"[2026-11-21 02:06:50] ABORT for room {_ROOM} is already complete or not tracked",
        Span(V0_5_22), backend="mori", echo=True, needs=DEBUG,
    ),
    Row(
        "ascend-not-started", Speaker.SGLANG, Level.ERROR, "", b"Ascend Transfer Engine initialization failed.",
        r"Ascend Transfer Engine initialization failed\.",
        "[2026-11-21 02:06:33] Ascend Transfer Engine initialization failed.", backend="ascend", cause="PD409",
    ),
    Row(
        "ascend-mode", Speaker.SGLANG, Level.ERROR, "", b"Unsupported DisaggregationMode: ",
        r"Unsupported DisaggregationMode: (?P<mode>\S+)",
        "[2026-11-21 02:06:33] Unsupported DisaggregationMode: null", backend="ascend",
    ),
    Row(
        "ascend-protocol", Speaker.SGLANG, Level.WARNING, "", b"using default protocol",
        r"Invalid or no transfer protocol specified, using default protocol\.",
        "[2026-11-21 02:06:33] Invalid or no transfer protocol specified, using default protocol.",
        Span(V0_5_3, V0_5_20), backend="ascend",
    ),
    Row(
        "ascend-protocol-unsupported", Speaker.SGLANG, Level.WARNING, "", b"is not supported by the installed memfab",
        r"Transfer protocol (?P<protocol>\S+) is not supported by the installed memfabric_hybrid",
        "[2026-11-21 02:06:33] Transfer protocol device_rdma is not supported by the installed memfabric_hybrid, "
        "falling back to sdma.",
        Span(V0_5_20), backend="ascend",
    ),
    Row(
        "ascend-missing", Speaker.SGLANG, Level.WARNING, "", b"Please install m",
        r"Please install (?P<package>memfabric_hybrid|mf_adapter), for details",
        "[2026-11-21 02:06:33] Please install memfabric_hybrid, for details, see "
        "docs/backend/pd_disaggregation.md",
        backend="ascend", cause="PD408",
    ),
    Row(
        "ascend-memory", Speaker.SGLANG, Level.DEBUG, "", b"Ascend memory registration for ptr ",
        r"Ascend memory registration for ptr (?P<pointers>.*) failed\.",
        "[2026-11-21 02:06:33] Ascend memory registration for ptr [1, 2] failed.", backend="ascend", needs=DEBUG,
    ),
)  # fmt: skip

ROWS = (*_STAGING, *_LIBRARIES)


# Not in the logs we recorded (no RDMA device there); the texts are from the libraries' sources and users' reports.
COMPLAINTS = (
    Row(
        "mooncake-register-refused", Speaker.SGLANG, Level.ERROR, "", b"Failed to register memory ",
        r"Failed to register memory (?P<pointer>\S+): (?P<reason>.*)",
        "E1121 02:01:19.957741 25262 rdma_context.cpp:187] Failed to register memory 0x7f0c40000000: Bad address [14]",
        backend="mooncake", cause="PD405",
    ),
    Row(
        "mooncake-dma-buf-needed", Speaker.SGLANG, Level.ERROR, "", b"DMA BUF supported required for GPU RDMA",
        r"DMA BUF supported required for GPU RDMA",
        "E1121 02:01:19.957741 25262 rdma_context.cpp:201] DMA BUF supported required for GPU RDMA without "
        "nvidia-peermem",
        backend="mooncake", cause="PD405",
    ),
    Row(
        "mooncake-qp-refused", Speaker.SGLANG, Level.ERROR, "", b"Failed to modify QP to RTR",
        r"Failed to modify QP to RTR(?P<reason>.*)",
        "E1121 02:01:29.957741 25262 rdma_endpoint.cpp:411] Failed to modify QP to RTR, check mtu, gid, peer lid, peer "
        "qp num: Connection timed out [110]",
        backend="mooncake", cause="PD403",
    ),
    Row(
        "mooncake-gid-null", Speaker.SGLANG, Level.ERROR, "", b"GID is NULL, please check your GID index",
        r"GID is NULL, please check your GID index",
        "E1121 02:01:19.957741 25262 rdma_context.cpp:402] GID is NULL, please check your GID index by specifying "
        "MC_GID_INDEX",
        backend="mooncake", cause="PD403",
    ),
    Row(
        "mooncake-devices-differ", Speaker.SGLANG, Level.ERROR, "", b"received packet mismatch",
        r"received packet mismatch(?P<reason>.*)",
        "E1121 02:01:29.957741 25262 rdma_endpoint.cpp:233] received packet mismatch, local.local_nic_path: "
        "127.0.0.1:15794@mlx5_0, local.peer_nic_path: , peer.local_nic_path: 127.0.0.1:15795@mlx5_4",
        backend="mooncake", cause="PD414",
    ),
    Row(
        "mooncake-endpoint-inactive", Speaker.SGLANG, Level.ERROR, "", b"Cannot make connection for endpoint",
        r"Cannot make connection for endpoint: (?P<endpoint>[^,]+), mark it inactive",
        "E1121 02:01:29.957741 25262 worker_pool.cpp:311] Cannot make connection for endpoint: 127.0.0.1:15795@mlx5_4, "
        "mark it inactive",
        backend="mooncake", cause="PD409",
    ),
    Row(
        "mooncake-sync-timeout", Speaker.SGLANG, Level.ERROR, "", b"Sync batch data transfer timeout after ",
        r"Sync batch data transfer timeout after (?P<nanoseconds>\d+)",
        "E1121 02:01:59.957741 25262 transfer_engine_py.cpp:512] Sync batch data transfer timeout after "
        "30000000000ns",
        backend="mooncake", cause="PD412",
    ),
    Row(
        "mooncake-tcp-write", Speaker.SGLANG, Level.ERROR, "", b"Session::writeBody failed",
        r"Session::writeBody failed\. Error: (?P<reason>.*)",
        "E1121 02:01:29.957741 25262 tcp_transport.cpp:141] Session::writeBody failed. Error: Bad address (value: 14)",
        backend="mooncake", cause="PD405",
    ),
    Row(
        "mooncake-nvlink-address", Speaker.SGLANG, Level.ERROR, "", b"not found!",
        r"Requested address (?P<pointer>\S+) to \S+ not found!",
        "E1121 02:01:29.957741 25262 nvlink_transport.cpp:402] Requested address 0x7f0c40000000 to 0x7f0c50000000 not "
        "found!",
        backend="mooncake", cause="PD413",
    ),
    Row(
        "mooncake-no-hca", Speaker.SGLANG, Level.ERROR, "", b"Found 0 HCAs",
        r"Found 0 HCAs",
        "I1121 02:01:19.957741 25262 topology.cpp:188] Found 0 HCAs",
        backend="mooncake", cause="PD401",
    ),
    Row(
        "mooncake-tcp-chosen", Speaker.SGLANG, Level.ERROR, "", b"installTransport, type=tcp",
        r"installTransport, type=tcp",
        "I1121 02:01:19.957741 25262 transfer_engine.cpp:91] installTransport, type=tcp",
        backend="mooncake", cause="PD406",
    ),
    Row(
        "ucx-backend-error", Speaker.SGLANG, Level.ERROR, "", b"createBackend: backend 'UCX' encountered error",
        r"createBackend: backend 'UCX' encountered error(?P<reason>.*)",
        "createBackend: backend 'UCX' encountered error NIXL_ERR_BACKEND",
        backend="nixl", cause="PD407",
    ),
    Row(
        "ucx-no-cuda", Speaker.SGLANG, Level.ERROR, "", b"UCX CUDA support was not found!",
        r"UCX CUDA support was not found!",
        "UCX CUDA support was not found! ... VRAM memory is detected as host",
        backend="nixl", cause="PD407",
    ),
    Row(
        "nixl-exception", Speaker.SGLANG, Level.ERROR, "", b"NIXL_ERR_",
        r"nixl\w*\.(?P<error>[\w.]+): (?P<reason>NIXL_ERR_.*)",
        "nixl._bindings.nixlRemoteDisconnectError: NIXL_ERR_REMOTE_DISCONNECT",
        backend="nixl", cause="PD409",
    ),
    Row(
        "nixl-missing", Speaker.SGLANG, Level.ERROR, "", b"ImportError: Please install NIXL by following",
        r"ImportError: Please install NIXL by following",
        "ImportError: Please install NIXL by following the instructions at "
        "https://github.com/ai-dynamo/nixl/blob/main/README.md to run SGLang with NixlTransferEngine.",
        backend="nixl", cause="PD408",
    ),
)  # fmt: skip
