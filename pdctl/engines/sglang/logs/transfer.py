"""The KV transfer in its backends: NIXL, mooncake, DCP packing (srt/disaggregation nixl, mooncake, common)."""

from __future__ import annotations

from pdctl.engines.base import Level, Phase, Row, Sign, Speaker
from pdctl.engines.versions import (
    V0_5_3,
    V0_5_5_POST1,
    V0_5_7,
    V0_5_9,
    V0_5_12,
    V0_5_14,
    V0_5_15,
    V0_5_16,
    V0_5_19,
    V0_5_20,
    V0_5_21,
    V0_5_22,
    V0_5_23,
    Span,
)

DEBUG = "--log-level debug"

ROWS = (
    Row(
        "transfer-worker-error", Speaker.SGLANG, Level.ERROR, "prefill", b"Unexpected transfer worker error for room ",
        r"Unexpected transfer worker error for room (?P<room>\d+)",
        "[2026-11-21 02:06:50] Unexpected transfer worker error for room 1707339780048244443",
        Span(V0_5_12), Phase.FAILED, "nixl", "PD409",
        proves=(Sign.HAS_REQUEST,),
    ),
    Row(
        "nixl-started", Speaker.SGLANG, Level.INFO, "", b"NIXL KVManager initialized with backend: ",
        r"NIXL KVManager initialized with backend: (?P<nixl_backend>\w+)",
        "[2026-11-21 02:06:33] NIXL KVManager initialized with backend: UCX", Span(V0_5_9), backend="nixl",
    ),
    Row(
        "nixl-state-components", Speaker.SGLANG, Level.INFO, "", b"NIXL prepared state transfer: components=",
        r"NIXL prepared state transfer: components=(?P<components>.*)",
        "[2026-11-21 02:06:33] NIXL prepared state transfer: components=[]", Span(V0_5_23), backend="nixl",
    ),
    Row(
        "nixl-aux-registered", Speaker.SGLANG, Level.DEBUG, "", b"Register aux tensors, len(aux_addrs)= ",
        r"Register aux tensors, len\(aux_addrs\)= (?P<buffers>\d+)",
        "[2026-11-21 02:06:33] Register aux tensors, len(aux_addrs)= 10", backend="nixl", needs=DEBUG,
    ),
    Row(
        "nixl-kv-registered", Speaker.SGLANG, Level.DEBUG, "", b"Register kv tensors, kind=",
        r"Register kv tensors, kind=(?P<kind>\w+), len\(kv_addr\)= (?P<buffers>\d+)",
        "[2026-11-21 02:06:33] Register kv tensors, kind=VRAM, len(kv_addr)= 4", Span(V0_5_15), backend="nixl",
        needs=DEBUG,
    ),
    Row(
        "nixl-kv-registered-old", Speaker.SGLANG, Level.DEBUG, "", b"Register kv tensors, len(kv_addr)= ",
        r"Register kv tensors, len\(kv_addr\)= (?P<buffers>\d+)",
        "[2026-11-21 01:20:07] Register kv tensors, len(kv_addr)= 4", Span(V0_5_3, V0_5_15), backend="nixl",
        needs=DEBUG,
    ),
    # NIXL's own Python lines and mooncake's glog lines, which have their own prefixes.
    Row(
        "nixl-agent", Speaker.SGLANG, Level.INFO, "", b"Initialized NIXL agent: ",
        r"Initialized NIXL agent: (?P<agent>\S+)",
        "2026-11-21 02:06:32 NIXL INFO    _api.py:281 Initialized NIXL agent: 85e1ba84-ec63-435a-be40-cb9d8f185c2e",
        backend="nixl",
        proves=(Sign.AGENT_NAMED,),
    ),
    Row(
        "nixl-plugin", Speaker.SGLANG, Level.INFO, "", b" was instantiated",
        r"Backend (?P<nixl_backend>\w+) was instantiated",
        "2026-11-21 02:06:33 NIXL INFO    _api.py:405 Backend UCX was instantiated", backend="nixl",
    ),
    Row(
        "mooncake-tcp-forced", Speaker.SGLANG, Level.INFO, "", b"MC_FORCE_TCP is set, using TCP transport only",
        r"MC_FORCE_TCP is set, using TCP transport only",
        "I1121 02:01:19.958954 25262 transfer_engine_impl.cpp:219] MC_FORCE_TCP is set, using TCP transport only",
        backend="mooncake",
    ),
    Row(
        "mooncake-handshake", Speaker.SGLANG, Level.INFO, "", b"Transfer Engine RPC using P2P handshake, listening on ",
        r"Transfer Engine RPC using P2P handshake, listening on (?P<addr>\S+)",
        "I1121 02:01:19.957590 25262 transfer_engine_impl.cpp:183] Transfer Engine RPC using P2P handshake, listening "
        "on 127.0.0.1:15794",
        backend="mooncake",
    ),
    Row(
        "mooncake-tcp-port", Speaker.SGLANG, Level.INFO, "", b"TcpTransport: listen on port ",
        r"TcpTransport: listen on port (?P<port>\d+)",
        "I1121 02:01:19.957767 25262 tcp_transport.cpp:391] TcpTransport: listen on port 15021", backend="mooncake",
    ),
    # Written at every start of a mooncake engine, healthy or not.
    Row(
        "mooncake-no-local-segment", Speaker.SGLANG, Level.ERROR, "", b"Local segment descriptor not found",
        r"Local segment descriptor not found",
        "E1121 02:01:19.957741 25262 transfer_metadata.cpp:1098] Local segment descriptor not found",
        backend="mooncake", echo=True,
    ),
    # From here to the end of the table: not in the logs we recorded.
    Row(
        "nixl-transport-error", Speaker.SGLANG, Level.WARNING, "prefill", b"NIXL transport error for room ",
        r"NIXL transport error for room (?P<room>\d+): (?P<reason>.*)",
        "[2026-11-21 02:06:50] NIXL transport error for room 1707339780048244443: NIXL_ERR_REMOTE_DISCONNECT",
        Span(V0_5_12), Phase.FAILED, "nixl", "PD409",
        proves=(Sign.HAS_REQUEST,),
    ),
    Row(
        "status-not-synced", Speaker.SGLANG, Level.WARNING, "", b"Failed to sync status ",
        r"Failed to sync status (?P<status>\S+) of room (?P<room>\d+) to (?P<addr>\S+:\d+): (?P<reason>.*)",
        "[2026-11-21 02:06:50] Failed to sync status 4 of room 1707339780048244443 to 127.0.0.1:41011: Resource "
        "temporarily unavailable",
        Span(V0_5_20), Phase.FAILED, cause="PD704",
    ),
    Row(
        "status-not-terminal", Speaker.SGLANG, Level.WARNING, "decode", b"Ignoring non-terminal status ",
        r"Ignoring non-terminal status (?P<status>\S+) for room (?P<room>\d+) from prefill rank (?P<rank>\S+)",
        "[2026-11-21 02:06:50] Ignoring non-terminal status 3 for room 1707339780048244443 from prefill rank 0",
        Span(V0_5_20),
    ),
    Row(
        "response-count-missing", Speaker.SGLANG, Level.WARNING, "decode", b"No expected prefill response count for",
        r"No expected prefill response count for room (?P<room>\d+), prefill rank (?P<rank>\S+)",
        "[2026-11-21 02:06:50] No expected prefill response count for room 1707339780048244443, prefill rank 0",
        Span(V0_5_20),
    ),
    Row(
        "nixl-peer-again", Speaker.SGLANG, Level.INFO, "prefill", b" was already registered, ignoring.",
        r"Peer (?P<agent>\S+) was already registered, ignoring\.",
        "[2026-11-21 02:06:49] Peer 1eff4586-9249-484b-b134-3f9440969c01 was already registered, ignoring.",
        backend="nixl",
    ),
    Row(
        "nixl-agent-invalidated", Speaker.SGLANG, Level.WARNING, "prefill", b"NIXL invalidated remote agent ",
        r"NIXL invalidated remote agent (?P<agent>[^;]+); reloading its metadata",
        "[2026-11-21 02:06:49] NIXL invalidated remote agent 1eff4586-9249-484b-b134-3f9440969c01; reloading its "
        "metadata",
        Span(V0_5_22), backend="nixl", cause="PD409",
    ),
    Row(
        "nixl-agent-not-reloaded", Speaker.SGLANG, Level.ERROR, "prefill", b"Failed to reload NIXL metadata for remote",
        r"Failed to reload NIXL metadata for remote agent (?P<agent>\S+)",
        "[2026-11-21 02:06:49] Failed to reload NIXL metadata for remote agent 1eff4586-9249-484b-b134-3f9440969c01",
        Span(V0_5_22), backend="nixl", cause="PD409",
    ),
    Row(
        "nixl-state-unread", Speaker.SGLANG, Level.WARNING, "prefill", b"Failed to read NIXL transfer state: ",
        r"Failed to read NIXL transfer state: (?P<reason>.*)",
        "[2026-11-21 02:06:49] Failed to read NIXL transfer state: NIXL_ERR_NOT_FOUND", Span(V0_5_20), backend="nixl",
        cause="PD409",
    ),
    Row(
        "nixl-layout-rejected", Speaker.SGLANG, Level.ERROR, "prefill", b"NIXL state layout rejected: peer=",
        r"NIXL state layout rejected: peer=(?P<peer>\S+) (?P<reason>.*)",
        "[2026-11-21 02:06:49] NIXL state layout rejected: peer=1eff4586-9249-484b-b134-3f9440969c01 item_lens differ",
        Span(V0_5_23), backend="nixl", cause="PD304",
    ),
    Row(
        "nixl-state-generic", Speaker.SGLANG, Level.WARNING, "prefill", b"NIXL prepared state: peer=",
        r"NIXL prepared state: peer=(?P<peer>\S+) (?P<reason>.*)",
        "[2026-11-21 02:06:49] NIXL prepared state: peer=1eff4586-9249-484b-b134-3f9440969c01 all generic "
        "reason=index-space",
        Span(V0_5_23), backend="nixl",
    ),
    Row(
        "nixl-no-strides", Speaker.SGLANG, Level.WARNING, "", b"Installed NIXL does not support strided descriptors",
        r"Installed NIXL does not support strided descriptors",
        "[2026-11-21 02:06:33] Installed NIXL does not support strided descriptors, falling back to per-block "
        "descriptors.",
        Span(V0_5_22), backend="nixl",
    ),
    Row(
        "nixl-ib-device-ignored", Speaker.SGLANG, Level.WARNING, "", b"UCX_NET_DEVICES is set; ignoring --disagg",
        r"UCX_NET_DEVICES is set; ignoring --disaggregation-ib-device for NIXL UCX\.",
        "[2026-11-21 02:06:33] UCX_NET_DEVICES is set; ignoring --disaggregation-ib-device for NIXL UCX. Per-GPU CLI "
        "device mappings will not be applied.",
        Span(V0_5_23), backend="nixl", cause="PD407",
    ),
    Row(
        "nixl-device-binding", Speaker.SGLANG, Level.INFO, "", b"NIXL UCX device binding: gpu_id=",
        r"NIXL UCX device binding: gpu_id=(?P<gpu>[^,]+), engine_rank=(?P<rank>[^,]+), device_list=(?P<devices>.*)",
        "[2026-11-21 02:06:33] NIXL UCX device binding: gpu_id=0, engine_rank=0, device_list=mlx5_0:1", Span(V0_5_23),
        backend="nixl",
    ),
    Row(
        "unexpected-tag", Speaker.SGLANG, Level.WARNING, "decode", b"_thread: unexpected message tag ",
        r"decode_(?:listener|staging)_thread: unexpected message tag (?P<tag>.*)",
        "[2026-11-21 02:06:49] decode_listener_thread: unexpected message tag b'KV'", Span(V0_5_12), backend="nixl",
        cause="PD310",
    ),
    Row(
        "malformed-frame", Speaker.SGLANG, Level.WARNING, "", b"alformed ",
        r"(?:Dropping malformed|Malformed|Received malformed) (?P<reason>.*)",
        "[2026-11-21 02:06:49] Dropping malformed prefill status message with 2 frames", Span(V0_5_9),
        cause="PD310",
    ),
    Row(
        "unparsable-frame", Speaker.SGLANG, Level.WARNING, "", b"Dropping unparsable ",
        r"Dropping unparsable (?P<reason>.*)", "[2026-11-21 02:06:49] Dropping unparsable prefill status message",
        Span(V0_5_20), cause="PD310",
    ),
    Row(
        "incomplete-frame", Speaker.SGLANG, Level.WARNING, "", b"Incomplete status payload received",
        r"Incomplete status payload received", "[2026-11-21 02:06:49] Incomplete status payload received",
        Span(V0_5_9, V0_5_20), cause="PD310",
    ),
    Row(
        "incomplete-acknowledgement", Speaker.SGLANG, Level.WARNING, "", b"Incomplete ABORT_ACK received",
        r"Incomplete ABORT_ACK received", "[2026-11-21 02:06:49] Incomplete ABORT_ACK received",
        Span(V0_5_22), cause="PD310",
    ),
    Row(
        "mixed-releases", Speaker.SGLANG, Level.WARNING, "decode", b"Generation-less ABORT_ACK received",
        r"Generation-less ABORT_ACK received; ignoring it\.",
        "[2026-11-21 02:06:49] Generation-less ABORT_ACK received; ignoring it. Mixed SGLang versions may wait for the "
        "KV release timeout.",
        Span(V0_5_22), cause="PD310",
    ),
    Row(
        "page-lists-differ", Speaker.SGLANG, Level.WARNING, "prefill", b"len(chunked_dst_kv_indice) = ",
        r"len\(chunked_dst_kv_indice\) = (?P<theirs>\d+), len\(kv_chunk\.prefill_kv_indices\) = (?P<ours>\d+)",
        "[2026-11-21 02:06:49] len(chunked_dst_kv_indice) = 3, len(kv_chunk.prefill_kv_indices) = 4", cause="PD302",
    ),
    Row(
        "state-lists-differ", Speaker.SGLANG, Level.WARNING, "prefill", b"len(prefill_state_indices) = ",
        r"len\(prefill_state_indices\) = (?P<ours>\d+), len\(dst_state_indices\) = (?P<theirs>\d+)",
        "[2026-11-21 02:06:49] len(prefill_state_indices) = 3, len(dst_state_indices) = 4", Span(V0_5_9),
        cause="PD302",
    ),
    Row(
        "slice-too-large", Speaker.SGLANG, Level.ERROR, "prefill", b" exceeds target token slot size (",
        r"\[(?P<session>[^\]]+)\] slice size \((?P<ours>\d+)\) exceeds target token slot size \((?P<theirs>\d+)\)",
        "[2026-11-21 02:01:29] [127.0.0.1:15794] slice size (256) exceeds target token slot size (128)",
        backend="mooncake", cause="PD305",
    ),
    Row(
        "slice-items-differ", Speaker.SGLANG, Level.ERROR, "prefill", b"head-sliced transfer assumes one item length",
        r"\[(?P<session>[^\]]+)\] head-sliced transfer assumes one item length for every KV entry, got (?P<reason>.*)",
        "[2026-11-21 02:01:29] [127.0.0.1:15794] head-sliced transfer assumes one item length for every KV entry, got "
        "{128, 256}",
        Span(V0_5_19), backend="mooncake", cause="PD305",
    ),
    Row(
        "pp-stage-out-of-range", Speaker.SGLANG, Level.ERROR, "prefill", b"layers_current_pp_stage is out of range",
        r"Prefill transfer kvcache error, layers_current_pp_stage is out of range: (?P<reason>.*)",
        "[2026-11-21 02:01:29] Prefill transfer kvcache error, layers_current_pp_stage is out of range: "
        "layers_current_pp_stage=4, len(dst_k_ptrs)=2",
        Span(V0_5_9), backend="mooncake", cause="PD315",
    ),
    Row(
        "pp-stage-out-of-range-old", Speaker.SGLANG, Level.ERROR, "prefill", b"layers_current_pp_stage is out of range",
        r"layers_current_pp_stage is out of range: (?P<reason>.*)",
        "[2026-11-21 02:01:29] layers_current_pp_stage is out of range: layers_current_pp_stage=4, 2",
        Span(V0_5_7, V0_5_9), backend="mooncake", cause="PD315",
    ),
    Row(
        "session-state-rejected", Speaker.SGLANG, Level.ERROR, "prefill", b"Rejecting state transfers to decode sess",
        r"Rejecting state transfers to decode session (?P<session>[^:\s]+(?::\d+)?): (?P<reason>.*)",
        "[2026-11-21 02:01:29] Rejecting state transfers to decode session 127.0.0.1:15794: MAMBA layout differs",
        Span(V0_5_22), backend="mooncake", cause="PD304",
    ),
    Row(
        "session-layout-unchecked", Speaker.SGLANG, Level.WARNING, "prefill", b"Could not pre-check ",
        r"Could not pre-check (?P<kind>\S+) layout for session (?P<session>\S+): (?P<reason>.*)",
        "[2026-11-21 02:01:29] Could not pre-check MAMBA layout for session 127.0.0.1:15794: no metadata",
        Span(V0_5_22), backend="mooncake",
    ),
    Row(
        "mamba-slices", Speaker.SGLANG, Level.WARNING, "prefill", b"Using Mamba state slice transfer for different ",
        r"Using Mamba state slice transfer for different (?:runtime attention )?TP sizes",
        "[2026-11-21 02:01:29] Using Mamba state slice transfer for different TP sizes between prefill and decode. "
        "Prefill attn_tp_size=2, Decode attn_tp_size=1. Performance may be affected.",
        Span(V0_5_9), cause="PD306",
    ),
    Row(
        "swa-slices", Speaker.SGLANG, Level.WARNING, "prefill", b"Using SWA state head-slice transfer for different ",
        r"Using SWA state head-slice transfer for different attention TP sizes: prefill=(?P<prefill_tp>\d+), "
        r"decode=(?P<decode_tp>\d+)",
        "[2026-11-21 02:01:29] Using SWA state head-slice transfer for different attention TP sizes: prefill=2, "
        "decode=1.",
        Span(V0_5_22), cause="PD306",
    ),
    Row(
        "mooncake-not-started", Speaker.SGLANG, Level.ERROR, "", b"Mooncake Transfer Engine initialization failed.",
        r"Mooncake Transfer Engine initialization failed\.",
        "[2026-11-21 02:01:19] Mooncake Transfer Engine initialization failed.",
        backend="mooncake", cause="PD409",
    ),
    Row(
        "mooncake-memory", Speaker.SGLANG, Level.DEBUG, "", b"Mooncake ",
        r"Mooncake (?:batch )?memory (?P<what>registration|deregistration) (?P<pointer>\S* ?)failed\.",
        "[2026-11-21 02:01:19] Mooncake batch memory registration failed.",
        Span(), backend="mooncake", cause="PD405", needs=DEBUG,
    ),
    Row(
        "mooncake-transfer-failed", Speaker.SGLANG, Level.DEBUG, "prefill", b"ransfer data",
        r"Failed to (?:batch )?transfer data(?P<reason>.*)",
        "[2026-11-21 02:01:29] Failed to batch transfer data. Buffers: [1], Session: 127.0.0.1:15794, Peer addresses: "
        "[2]",
        Span(), backend="mooncake", cause="PD409", needs=DEBUG,
    ),
    Row(
        "mooncake-pool-missing", Speaker.SGLANG, Level.WARNING, "", b"Failed to import mooncake allocator for ",
        r"Failed to import mooncake allocator for (?P<kind>[^:]+): (?P<reason>.*)",
        "[2026-11-21 02:01:19] Failed to import mooncake allocator for NVLINK: No module named 'mooncake.allocator'. "
        "Falling back to default memory pool.",
        Span(V0_5_5_POST1), backend="mooncake", cause="PD413",
    ),
    Row(
        "mooncake-pool-failed", Speaker.SGLANG, Level.ERROR, "", b"Failed to initialize custom memory pool ",
        r"Failed to initialize custom memory pool (?P<kind>[^:]+): (?P<reason>.*)",
        "[2026-11-21 02:01:19] Failed to initialize custom memory pool NVLINK: no fabric. Falling back to default "
        "memory pool.",
        Span(V0_5_5_POST1), backend="mooncake", cause="PD413",
    ),
    Row(
        "replica-factor-unknown", Speaker.SGLANG, Level.WARNING, "prefill", b"_kv_replica_factor",
        r"(?:get_kv_replica_factor called before|resolve_kv_replica_factor: no decode destinations)",
        "[2026-11-21 02:06:49] resolve_kv_replica_factor: no decode destinations available; KV transfer metrics may be "
        "inaccurate.",
        Span(V0_5_16),
    ),
    Row(
        "dcp-pack-small", Speaker.SGLANG, Level.WARNING, "prefill", b"PD DCP pack buffer too small for byte range",
        r"PD DCP pack buffer too small for byte range (?P<reason>.*)",
        "[2026-11-21 02:06:49] PD DCP pack buffer too small for byte range [0, 4096) (have 2048, region capacity "
        "2048); falling back to per-token RDMA",
        Span(V0_5_19), cause="PD412",
    ),
    Row(
        "dcp-pack", Speaker.SGLANG, Level.INFO, "prefill", b"PD DCP pack ",
        r"PD DCP pack (?:buffers allocated|disabled on) ?(?P<reason>.*)",
        "[2026-11-21 02:06:33] PD DCP pack disabled on cpu; using per-token transfer", Span(V0_5_19),
    ),
    Row(
        "manager-torn-down", Speaker.SGLANG, Level.INFO, "", b"KVManager torn down (was role=",
        r"(?P<kind>Mooncake|Mori)KVManager torn down \(was role=(?P<old_role>\w+)\)",
        "[2026-11-21 02:06:49] MooncakeKVManager torn down (was role=prefill)", Span(V0_5_21),
    ),
    Row(
        "teardown-trouble", Speaker.SGLANG, Level.ERROR, "", b" teardown",
        r"Failed to (?P<what>close|deregister|destroy|shutdown|signal) (?P<reason>.* (?:during|on) teardown)",
        "[2026-11-21 02:06:49] Failed to deregister buffers during teardown", Span(V0_5_21), echo=True,
    ),
    Row(
        "zmq-push-not-closed", Speaker.SGLANG, Level.ERROR, "decode", b"Failed to close ZMQ PUSH socket (receiver): ",
        r"Failed to close ZMQ PUSH socket \(receiver\): (?P<endpoint>.*)",
        "[2026-11-21 02:06:49] Failed to close ZMQ PUSH socket (receiver): tcp://127.0.0.1:35051", Span(V0_5_21),
        echo=True,
    ),
    Row(
        "zmq-push-stale", Speaker.SGLANG, Level.DEBUG, "decode", b"Disconnected stale ZMQ PUSH socket (receiver): ",
        r"Disconnected stale ZMQ PUSH socket \(receiver\): (?P<endpoint>.*)",
        "[2026-11-21 02:06:49] Disconnected stale ZMQ PUSH socket (receiver): tcp://127.0.0.1:35051", Span(V0_5_14),
        needs=DEBUG,
    ),
    # From an older build (a write-up shows the line; none of the releases read here has it).
    Row(
        "failure-recorded-decode", Speaker.SGLANG, Level.ERROR, "decode", b"Failure recorded for room ",
        r"Failure recorded for room (?P<room>\d+): "
        r"(?P<reason>Request \d+ timed out after (?P<seconds>[\d.]+)s in KVPoll\.WaitingForInput.*)",
        "[04:46:19 TP0] Failure recorded for room 7707449254856086911: Request 7707449254856086911 timed out after "
        "300.0s in KVPoll.WaitingForInput",
        phase=Phase.TIMED_OUT,
        proves=(Sign.PAGE_LIST_SENT,), reached=Phase.HANDSHAKE,
    ),
    Row(
        "failure-recorded-prefill", Speaker.SGLANG, Level.ERROR, "prefill", b"Failure recorded for room ",
        r"Failure recorded for room (?P<room>\d+): "
        r"(?P<reason>Request \d+ timed out after (?P<seconds>[\d.]+)s in KVPoll\.Bootstrapping.*)",
        "[04:46:19 TP0] Failure recorded for room 7707449254856086911: Request 7707449254856086911 timed out after "
        "300.0s in KVPoll.Bootstrapping",
        phase=Phase.TIMED_OUT,
        reached=Phase.BOOTSTRAP,
    ),
    Row(
        "failure-recorded", Speaker.SGLANG, Level.ERROR, "", b"Failure recorded for room ",
        r"Failure recorded for room (?P<room>\d+): (?P<reason>.*)",
        "[04:46:19 TP0] Failure recorded for room 7707449254856086911: Aborted by AbortReq.",
        phase=Phase.FAILED,
    ),
)  # fmt: skip
