"""Who has stopped answering whom: heartbeats, dead sessions, time-outs told once per process."""

from __future__ import annotations

from pdctl.engines.row import Level, Row, Speaker
from pdctl.engines.sign import Sign
from pdctl.engines.versions import V0_5_3, V0_5_10, V0_5_13, V0_5_14, V0_5_16, V0_5_23, Span

ROWS = (
    Row(
        "prefill-lost", Speaker.SGLANG, Level.ERROR, "decode", b" connection with prefill instance (bootstrap_addr: ",
        r"Lost connection with prefill instance \(bootstrap_addr: (?P<addr>[^)]+)\), (?P<rooms_affected>\d+) "
        r"(?:requests|transfers) affected",
        "[2026-11-21 01:48:36] Lost connection with prefill instance (bootstrap_addr: 127.0.0.1:8998), "
        "0 transfers affected",
        proves=(Sign.BOOTSTRAP_MISSED, Sign.HEARTBEATS_LOST),
    ),
    Row(
        "prefill-reconnecting", Speaker.SGLANG, Level.INFO, "decode", b"Attempting to reconnect to ",
        r"Attempting to reconnect to (?P<addr>\S+?)\.\.\.",
        "[2026-11-21 02:01:14] Attempting to reconnect to 127.0.0.1:8998...",
        proves=(Sign.HEARTBEAT_MISSED,),
    ),
    Row(
        "bootstrap-timeouts-begin", Speaker.SGLANG, Level.WARNING, "prefill", b"Some requests timed out when bootstrap",
        r"Some requests timed out when bootstrapping, which means prefill instances fail to receive the KV indices",
        "[2026-11-21 01:59:57] Some requests timed out when bootstrapping, which means prefill instances fail to "
        "receive the KV indices from the decode instance of this request. If a greater mean TTFT is acceptable, you "
        "can 'export SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT=600' (10 minutes) to relax the timeout condition. ",
        echo=True,
    ),
    Row(
        "waiting-timeouts-begin", Speaker.SGLANG, Level.WARNING, "decode", b"Some requests fail to receive KV Cache",
        r"Some requests fail to receive KV Cache transfer done signal after bootstrapping\.",
        "[2026-11-21 01:59:57] Some requests fail to receive KV Cache transfer done signal after bootstrapping. If a "
        "greater mean TTFT is acceptable, you can 'export SGLANG_DISAGGREGATION_WAITING_TIMEOUT=600' (10 minutes) to "
        "relax the timeout condition. ",
        echo=True,
        proves=(Sign.PAGE_LIST_SENT,),
    ),
    Row(
        "health-check-failed", Speaker.SGLANG, Level.ERROR, "", b"Health check failed. Server couldn't get a response",
        r"Health check failed\. Server couldn't get a response from detokenizer for last (?P<seconds>\d+) seconds\. "
        r"tic start time: (?P<began>\S+)\. last_heartbeat time: (?P<last>\S+)",
        "[2026-11-21 02:17:03] Health check failed. Server couldn't get a response from detokenizer for last 20 "
        "seconds. tic start time: 02:16:43. last_heartbeat time: 02:16:36",
        cause="PD604",
    ),
    # Not in the sets we recorded.
    Row(
        "prefill-losing", Speaker.SGLANG, Level.ERROR, "decode", b"Losing connection with prefill instance ",
        r"Losing connection with prefill instance \(bootstrap_addr: (?P<addr>[^)]+)\), (?P<rooms_affected>\d+) "
        r"(?:requests|transfers) affected",
        "[2026-11-21 01:48:36] Losing connection with prefill instance (bootstrap_addr: 127.0.0.1:8998), "
        "2 requests affected",
        Span(V0_5_3, V0_5_14), backend="mooncake",
        proves=(Sign.BOOTSTRAP_MISSED,),
    ),
    Row(
        "session-failed", Speaker.SGLANG, Level.ERROR, "prefill", b"Session ",
        r"Session (?P<session>\S+) failed\.", "[2026-11-21 02:01:29] Session 127.0.0.1:15794 failed.",
        backend="mooncake", cause="PD409",
    ),
    Row(
        "session-recovered", Speaker.SGLANG, Level.INFO, "prefill", b" recovered via probe; un-blacklisted",
        r"Session (?P<session>\S+) recovered via probe; un-blacklisted",
        "[2026-11-21 02:01:29] Session 127.0.0.1:15794 recovered via probe; un-blacklisted",
        Span(V0_5_13), backend="mooncake",
    ),
    Row(
        "session-probe-started", Speaker.SGLANG, Level.INFO, "prefill", b"Starting failed-session probe loop",
        r"Starting failed-session probe loop \(interval=(?P<seconds>[\d.]+)s\)",
        "[2026-11-21 02:01:29] Starting failed-session probe loop (interval=10.0s)",
        Span(V0_5_13), backend="mooncake",
    ),
    Row(
        "session-dropped", Speaker.SGLANG, Level.INFO, "prefill", b"Dropped blacklisted session ",
        r"Dropped blacklisted session (?P<session>\S+): no request for (?P<seconds>[\d.]+)s",
        "[2026-11-21 02:01:29] Dropped blacklisted session 127.0.0.1:15794: no request for 300.0s",
        Span(V0_5_23), backend="mooncake",
    ),
    Row(
        "session-probe-raised", Speaker.SGLANG, Level.WARNING, "prefill", b"send_probe(",
        r"send_probe\((?P<session>[^)]+)\) raised: (?P<reason>.*)",
        "[2026-11-21 02:01:29] send_probe(127.0.0.1:15794) raised: transport closed",
        Span(V0_5_13), backend="mooncake",
    ),
    Row(
        "session-probe-failing", Speaker.SGLANG, Level.DEBUG, "prefill", b"Probe still failing for ",
        r"Probe still failing for (?P<session>\S+) \(rc=(?P<rc>-?\d+)\)",
        "[2026-11-21 02:01:29] Probe still failing for 127.0.0.1:15794 (rc=-1)",
        Span(V0_5_13), backend="mooncake", needs="--log-level debug",
    ),
    Row(
        "prefill-poll-unexpected", Speaker.SGLANG, Level.WARNING, "prefill", b": unexpected poll state ",
        r"PP rank (?P<rank>\d+): unexpected poll state (?P<state>\S+) for rid (?P<rid>\S+) ",
        "[2026-11-21 02:06:50] PP rank 0: unexpected poll state KVPoll.Bootstrapping for rid "
        "2bfafc2472b4467383402a55ee1d31d5 from consensus; treating as undone",
        Span(V0_5_10),
    ),
    Row(
        "prefill-poll-unexpected-old", Speaker.SGLANG, Level.WARNING, "prefill", b"Unexpected polling state ",
        r"Unexpected polling state (?P<state>\S+) for rid (?P<rid>\S+) in inflight queue",
        "[2026-11-21 02:06:50] Unexpected polling state KVPoll.Bootstrapping for rid 2bfafc2472b4467383402a55ee1d31d5 "
        "in inflight queue; treating as undone",
        Span(V0_5_10, V0_5_16),
    ),
)  # fmt: skip
