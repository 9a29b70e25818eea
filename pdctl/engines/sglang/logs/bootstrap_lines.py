"""The bootstrap server, the ranks that register, and the decode that queries it (srt/disaggregation/common/conn.py)."""

from __future__ import annotations

from pdctl.engines.base import Level, Row, Sign, Speaker
from pdctl.engines.versions import V0_5_3, V0_5_4, V0_5_5_POST2, V0_5_10, V0_5_11, V0_5_12, V0_5_17, V0_5_23, Span

DEBUG = "--log-level debug"

ROWS = (
    Row(
        "bootstrap-server-started", Speaker.SGLANG, Level.INFO, "prefill",
        b"CommonKVBootstrapServer started successfully on ",
        r"CommonKVBootstrapServer started successfully on (?P<host>\S+):(?P<port>\d+)",
        "[2026-11-21 02:06:25] CommonKVBootstrapServer started successfully on 127.0.0.1:8998", Span(V0_5_10),
        proves=(Sign.BOOTSTRAP_LISTENS, Sign.LISTENS, Sign.BOOTSTRAP_PORT),
    ),
    Row(
        "prefill-registered", Speaker.SGLANG, Level.DEBUG, "prefill", b"Prefill successfully registered to bootstrap",
        r"Prefill successfully registered to bootstrap server\.",
        "[2026-11-21 02:06:32] Prefill successfully registered to bootstrap server.", needs=DEBUG,
    ),
    Row(
        "rank-registered", Speaker.SGLANG, Level.DEBUG, "prefill", b"Register prefill bootstrap: DP",
        r"Register prefill bootstrap: DP(?P<dp>\d+) CP(?P<cp>\d+) TP(?P<tp>\d+) PP(?P<pp>\d+) with rank_ip: "
        r"(?P<rank_ip>\S+) and rank_port: (?P<rank_port>\d+) \((?P<registered>\d+)/(?P<expected>\d+) registered\)",
        "[2026-11-21 02:06:32] Register prefill bootstrap: DP0 CP0 TP0 PP0 with rank_ip: 127.0.0.1 and rank_port: "
        "35051 (1/1 registered)",
        Span(V0_5_10), needs=DEBUG,
        proves=(Sign.RANK_REGISTERED,),
    ),
    Row(
        "rank-registered-old", Speaker.SGLANG, Level.DEBUG, "prefill", b"Register prefill bootstrap: DP",
        r"Register prefill bootstrap: DP(?P<dp>\d+) TP(?P<tp>\d+) PP(?P<pp>\d+) with rank_ip: (?P<rank_ip>\S+) "
        r"and rank_port: (?P<rank_port>\d+)",
        "[2026-11-21 02:01:19] Register prefill bootstrap: DP0 TP0 PP0 with rank_ip: 127.0.0.1 and rank_port: 34873",
        Span(V0_5_3, V0_5_10), needs=DEBUG,
        proves=(Sign.RANK_REGISTERED,),
    ),
    Row(
        "ranks-expected", Speaker.SGLANG, Level.DEBUG, "prefill", b" prefill servers to be registered, ",
        r"Expected (?P<expected>\d+) prefill servers to be registered, (?P<registered>\d+) registered so far",
        "[2026-11-21 02:06:48] Expected 1 prefill servers to be registered, 1 registered so far",
        Span(V0_5_10), needs=DEBUG,
    ),
    Row(
        "kv-manager-bound", Speaker.SGLANG, Level.DEBUG, "", b"kv manager bind to ",
        r"kv manager bind to (?P<rank_ip>\S+):(?P<rank_port>\d+)",
        "[2026-11-21 02:06:32] kv manager bind to 127.0.0.1:35051", Span(V0_5_5_POST2), needs=DEBUG,
        proves=(Sign.RANK_LISTENS,),
    ),
    Row(
        "prefill-shape-fetched", Speaker.SGLANG, Level.DEBUG, "decode", b"Prefill parallel info for [",
        r"Prefill parallel info for \[(?P<addr>[^\]]+)\]: (?P<info>.*)",
        "[2026-11-21 02:04:32] Prefill parallel info for [127.0.0.1:8999]: PrefillServerInfo(attn_tp_size=1, "
        "attn_cp_size=1, dp_size=1, pp_size=1, page_size=1, kv_cache_dtype='auto', follow_bootstrap_room=True, "
        "enable_dsa_cache_layer_split=False, prefill_http_port=30001, target_tp_rank=0, target_tp_ranks=[0], "
        "target_cp_ranks=[0], target_pp_ranks=[0], required_dst_info_num=1, required_prefill_response_num=1)",
        Span(V0_5_10), needs=DEBUG,
    ),
    Row(
        "prefill-shape-fetched-old", Speaker.SGLANG, Level.DEBUG, "decode", b"Fetch prefill parallel info from [",
        r"Fetch prefill parallel info from \[(?P<addr>[^\]]+)\]: DP size:(?P<dp>\d+), TP size:(?P<tp>\d+) "
        r"PP size:(?P<pp>\d+)(?: Page size:(?P<page_size>\d+))?",
        "[2026-11-21 02:01:28] Fetch prefill parallel info from [127.0.0.1:8998]: DP size:1, TP size:1 PP size:1 "
        "Page size:1",
        Span(V0_5_3, V0_5_10), needs=DEBUG,
    ),
    Row(
        "rank-fetched", Speaker.SGLANG, Level.DEBUG, "decode", b"Fetched bootstrap info: {",
        r"Fetched bootstrap info: \{'rank_ip': '(?P<rank_ip>[^']*)', 'rank_port': (?P<rank_port>\d+)(?:, [^}]*)?\} "
        r"for DP (?P<dp>\d+) CP (?P<cp>\d+) TP (?P<tp>\d+) PP (?P<pp>\d+)",
        "[2026-11-21 02:04:32] Fetched bootstrap info: {'rank_ip': '127.0.0.1', 'rank_port': 45795, 'pp_rank': 0, "
        "'is_dummy': False} for DP 0 CP 0 TP 0 PP 0",
        Span(V0_5_10), needs=DEBUG,
    ),
    Row(
        "rank-fetched-old", Speaker.SGLANG, Level.DEBUG, "decode", b"Fetched bootstrap info: {",
        r"Fetched bootstrap info: \{'rank_ip': '(?P<rank_ip>[^']*)', 'rank_port': (?P<rank_port>\d+)(?:, [^}]*)?\} "
        r"for DP (?P<dp>\d+) TP (?P<tp>\d+) PP (?P<pp>\d+)",
        "[2026-11-21 02:01:28] Fetched bootstrap info: {'rank_ip': '127.0.0.1', 'rank_port': 34873, "
        "'is_dummy': False} for DP 0 TP 0 PP 0",
        Span(V0_5_3, V0_5_10), needs=DEBUG,
    ),
    Row(
        "rank-known", Speaker.SGLANG, Level.DEBUG, "decode", b"Fetched bootstrap info: {",
        r"Fetched bootstrap info: \{'rank_ip': '(?P<rank_ip>[^']*)', 'rank_port': (?P<rank_port>\d+)(?:, [^}]*)?\} "
        r"for engine rank: (?P<engine_rank>\d+)",
        "[2026-11-21 01:26:21] Fetched bootstrap info: {'rank_ip': '127.0.0.1', 'rank_port': 33435, "
        "'is_dummy': False} for engine rank: 0",
        Span(V0_5_3, V0_5_23), backend="nixl", needs=DEBUG,
        proves=(Sign.SERVES,),
    ),
    Row(
        "prefill-dp-rank", Speaker.SGLANG, Level.DEBUG, "decode", b"prefill_dp_rank: ",
        r"prefill_dp_rank: (?P<dp_rank>\d+|None)",
        "[2026-11-21 02:04:36] prefill_dp_rank: 0", Span(V0_5_11), needs=DEBUG,
    ),
    Row(
        "shape-fetch-error-old", Speaker.SGLANG, Level.ERROR, "decode",
        b"Error fetching prefill parallel info from bootstrap: ",
        r"Error fetching prefill parallel info from bootstrap: (?P<reason>.*?host='(?P<host>[^']*)', "
        r"port=(?P<port>\d+)\).*)",
        "[2026-11-21 01:42:39] Error fetching prefill parallel info from bootstrap: HTTPConnectionPool("
        "host='127.0.0.1', port=9999): Max retries exceeded with url: /route?engine_rank=-1&target_dp_group=-1&"
        "target_pp_rank=-1 (Caused by NewConnectionError(\"HTTPConnection(host='127.0.0.1', port=9999): Failed to "
        'establish a new connection: [Errno 111] Connection refused"))',
        Span(V0_5_3, V0_5_10), cause="PD205",
        proves=(Sign.BOOTSTRAP_DIALLED, Sign.BOOTSTRAP_REFUSED),
    ),
    # From here to the end of the table: not in the logs we recorded.
    Row(
        "shape-fetch-error-old-unnamed", Speaker.SGLANG, Level.ERROR, "decode",
        b"Error fetching prefill parallel info from bootstrap: ",
        r"Error fetching prefill parallel info from bootstrap: (?P<reason>.*)",
        "[2026-11-21 01:42:39] Error fetching prefill parallel info from bootstrap: Expecting value: line 1 column 1 "
        "(char 0)",
        Span(V0_5_3, V0_5_10), cause="PD205",
    ),
    Row(
        "shape-fetch-error", Speaker.SGLANG, Level.ERROR, "decode",
        b"Error fetching prefill server info from bootstrap: ",
        r"Error fetching prefill server info from bootstrap: (?P<reason>.*?host='(?P<host>[^']*)', "
        r"port=(?P<port>\d+)\).*)",
        "[2026-11-21 20:03:12] Error fetching prefill server info from bootstrap: HTTPConnectionPool("
        "host='127.0.0.1', port=9999): Max retries exceeded with url: /route?prefill_dp_rank=-1&prefill_cp_rank=-1&"
        "target_tp_rank=-1&target_pp_rank=-1 (Caused by NewConnectionError(\"HTTPConnection(host='127.0.0.1', "
        'port=9999): Failed to establish a new connection: [Errno 111] Connection refused"))',
        Span(V0_5_10), cause="PD205",
        proves=(Sign.BOOTSTRAP_DIALLED, Sign.BOOTSTRAP_REFUSED),
    ),
    Row(
        "shape-unreadable", Speaker.SGLANG, Level.ERROR, "decode", b"unexpected keyword argument",
        r"Error fetching prefill server info from bootstrap: (?P<reason>[^\n]*unexpected keyword argument.*)",
        "[2026-11-21 20:03:12] Error fetching prefill server info from bootstrap: PrefillServerInfo.__init__() got an "
        "unexpected keyword argument 'decode_allocation_policy'",
        Span(V0_5_10), cause="PD310",
    ),
    Row(
        "shape-fetch-error-unnamed", Speaker.SGLANG, Level.ERROR, "decode",
        b"Error fetching prefill server info from bootstrap: ",
        r"Error fetching prefill server info from bootstrap: (?P<reason>.*)",
        "[2026-11-21 20:03:12] Error fetching prefill server info from bootstrap: Expecting value: line 1 column 1 "
        "(char 0)",
        Span(V0_5_10), cause="PD205",
    ),
    Row(
        "rank-fetch-error", Speaker.SGLANG, Level.ERROR, "decode", b"Error fetching prefill info from bootstrap: ",
        r"Error fetching prefill info from bootstrap: "
        r"(?P<reason>(?:\w+\(host='(?P<host>[^']*)', port=(?P<port>\d+)\))?.*)",
        "[2026-11-21 01:42:39] Error fetching prefill info from bootstrap: HTTPConnectionPool(host='127.0.0.1', "
        "port=9999): Max retries exceeded with url: /route?engine_rank=0&target_dp_group=0&target_pp_rank=0",
        cause="PD205",
        proves=(Sign.BOOTSTRAP_DIALLED, Sign.BOOTSTRAP_REFUSED),
    ),
    Row(
        # An HTTP server that has no /route: an engine's or a router's port in place of the bootstrap port.
        "shape-not-served", Speaker.SGLANG, Level.ERROR, "decode", b"Failed to get prefill ",
        r"Failed to get prefill (?:server|parallel) info: (?P<status>404|405), (?P<reason>.*)",
        '[2026-11-21 02:04:32] Failed to get prefill server info: 404, {"detail":"Not Found"}',
        cause="PD206",
        proves=(Sign.BOOTSTRAP_ANSWERED,),
    ),
    Row(
        "shape-refused", Speaker.SGLANG, Level.ERROR, "decode", b"Failed to get prefill ",
        r"Failed to get prefill (?:server|parallel) info: (?P<status>503), (?P<reason>.*not fully registered.*)",
        "[2026-11-21 02:04:32] Failed to get prefill server info: 503, Prefill server not fully registered yet "
        "(0 workers registered).",
        cause="PD209",
        proves=(Sign.BOOTSTRAP_ANSWERED,),
    ),
    Row(
        # Another server, or one in between: a proxy that asks for a password, a gateway whose backend is down.
        "shape-answered-badly", Speaker.SGLANG, Level.ERROR, "decode", b"Failed to get prefill ",
        r"Failed to get prefill (?:server|parallel) info: (?P<status>\d+), (?P<reason>.*)",
        "[2026-11-21 02:04:32] Failed to get prefill server info: 403, <html>Forbidden</html>",
        cause="PD205",
        proves=(Sign.BOOTSTRAP_ANSWERED,),
    ),
    Row(
        "shape-given-up", Speaker.SGLANG, Level.ERROR, "decode", b"Could not fetch prefill parallel info from ",
        r"Could not fetch prefill parallel info from (?P<addr>\S+) after (?P<attempts>\d+) attempts",
        "[2026-11-21 02:04:47] Could not fetch prefill parallel info from 127.0.0.1:9999 after 15 attempts",
        Span(V0_5_10), cause="PD205",
        proves=(Sign.BOOTSTRAP_DIALLED, Sign.BOOTSTRAP_MISSED),
    ),
    Row(
        "shape-missing", Speaker.SGLANG, Level.ERROR, "decode", b"Could not fetch prefill parallel info from ",
        r"Could not fetch prefill parallel info from bootstrap_addr: (?P<addr>\S+)",
        "[2026-11-21 01:42:39] Could not fetch prefill parallel info from bootstrap_addr: 127.0.0.1:9999",
        Span(V0_5_4, V0_5_23), backend="nixl", cause="PD205",
        proves=(Sign.BOOTSTRAP_DIALLED,),
    ),
    Row(
        "register-attempt-failed", Speaker.SGLANG, Level.WARNING, "prefill", b"Prefill register attempt ",
        r"Prefill register attempt (?P<attempt>\d+)/(?P<attempts>\d+) failed: (?P<reason>.*)",
        "[2026-11-21 02:06:32] Prefill register attempt 1/5 failed: status 403",
        Span(V0_5_12), cause="PD209",
    ),
    Row(
        "register-given-up", Speaker.SGLANG, Level.ERROR, "prefill", b"Prefill instance failed to ",
        r"Prefill instance failed to (?:connect|register) to bootstrap server(?P<reason>.*)",
        "[2026-11-21 02:07:05] Prefill instance failed to register to bootstrap server after 5 retries",
        cause="PD209",
    ),
    Row(
        "bootstrap-server-error", Speaker.SGLANG, Level.ERROR, "prefill", b"Server error: ",
        r"Server error: (?P<reason>.*)",
        "[2026-11-21 02:06:25] Server error: [Errno 98] error while attempting to bind on address "
        "('127.0.0.1', 8998): address already in use",
        cause="PD204",
    ),
    Row(
        "bootstrap-server-stopping", Speaker.SGLANG, Level.INFO, "prefill", b"Stopping server loop...",
        r"Stopping server loop\.\.\.", "[2026-11-21 02:07:07] Stopping server loop...",
    ),
    Row(
        "bootstrap-server-stopped", Speaker.SGLANG, Level.INFO, "prefill", b"Server thread stopped",
        r"Server thread stopped", "[2026-11-21 02:07:07] Server thread stopped",
    ),
    Row(
        "bootstrap-port-synced", Speaker.SGLANG, Level.INFO, "prefill", b"Synced disaggregation bootstrap port",
        r"Synced disaggregation bootstrap port from leader: local=(?P<local_port>\S+) -> leader=(?P<port>\d+) "
        r"\(world_rank=(?P<rank>\d+)\)",
        "[2026-11-21 02:06:25 TP8] Synced disaggregation bootstrap port from leader: local=8999 -> leader=8998 "
        "(world_rank=8)",
        Span(V0_5_12),
    ),
    Row(
        "dp-rank-announced", Speaker.SGLANG, Level.DEBUG, "prefill", b"Registered dp_rank=",
        r"Registered dp_rank=(?P<dp_rank>\d+) for bootstrap_room=(?P<room>\d+)",
        "[2026-11-21 02:04:32] Registered dp_rank=1 for bootstrap_room=5111113946003395278", Span(V0_5_10), needs=DEBUG,
        proves=(Sign.HAS_REQUEST,),
    ),
    Row(
        "dp-rank-not-announced", Speaker.SGLANG, Level.ERROR, "prefill", b"Failed to register prefill dp_rank: ",
        r"Failed to register prefill dp_rank: (?P<reason>.*)",
        "[2026-11-21 02:04:32] Failed to register prefill dp_rank: 503, not ready", Span(V0_5_10), cause="PD313",
    ),
    Row(
        "dp-rank-query-failed", Speaker.SGLANG, Level.ERROR, "decode", b" dp_ranks",
        r"(?:Failed to query dp_ranks|Error querying dp_ranks from bootstrap): (?P<reason>.*)",
        "[2026-11-21 02:04:32] Error querying dp_ranks from bootstrap: [Errno 99] Cannot assign requested address",
        Span(V0_5_10), cause="PD313",
    ),
    Row(
        "dp-ranks-cleaned", Speaker.SGLANG, Level.DEBUG, "prefill", b" expired entries from room_to_dp_rank",
        r"Cleaned up (?P<entries>\d+) expired entries from room_to_dp_rank",
        "[2026-11-21 02:04:32] Cleaned up 3 expired entries from room_to_dp_rank", Span(V0_5_10), needs=DEBUG,
    ),
    Row(
        "dp-rank-targeted", Speaker.SGLANG, Level.DEBUG, "decode", b"Targeting DP rank: ",
        r"Targeting DP rank: (?P<dp_rank>\d+)", "[2026-11-21 01:26:21] Targeting DP rank: 1",
        Span(V0_5_3, V0_5_10), needs=DEBUG,
    ),
    Row(
        "rust-server-port", Speaker.SGLANG, Level.INFO, "prefill", b"SGLANG_RUST_SERVER: KV bootstrap registry",
        r"SGLANG_RUST_SERVER: KV bootstrap registry is served on the api port; disaggregation_bootstrap_port "
        r"(?P<local_port>\d+) -> (?P<port>\d+)",
        "[2026-11-21 02:06:24] SGLANG_RUST_SERVER: KV bootstrap registry is served on the api port; "
        "disaggregation_bootstrap_port 8998 -> 30000",
        Span(V0_5_17), cause="PD219",
    ),
    Row(
        "rust-server-port-kept", Speaker.SGLANG, Level.INFO, "", b"SGLANG_RUST_SERVER: transfer backend ",
        r"SGLANG_RUST_SERVER: transfer backend (?P<backend>\S+) runs its own KV bootstrap server; keeping "
        r"disaggregation_bootstrap_port (?P<port>\d+)",
        "[2026-11-21 02:06:24] SGLANG_RUST_SERVER: transfer backend mori runs its own KV bootstrap server; keeping "
        "disaggregation_bootstrap_port 8998",
        Span(V0_5_23),
    ),
)  # fmt: skip
