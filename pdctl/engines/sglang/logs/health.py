"""Heartbeats, dead sessions and time-outs, and one line per HTTP request."""

from __future__ import annotations

from pdctl.engines.base import Level, Row, Sign, Speaker
from pdctl.engines.versions import V0_5_3, V0_5_10, V0_5_13, V0_5_14, V0_5_16, V0_5_23, Span

_SILENCE = (
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
    # Not in the logs we recorded.
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
        r"PP rank (?P<rank>\d+): unexpected poll state (?P<state>\S+) for rid (?P<rid>.+) ",
        "[2026-11-21 02:06:50] PP rank 0: unexpected poll state KVPoll.Bootstrapping for rid "
        "2bfafc2472b4467383402a55ee1d31d5 from consensus; treating as undone",
        Span(V0_5_10),
    ),
    Row(
        "prefill-poll-unexpected-old", Speaker.SGLANG, Level.WARNING, "prefill", b"Unexpected polling state ",
        r"Unexpected polling state (?P<state>\S+) for rid (?P<rid>.+) in inflight queue",
        "[2026-11-21 02:06:50] Unexpected polling state KVPoll.Bootstrapping for rid 2bfafc2472b4467383402a55ee1d31d5 "
        "in inflight queue; treating as undone",
        Span(V0_5_10, V0_5_16),
    ),
)  # fmt: skip


DEBUG = "--log-level debug"
_WAS = r"\"(?P<method>[A-Z]+) (?P<path>/[^\s\"]*) HTTP/1\.\d\""
# 127.0.0.1:49348 or [::1]:49348
_CLIENT = r"(?P<client>[\[\]0-9a-fA-F:.]+)"

