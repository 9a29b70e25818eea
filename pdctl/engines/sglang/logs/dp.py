"""The data-parallel controller: which rank got a request (no room in any line), and the ports of its workers."""

from __future__ import annotations

from pdctl.engines.row import Level, Row, Speaker
from pdctl.engines.versions import V0_5_3, V0_5_3_POST2, V0_5_8, V0_5_10, V0_5_11, V0_5_16, Span

DEBUG = "--log-level debug"

ROWS = (
    Row(
        "dp-rank-started", Speaker.SGLANG, Level.INFO, "", b"Launch DP",
        r"Launch DP(?P<dp_rank>\d+) starting at GPU #(?P<gpu>\d+)\.",
        "[2026-11-21 02:18:50] Launch DP0 starting at GPU #0.",
    ),
    Row(
        "dp-worker-chosen", Speaker.SGLANG, Level.DEBUG, "", b"Choose worker ",
        r"Choose worker (?P<dp_rank>\d+)(?: for health check)?", "[2026-11-21 02:16:35] Choose worker 0",
        Span(V0_5_8), needs=DEBUG,
    ),
    Row(
        "dp-port-assigned", Speaker.SGLANG, Level.DEBUG, "", b"Assigned port ",
        r"Assigned port (?P<port>\d+) to worker (?:slot )?(?P<dp_rank>\d+)",
        "[2026-11-21 02:16:23] Assigned port 46665 to worker 0", Span(V0_5_3_POST2), needs=DEBUG,
    ),
    Row(
        "dp-ports", Speaker.SGLANG, Level.DEBUG, "", b"Worker ports: [", r"Worker ports: \[(?P<ports>[^\]]*)\]",
        "[2026-11-21 02:16:23] Worker ports: [46665, 43349]", Span(V0_5_3_POST2), needs=DEBUG,
    ),
    Row(
        "dp-ports-sending", Speaker.SGLANG, Level.DEBUG, "", b"Broadcasting worker ports to ",
        r"Broadcasting worker ports to (?P<nodes>\d+) client nodes",
        "[2026-11-21 02:16:23] Broadcasting worker ports to 0 client nodes", Span(V0_5_3_POST2), needs=DEBUG,
    ),
    Row(
        "dp-ports-sent", Speaker.SGLANG, Level.DEBUG, "", b"Worker port broadcast completed",
        r"Worker port broadcast completed", "[2026-11-21 02:16:23] Worker port broadcast completed", Span(V0_5_3_POST2),
        needs=DEBUG,
    ),
    Row(
        "output-unwanted", Speaker.SGLANG, Level.WARNING, "", b" but the state was deleted in TokenizerManager.",
        r"Received output for rid='?(?P<rid>[^\s']+)'? but the state was deleted in TokenizerManager\.",
        "[2026-11-21 02:18:56] Received output for rid='b19891ef380e4d59a023d507187bb770' but the state was deleted in "
        "TokenizerManager.",
    ),
    # Not in the sets we recorded.
    Row(
        "dp-worker-given", Speaker.SGLANG, Level.DEBUG, "", b"Direct routing to DP rank ",
        r"Direct routing to DP rank (?P<dp_rank>\d+)", "[2026-11-21 02:16:35] Direct routing to DP rank 1",
        needs=DEBUG,
    ),
    Row(
        "dp-ports-late", Speaker.SGLANG, Level.ERROR, "", b"Timeout waiting for worker ports from node 0",
        r"Timeout waiting for worker ports from node 0",
        "[2026-11-21 02:16:23] Timeout waiting for worker ports from node 0", Span(V0_5_3_POST2), cause="PD504",
    ),
    Row(
        "dp-handshake-bad", Speaker.SGLANG, Level.ERROR, "", b"Failed to recv/decode handshake in reply thread",
        r"Failed to recv/decode handshake in reply thread; continue",
        "[2026-11-21 02:16:23] Failed to recv/decode handshake in reply thread; continue", Span(V0_5_11),
    ),
    Row(
        "dp-handshake", Speaker.SGLANG, Level.DEBUG, "", b" worker ports",
        r"(?:Connecting to node 0 to receive|Sent) worker ports ?(?P<rest>.*)",
        "[2026-11-21 02:16:23] Sent worker ports to 1/1 nodes", Span(V0_5_3_POST2), needs=DEBUG,
    ),
    Row(
        "dp-ports-received", Speaker.SGLANG, Level.DEBUG, "", b" worker ports from node 0",
        r"Received (?P<ports>\S+) worker ports from node 0",
        "[2026-11-21 02:16:23] Received 2 worker ports from node 0", Span(V0_5_3_POST2), needs=DEBUG,
    ),
    Row(
        "dp-balance-deprecated", Speaker.SGLANG, Level.WARNING, "", b"The 'minimum_tokens' load balancing method",
        r"The 'minimum_tokens' load balancing method is deprecated",
        "[2026-11-21 02:16:23] The 'minimum_tokens' load balancing method is deprecated for now and will introduced "
        "later.Fall back to 'round_robin_scheduler'",
        Span(V0_5_3, V0_5_8),
    ),
    Row(
        "dp-active-ranks", Speaker.SGLANG, Level.WARNING, "", b"; ignoring update",
        r"\[(?:DPC|Elastic EP)\](?:\[DPC\])? (?:update_active_ranks: |active rank )status len=(?P<status>\d+) != "
        r"max_dp_size=(?P<dp_size>\d+); ignoring update",
        "[2026-11-21 02:16:23] [DPC] update_active_ranks: status len=2 != max_dp_size=4; ignoring update",
        Span(V0_5_16),
    ),
    Row(
        "dp-elastic", Speaker.SGLANG, Level.DEBUG, "", b"[Elastic EP] ", r"\[Elastic EP\] (?P<rest>.*)",
        "[2026-11-21 02:16:23] [Elastic EP] add_elastic_workers: slot 2 already active; skipping", Span(V0_5_10),
        needs=DEBUG,
    ),
)  # fmt: skip
