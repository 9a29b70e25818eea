"""The scheduler's periodic lines: `key: value` pairs, whose keys changed with the releases; no room in any of them.

`#prealloc-req` on a prefill (0.5.3, 0.5.8) counts the bootstrap queue, as `#bootstrap-req` does from 0.5.13 on.
"""

from __future__ import annotations

from pdctl.engines.row import Level, Row, Speaker
from pdctl.engines.sign import Sign
from pdctl.engines.versions import V0_5_3, V0_5_11, V0_5_12, V0_5_16, Span

_NEW = r"[,.] #new-seq: (?P<new_seq>\d+), #new-token: (?P<new_token>\d+), #cached-token: (?P<cached_token>\d+), "
_ITER = r"(?: \[\d+\])?"
_PRE = "Prefill batch" + _ITER + _NEW
_USED = r"[^#]*#running-req: (?P<running>\d+), #queue-req: (?P<queue>\d+), "

ROWS = (
    Row(
        "prefill-batch-optimistic", Speaker.SGLANG, Level.INFO, "prefill", b"#optimistic-req: ",
        _PRE + _USED + r"#pending-token: \d+, (?:#replay-token: \d+, )?#bootstrap-req: (?P<bootstrap>\d+), "
        r"#inflight-req: (?P<inflight>\d+), #optimistic-req: (?P<optimistic>\d+), (?P<rest>.*)",
        "[2026-11-21 02:06:49] Prefill batch, #new-seq: 1, #new-token: 5, #cached-token: 0, token usage: 0.00, "
        "#running-req: 0, #queue-req: 0, #pending-token: 0, #bootstrap-req: 0, #inflight-req: 1, #optimistic-req: 0, "
        "cpu graph: False, input throughput (token/s): 0.67",
        Span(V0_5_16),
    ),
    Row(
        "prefill-batch-old", Speaker.SGLANG, Level.INFO, "prefill", b"#prealloc-req: ",
        _PRE + _USED + r"#prealloc-req: (?P<bootstrap>\d+), #inflight-req: (?P<inflight>\d+), (?P<rest>.*)",
        "[2026-11-21 01:18:26] Prefill batch, #new-seq: 1, #new-token: 4, #cached-token: 0, token usage: 0.00, "
        "#running-req: 0, #queue-req: 0, #prealloc-req: 0, #inflight-req: 0, input throughput (token/s): 0.00, ",
        Span(V0_5_3, V0_5_11),
    ),
    Row(
        "prefill-batch", Speaker.SGLANG, Level.INFO, "prefill", b"#bootstrap-req: ",
        _PRE + _USED + r"(?:#pending-token: \d+, )?(?:#replay-token: \d+, )?#bootstrap-req: (?P<bootstrap>\d+), "
        r"#inflight-req: (?P<inflight>\d+), (?P<rest>.*)",
        "[2026-11-21 19:44:33] Prefill batch, #new-seq: 1, #new-token: 1, #cached-token: 0, token usage: 0.00, "
        "#running-req: 0, #queue-req: 0, #bootstrap-req: 0, #inflight-req: 1, input throughput (token/s): 377.67",
        Span(V0_5_12),
    ),
    Row(
        "decode-batch", Speaker.SGLANG, Level.INFO, "decode", b"#transfer-req: ",
        r"Decode batch" + _ITER + r"[,.] #running-req: (?P<running>\d+), (?P<usage>.{0,300}?)"
        r"#prealloc-req: (?P<prealloc>\d+), #transfer-req: (?P<transfer>\d+), #retracted-req: (?P<retracted>\d+), "
        r"(?P<rest>.*)",
        "[2026-11-21 02:01:29] Decode batch, #running-req: 4, #token: 34, token usage: 0.01, pre-allocated usage: "
        "0.00, #prealloc-req: 0, #transfer-req: 0, #retracted-req: 0, cpu graph: False, gen throughput (token/s): "
        "3.55, #queue-req: 0, ",
        proves=(Sign.RUNNING, Sign.SERVES),
    ),
    # Without pairing: an instance of no role, or a decode's own re-prefill.
    Row(
        "batch", Speaker.SGLANG, Level.INFO, "", b" batch",
        r"(?P<kind>Prefill|Decode) batch" + _ITER + r"[,.] (?P<rest>#.*)",
        "[2026-11-21 02:06:49] Decode batch, #running-req: 1, #token: 34, token usage: 0.01, cpu graph: False, gen "
        "throughput (token/s): 3.55, #queue-req: 0",
    ),
)  # fmt: skip
