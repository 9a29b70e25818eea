"""The scheduler's log lines: SGLang's own where there is one, and a line of ours for every other step of a room.

SGLang (0.5.23) writes no INFO line for a healthy room; ours start with `Room step:`, so that a reader can tell.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdctl.engine.scheduler.resources import Req, Resources
    from pdctl.engine.scheduler.schedule_batch import Outcome

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


class BatchLog:
    """SGLang's periodic lines: one for every prefill pass, one for every `decode_log_interval` decode passes."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._passes = 0
        self._tokens = 0
        self._since = time.perf_counter()
        self.throughput = 0.0
        self.hit_rate = 0.0  # of the last prefill batch, as in sglang

    def passed(self, outcome: Outcome, queues: Queues, running_tokens: int) -> None:
        """Take note of a forward pass. Only attention-TP rank 0 logs it, as in sglang."""
        if not self._resources.leader:
            return
        if outcome.batch.prefill:
            self._prefill(outcome, queues)
            return
        self._tokens += len(outcome.batch.parts)
        self._passes += 1
        if self._passes % self._resources.args.decode_log_interval == 0:
            self._decode(queues, running_tokens)

    def usage(self) -> float:
        """Return the share of the pool's pages in use, without those that only the prefix cache keeps."""
        return self._resources.held_pages / self._resources.num_pages

    def _prefill(self, outcome: Outcome, queues: Queues) -> None:
        batch, seconds = outcome.batch, outcome.seconds
        new = [part.req for part in batch.parts if part.req.computed == part.req.cached + part.extend]
        cached = sum(req.cached for req in new)
        self.hit_rate = cached / (cached + batch.tokens)
        log.info(
            "Prefill batch, #new-seq: %d, #new-token: %d, #cached-token: %d, token usage: %.2f, #running-req: %d, "
            "#queue-req: %d, #bootstrap-req: %d, #inflight-req: %d, input throughput (token/s): %.2f",
            len(new), batch.tokens, cached, self.usage(), queues.running, queues.waiting, queues.bootstrap,
            queues.inflight, batch.tokens / seconds if seconds else 0.0,
        )  # fmt: skip

    def _decode(self, queues: Queues, running_tokens: int) -> None:
        now = time.perf_counter()
        self.throughput = self._tokens / (now - self._since)
        self._tokens, self._since = 0, now
        log.info(
            "Decode batch, #running-req: %d, #token: %d, token usage: %.2f, #prealloc-req: %d, #transfer-req: %d, "
            "#retracted-req: %d, gen throughput (token/s): %.2f, #queue-req: %d",
            queues.running, running_tokens, self.usage(), queues.prealloc, queues.transfer,
            queues.retracted, self.throughput, queues.waiting,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Queues:
    """Requests in each queue, under the names of sglang's log lines and /v1/loads."""

    running: int = 0
    waiting: int = 0
    bootstrap: int = 0
    inflight: int = 0
    prealloc: int = 0
    transfer: int = 0
    draining: int = 0
    retracted: int = 0

    @property
    def total(self) -> int:
        queued = self.waiting + self.bootstrap + self.inflight + self.prealloc + self.transfer + self.retracted
        return self.running + queued

    @property
    def remote(self) -> int:
        """Requests that wait for the other side: only these need polling."""
        return self.bootstrap + self.inflight + self.prealloc + self.transfer + self.draining
