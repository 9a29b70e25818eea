"""The scheduler's log lines of one room: SGLang's own where there is one, and a line of ours for every other step.

SGLang (0.5.23) writes no INFO line for a healthy room; ours start with `Room step:`, so that a reader can tell.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdctl.engine.scheduler.resources import Req, Resources

log = logging.getLogger("pdctl.engine")


def step(req: Req, phase: str, **facts: float | int | str) -> None:
    """Log that a room has just entered the queue `phase`; floats are seconds."""
    if not req.room:
        return
    words = " ".join(
        f"{key}={value:.6f}" if isinstance(value, float) else f"{key}={value}" for key, value in facts.items()
    )
    log.info("Room step: room=%d rid='%s' phase=%s %s", req.room, req.rid, phase, words)


def failed(req: Req, what: str, path: str, rank: int, reason: str) -> None:
    """sglang 0.5.23: a prefill logs a warning, a decode an error; the two texts differ only in `path`."""
    level = logging.WARNING if path == "req" else logging.ERROR
    log.log(
        level,
        "%s for request rank=%d %s.rid='%s' %s.bootstrap_room=%d with exception KVTransferError(bootstrap_room=%d): %s",
        what, rank, path, req.rid, path, req.room, req.room, reason,
    )  # fmt: skip


def finished(req: Req, kind: str, resources: Resources) -> None:
    """Log SGLang's line for a room whose KV cache moved (in SGLang only with --enable-request-time-stats-logging)."""
    if not req.room:
        return
    at, meta = req.times, req.meta(resources.dp_rank)
    speed = meta.transfer_gb_s
    resources.transfer_speed, resources.transfer_latency = speed, meta.transfer_time
    if kind == "prefill":
        spans = (
            f"bootstrap_duration={_ms(at.bootstrapped - at.received)}, "
            f"queue_duration={_ms(at.forward - at.bootstrapped)}, "
            f"forward_duration={_ms(at.sent - at.forward)}, transfer_duration={_ms(at.transferred - at.sent)}"
        )
    else:
        spans = (
            f"prealloc_queue_duration={_ms(at.bootstrapped - at.received)}, "
            f"transfer_duration={_ms(at.transferred - at.bootstrapped)}"
        )
    log.info(
        "ReqTimeStats(rid=%s, bootstrap_room=%d, input_len=%d, cached_input_len=%d, output_len=%d, type=%s): "
        "%s, entry_time=%.3f, transfer_speed=%s GB/s, transfer_total=%.2f MB",
        req.rid, req.room, req.prompt_len, req.cached, len(req.output_ids), kind,
        spans, at.received, _speed(speed), meta.transfer_bytes / 1e6,
    )  # fmt: skip


def _speed(gb_s: float) -> str:
    """Format with SGLang's two decimals, or with more where those would show a slow transfer as 0."""
    return f"{gb_s:.2f}" if gb_s >= 0.01 or not gb_s else f"{gb_s:.6f}"


def _ms(seconds: float) -> str:
    return f"{max(0.0, seconds) * 1000:.2f}ms"
