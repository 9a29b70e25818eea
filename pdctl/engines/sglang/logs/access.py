"""One line per HTTP call: uvicorn's (API server), aiohttp's (bootstrap server), urllib3's (whoever calls another)."""

from __future__ import annotations

from pdctl.engines.row import Level, Row, Speaker
from pdctl.engines.sign import Sign

DEBUG = "--log-level debug"
_WAS = r"\"(?P<method>[A-Z]+) (?P<path>/[^\s\"]*) HTTP/1\.\d\""
# 127.0.0.1:49348 or [::1]:49348
_CLIENT = r"(?P<client>[\[\]0-9a-fA-F:.]+)"

ROWS = (
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
    # The bootstrap server's own log: only a prefill has one. The bracket holds the host's offset from UTC.
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
    # Calls this process made (urllib3 at DEBUG): a rank to its bootstrap server, a decode to a prefill's.
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
