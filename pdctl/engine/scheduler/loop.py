"""The event loop of a rank: take requests, poll the other side, run one forward pass, send tokens; sleep when idle."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from pdctl.engine.messages import Abort, Ask, Flush, Flushed, Generate, Outputs, Report, Request, Stop
from pdctl.engine.scheduler.batch import IDLE, run
from pdctl.engine.scheduler.report import BatchLog
from pdctl.engine.scheduler.turn import Turn

if TYPE_CHECKING:
    from pdctl.engine.scheduler.mailbox import Mailbox
    from pdctl.engine.scheduler.request import Req
    from pdctl.engine.scheduler.resources import Resources
    from pdctl.engine.scheduler.role import Role

log = logging.getLogger("pdctl.engine")

IDLE_WAIT = 5.0  # seconds between self-checks of an idle rank
# A room that waits for the other side is woken by its KV manager; this bound only serves the deadlines.
REMOTE_WAIT = 0.05


class Scheduler:
    """One per rank. Every rank of a TP group runs the same turns; only rank 0 talks to the tokenizer manager."""

    def __init__(self, resources: Resources, role: Role, mailbox: Mailbox) -> None:
        self._resources = resources
        self._role = role
        self._mailbox = mailbox
        self._batches = BatchLog(resources)
        self._turn = Turn(resources.groups)
        self._leader = resources.leader
        self._stopping = False
        self._started = time.time()
        self._served = 0
        self._aborted = 0

    def run(self) -> None:
        """Until a Stop; requests at hand are finished first unless it says `now`."""
        busy = False
        while True:
            for request in self._mailbox.receive(self._wait(busy)):
                self._handle(request)
            self._role.poll()
            self._flush()  # a first token that came with the KV cache does not wait for the next forward pass
            batch = self._role.next_batch()
            shares = self._turn.agree(batch)
            busy = batch is not None or any(share.tokens for share in shares)
            if busy:
                began = time.perf_counter()
                run(batch or IDLE, self._resources, shares)
            if batch is not None:
                self._role.settle(batch)
                self._batches.passed(batch, self._role.queues(), self._role.running.tokens, time.perf_counter() - began)
            self._flush()
            queues = self._role.queues()
            if not queues.total and not queues.draining:
                self._resources.check_idle()
                if self._stopping:
                    return

    def _wait(self, busy: bool) -> float:
        if busy or self._stopping:
            return 0.0 if busy else REMOTE_WAIT
        return REMOTE_WAIT if self._role.queues().remote else IDLE_WAIT

    def _handle(self, request: Request) -> None:
        if isinstance(request, Generate):
            self._served += 1
            self._role.admit(request)
        elif isinstance(request, Abort):
            self._abort(request)
        elif isinstance(request, Flush):
            self._flush_cache(request)
        elif isinstance(request, Ask):
            self._answer(request)
        elif isinstance(request, Stop):
            self._stopping = True
            if request.now:
                self._abort(Abort(all=True))

    def _abort(self, request: Abort) -> None:
        """sglang 0.5.23: a rid aborts every request whose id starts with it; an empty one is ignored."""
        if not request.all and not request.rid:
            log.warning("Ignoring abort with empty rid")
            return

        def match(req: Req) -> bool:
            return request.all or (req.rid == request.rid if request.exact else req.rid.startswith(request.rid))

        count = self._role.abort(match)
        self._aborted += count
        if count:
            log.info("Aborted %d request(s) matching rid='%s'", count, "*" if request.all else request.rid)

    def _flush_cache(self, request: Flush) -> None:
        total = self._role.queues().total
        reason = f"{total} request(s) are running or queued" if total else ""
        self._reply(Flushed(request.id, not total, reason))

    def _answer(self, request: Ask) -> None:
        self._reply(Report(request.id, self._resources.dp_rank or 0, self._state(), self._load()))

    def _state(self) -> dict[str, str | int | float | bool | None]:
        resources = self._resources
        return {
            "max_total_num_tokens": resources.capacity,
            "last_gen_throughput": self._batches.throughput,
            "effective_max_running_requests_per_dp": resources.args.max_running_requests,
            "free_pages": resources.allocator.free_pages,
            "num_pages": resources.num_pages,
            "free_metadata_slots": resources.metadata.free_slots,
            "uptime": time.time() - self._started,
        }

    def _load(self) -> dict[str, float]:
        """Keys of sglang 0.5.23's /v1/loads, flat; the HTTP side nests them."""
        queues = self._role.queues()
        used = self._resources.allocator.used_pages * self._resources.page_size
        return {
            "num_running_reqs": queues.running,
            "num_waiting_reqs": queues.waiting + queues.bootstrap + queues.prealloc,
            "num_used_tokens": used,
            "max_total_num_tokens": self._resources.capacity,
            "token_usage": self._batches.usage(),
            "gen_throughput": self._batches.throughput if queues.running else 0.0,
            "max_running_requests": self._resources.args.max_running_requests,
            "queue_waiting": queues.waiting,
            "prefill_bootstrap_queue_reqs": queues.bootstrap,
            "prefill_inflight_queue_reqs": queues.inflight,
            "decode_prealloc_queue_reqs": queues.prealloc,
            "decode_transfer_queue_reqs": queues.transfer,
            "draining_reqs": queues.draining,
            "kv_transfer_speed_gb_s": self._resources.transfer_speed,
            "kv_transfer_latency_ms": self._resources.transfer_latency * 1e3,
            "num_served_reqs": self._served,
            "num_aborted_reqs": self._aborted,
        }

    def _reply(self, reply: Report | Flushed) -> None:
        if self._leader:
            self._mailbox.send(reply)

    def _flush(self) -> None:
        outbox = self._resources.outbox
        if outbox and self._leader:
            self._mailbox.send(Outputs(list(outbox), self._resources.dp_rank or 0))
        outbox.clear()
