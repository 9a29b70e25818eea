"""The rarer transfer backends: mori (0.5.13+) and ascend."""

from __future__ import annotations

from pdctl.engines.phase import Phase
from pdctl.engines.row import Level, Row, Speaker
from pdctl.engines.versions import V0_5_3, V0_5_9, V0_5_12, V0_5_14, V0_5_19, V0_5_20, V0_5_22, Span

DEBUG = "--log-level debug"
_ROOM = "1707339780048244443"

# Not in the sets we recorded.
ROWS = (
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
