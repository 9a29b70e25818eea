"""The logs of the routers that are not pdctl's: smg, sglang-router and SGLang's mini_lb."""

from __future__ import annotations

from pdctl.engines.base import Adapter
from pdctl.engines.kinds import ROUTERS
from pdctl.engines.routers import sglang_router, smg
from pdctl.engines.row import Level, Row, Speaker

LB = Speaker.MINI_LB

ROWS = (
    Row(
        "mini-lb-starting", LB, Level.WARNING, "router", b"MiniLB is only for debugging purposes",
        r"MiniLB is only for debugging purposes",
        "MiniLB is only for debugging purposes, it only supports random policy!",
    ),
    Row(
        "mini-lb-policy", LB, Level.INFO, "router", b"[MiniLB] Overriding policy to random",
        r"\[MiniLB\] Overriding policy to random", "[MiniLB] Overriding policy to random",
    ),
)  # fmt: skip


SMG = Adapter(Speaker.SMG, smg.ROWS, Speaker.SGLANG_ROUTER, command=ROUTERS["smg"].words, pairs_at_debug=True)
# 0.3 closes a request only when it has read the prefill's whole answer; of smg nothing of the kind is known.
SGLANG_ROUTER = Adapter(
    Speaker.SGLANG_ROUTER,
    sglang_router.ROWS,
    command=ROUTERS["sglang-router"].words,
    pairs_at_debug=True,
    reads_prefill=True,
)
# Written in Python, it serves over uvicorn too: those lines are then its own.
MINI_LB = Adapter(Speaker.MINI_LB, ROWS, Speaker.SGLANG, command=ROUTERS["mini-lb"].words)
