"""mini_lb (the Python router of the sglang-router 0.3.x wheel): two lines of its own, then uvicorn's access lines.

It never writes a room or a pair; its access lines carry no time.
"""

from __future__ import annotations

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