CALLS = (
    Row(
        "generate-answered", Speaker.SGLANG, Level.INFO, "", b'"POST /generate HTTP/1.',
        _CLIENT + r" - \"(?P<method>POST) (?P<path>/generate) HTTP/1\.\d\" (?P<status>\d{3})",
        '[2026-11-21 02:06:36] INFO:     127.0.0.1:49348 - "POST /generate HTTP/1.1" 200 OK',
        proves=(Sign.SERVES, Sign.REQUEST_ANSWERED),
    ),
    Row(
        "openai-answered", Speaker.SGLANG, Level.INFO, "", b'"POST /v1/',
        _CLIENT + r" - \"(?P<method>POST) (?P<path>/v1/(?:(?:chat/)?completions|responses))(?:\?[^\s\"]*)? "
        r"HTTP/1\.\d\" (?P<status>\d{3})",
        '[2026-11-21 02:06:36] INFO:     127.0.0.1:49348 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
        proves=(Sign.SERVES, Sign.REQUEST_ANSWERED),
    ),
    Row(
        "abort-requested", Speaker.SGLANG, Level.INFO, "", b'"POST /abort_request HTTP/1.',
        _CLIENT + r" - \"(?P<method>POST) (?P<path>/abort_request) HTTP/1\.\d\" (?P<status>\d{3})",
        '[2026-11-23 19:35:41] INFO:     127.0.0.1:33632 - "POST /abort_request HTTP/1.1" 200 OK',
        proves=(Sign.ABORT_REQUESTED,),
    ),
    Row(
        "http2-preface", Speaker.SGLANG, Level.INFO, "", b'"PRI %2A HTTP/2.0"',
        _CLIENT + r" - \"PRI %2A HTTP/2\.0\" (?P<status>\d{3})",
        '[2026-11-21 02:06:42] INFO:     127.0.0.1:59562 - "PRI %2A HTTP/2.0" 404 Not Found',
    ),
    Row(
        "api-answered", Speaker.SGLANG, Level.INFO, "", b' HTTP/1.',
        _CLIENT + r" - " + _WAS + r" (?P<status>\d{3})",
        '[2026-11-21 02:06:34] INFO:     127.0.0.1:49340 - "GET /model_info HTTP/1.1" 200 OK',
    ),
    Row(
        "http2-preface-refused", Speaker.SGLANG, Level.WARNING, "", b"Invalid HTTP request received.",
        r"Invalid HTTP request received\.",
        "[2026-11-21 02:06:42] WARNING:  Invalid HTTP request received.",
    ),
    # The bootstrap server's own log, which only a prefill has. The brackets contain the host's offset from UTC.
    Row(
        "bootstrap-register-answered", Speaker.SGLANG, Level.INFO, "prefill", b'"PUT /route HTTP/1.',
        _CLIENT + r" \[(?P<clock>[^\]]+)\] \"(?P<method>PUT) (?P<path>/route) HTTP/1\.\d\" (?P<status>\d{3})",
        '[2026-11-21 02:06:32] 127.0.0.1 [21/Nov/2026:02:06:32 +0000] "PUT /route HTTP/1.1" 200 154 "-" '
        '"python-requests/2.34.2"',
        needs=DEBUG,
        proves=(Sign.CLOCK,),
    ),
    Row(
        "bootstrap-shape-answered", Speaker.SGLANG, Level.INFO, "prefill", b"=-1&",
        _CLIENT + r" \[(?P<clock>[^\]]+)\] \"(?P<method>GET) (?P<path>/route\?(?:engine_rank|prefill_dp_rank)=-1&"
        r"[^\s\"]*) HTTP/1\.\d\" (?P<status>\d{3})[^\"]*\"[^\"]*\" \"(?P<agent>[^\"]*)",
        '[2026-11-21 02:06:48] 127.0.0.1 [21/Nov/2026:02:06:48 +0000] "GET /route?prefill_dp_rank=-1&'
        'prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1 HTTP/1.1" 200 607 "-" "python-requests/2.34.2"',
        needs=DEBUG,
        proves=(Sign.CLOCK,),
    ),
    Row(
        "bootstrap-rank-answered", Speaker.SGLANG, Level.INFO, "prefill", b'"GET /route?',
        _CLIENT + r" \[(?P<clock>[^\]]+)\] \"(?P<method>GET) (?P<path>/route\?[^\s\"]*) HTTP/1\.\d\" "
        r"(?P<status>\d{3})[^\"]*\"[^\"]*\" \"(?P<agent>[^\"]*)",
        '[2026-11-21 02:01:28] 127.0.0.1 [21/Nov/2026:02:01:28 +0000] "GET /route?engine_rank=0&target_dp_group=0&'
        'target_pp_rank=0 HTTP/1.1" 200 203 "-" "python-requests/2.34.2"',
        needs=DEBUG,
        proves=(Sign.CLOCK,),
    ),
    Row(
        "bootstrap-answered", Speaker.SGLANG, Level.INFO, "", b' HTTP/1.',
        _CLIENT + r" \[(?P<clock>[^\]]+)\] " + _WAS + r" (?P<status>\d{3})[^\"]*\"[^\"]*\" \"(?P<agent>[^\"]*)",
        '[2026-11-21 02:06:49] 127.0.0.1 [21/Nov/2026:02:06:49 +0000] "GET /health HTTP/1.1" 200 154 "-" '
        '"python-requests/2.34.2"',
        needs=DEBUG,
        proves=(Sign.CLOCK,),
    ),
    # Requests this process made (urllib3 at DEBUG): a rank to its bootstrap server, a decode to a prefill's.
    Row(
        "register-called", Speaker.SGLANG, Level.DEBUG, "prefill", b'"PUT /route HTTP/1.',
        r"https?://(?P<addr>[^\s/]+) \"(?P<method>PUT) (?P<path>/route) HTTP/1\.\d\" (?P<status>\d{3})",
        '[2026-11-21 02:06:32] http://127.0.0.1:8998 "PUT /route HTTP/1.1" 200 2', needs=DEBUG,
        proves=(Sign.BOOTSTRAP_LISTENS,),
    ),
    Row(
        "shape-called", Speaker.SGLANG, Level.DEBUG, "decode", b"=-1&",
        r"https?://(?P<addr>[^\s/]+) \"(?P<method>GET) (?P<path>/route\?(?:engine_rank|prefill_dp_rank)=-1&"
        r"[^\s\"]*) HTTP/1\.\d\" (?P<status>\d{3})",
        '[2026-11-21 02:04:32] http://127.0.0.1:8999 "GET /route?prefill_dp_rank=-1&prefill_cp_rank=-1&'
        'target_tp_rank=-1&target_pp_rank=-1 HTTP/1.1" 200 375', needs=DEBUG,
    ),
    Row(
        "rank-called", Speaker.SGLANG, Level.DEBUG, "decode", b'"GET /route?',
        r"https?://(?P<addr>[^\s/]+) \"(?P<method>GET) (?P<path>/route\?[^\s\"]*) HTTP/1\.\d\" (?P<status>\d{3})",
        '[2026-11-21 02:01:28] http://127.0.0.1:8998 "GET /route?engine_rank=0&target_dp_group=0&target_pp_rank=0 '
        'HTTP/1.1" 200 44', needs=DEBUG,
    ),
    Row(
        "heartbeat-called", Speaker.SGLANG, Level.DEBUG, "decode", b'"GET /health HTTP/1.',
        r"https?://(?P<addr>[^\s/]+) \"(?P<method>GET) (?P<path>/health) HTTP/1\.\d\" (?P<status>\d{3})",
        '[2026-11-21 02:01:30] http://127.0.0.1:8998 "GET /health HTTP/1.1" 200 2', needs=DEBUG,
    ),
    Row(
        "other-called", Speaker.SGLANG, Level.DEBUG, "", b' HTTP/1.',
        r"https?://(?P<addr>[^\s/]+) " + _WAS + r" (?P<status>\d{3})",
        '[2026-11-21 02:06:34] http://127.0.0.1:30000 "GET /model_info HTTP/1.1" 200 1349', needs=DEBUG,
    ),
    Row(
        "connection-started", Speaker.SGLANG, Level.DEBUG, "", b"Starting new HTTP",
        r"Starting new HTTPS? connection \(\d+\): (?P<addr>\S+)",
        "[2026-11-21 02:06:32] Starting new HTTP connection (1): 127.0.0.1:8998", needs=DEBUG,
    ),
    Row(
        "connection-reset", Speaker.SGLANG, Level.DEBUG, "", b"Resetting dropped connection: ",
        r"Resetting dropped connection: (?P<host>\S+)",
        "[2026-11-21 02:01:14] Resetting dropped connection: 127.0.0.1", needs=DEBUG,
    ),
)  # fmt: skip

ROWS = (*_SILENCE, *CALLS)
