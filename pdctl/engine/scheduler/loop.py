"""The event loop of a rank: take requests, poll the other side, run one forward pass, send tokens; sleep when idle.

All attention DP groups that share a TP group agree on each turn. Their MLP and expert layers are computed together:
when one group has a batch, the others join its forward pass with no tokens of their own (sglang 0.5.23
prepare_mlp_sync_batch).

Overlap: a pass computes on a thread of its own while the results of the previous one are passed on. Tokens are encoded
and sent, pages given to the KV sender, requests taken in and rooms polled while torch computes (it releases the GIL).
The next pass is put together only when the tokens of the last one are known, so no request ever runs a step too many,
as it may in sglang 0.5.23's overlap, and nothing has to be undone.

For a small pass, a change of threads costs more than it gains (tests/bench/overlap.py). So it does for any pass during
which there is nothing to pass on: it runs on another core than the one that has the weights of the last pass in its
cache (9.2 instead of 7.4 ms for 256 tokens). Such passes stay on the loop's own thread.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from pdctl import open_files
from pdctl.engine.drill import fault_points
from pdctl.engine.ipc.messages import (
    AbortRequest,
    Ask,
    AskRooms,
    Flush,
    Flushed,
    Generate,
    Outputs,
    Request,
    Rooms,
    SchedulerReport,
    Stop,
    Switched,
    SwitchRole,
    steady_time,
)
from pdctl.engine.model.forward_pass import Share
from pdctl.engine.scheduler.role import QueuedTokens, WorkCounters, live_rooms
from pdctl.engine.scheduler.schedule_batch import IDLE, Batch, Outcome, Pass, compute, conclude, prepare, run
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from pdctl.engine.model.model_runner import Sampled
    from pdctl.engine.model.parallel import Groups
    from pdctl.engine.scheduler.pace import PassPace
    from pdctl.engine.scheduler.rank_mailbox import Mailbox
    from pdctl.engine.scheduler.resources import Req, Resources
    from pdctl.engine.scheduler.role import Queues, RoleSwitch, SchedulerRole

log = logging.getLogger("pdctl.engine")

IDLE_WAIT = 5.0  # seconds between self-checks of an idle rank
# The KV manager wakes a rank whose rooms wait for the other side; this limit is only needed for deadlines.
REMOTE_WAIT = 0.05
RECENT = 16  # prefill passes whose cache hits tell what to expect of the prompts that wait
WORTH_A_THREAD = 4e8  # tokens of a pass × bytes of the checkpoint: a pass of some 5 ms on one CPU core


class Scheduler:
    """One per rank. Every rank of a TP group runs the same turns; only leaders of DP groups reply."""

    def __init__(
        self, resources: Resources, role: SchedulerRole, mailbox: Mailbox, switch: RoleSwitch | None = None
    ) -> None:
        """`switch`: None if the rank may not switch roles."""
        self._resources = resources
        self._switch = switch
        self._role = role
        self._mailbox = mailbox
        self._batches = BatchLog(resources)
        self._turn = Turn(resources.groups)
        self._overlap = Overlap(resources)
        self._pace = _pace_of(resources)
        self._leader = resources.leader
        self._stopping = False
        self._started = steady_time()
        self._reach = fault_points.raiser("thread.scheduler", resources.tp_rank)
        self._served = 0
        self._aborted = 0

    def run(self) -> None:
        """Run until a Stop; current requests are finished first unless it says `now`."""
        try:
            agreed: Agreed | None = None
            while agreed is None or not agreed.stopping or agreed.busy or agreed.held:
                agreed = self._take_turn(agreed)
        finally:
            self._overlap.close()

    def _take_turn(self, last: Agreed | None) -> Agreed:
        """While a pass is under way, do everything else except choosing the next one."""
        for request in self._mailbox.receive(self._wait(last)):
            self._handle(request)
        if self._reach is not None:
            self._reach()
        if self._pace is not None and last is not None and self._pace.holds(self._overlap.live):
            self._flush()
            return last
        self._role.poll()
        self._flush()  # a first token that came with the KV cache does not wait for the next forward pass
        ended = self._end_pass()
        if self._pace is not None:  # the next pass is in no hurry, the tokens are
            self._publish(ended)
            ended = None
        batch = self._role.next_batch()
        queues = self._role.queues()
        agreed = self._turn.agree(batch, queues, self._stopping)
        if agreed.busy and self._pace is not None:
            self._pace.begin(batch or IDLE, follows=last is not None and last.busy)
        overlapped = batch is not None and self._overlap.takes(batch, queues.total)
        if batch is not None and overlapped:
            self._overlap.begin(batch)
        if batch is not None:
            self._role.began(batch)
        self._publish(ended)
        if agreed.busy and not overlapped:
            self._run(batch or IDLE, agreed)
        if not agreed.busy:
            self._batches.work.pause()
        queues = self._role.queues()
        if not queues.total and not queues.draining and not self._overlap.under_way:
            self._resources.check_idle()
        return agreed

    def _run(self, batch: Batch, agreed: Agreed) -> None:
        """Run a pass without overlap."""
        if self._pace is not None:  # which says when it ends
            self._overlap.compute(batch, agreed.shares)
            return
        outcome = run(batch, self._resources, agreed.shares)
        if batch.parts:
            self._role.process_result(outcome)
            self._publish(outcome)

    def _end_pass(self) -> Outcome | None:
        ended = self._overlap.end()
        if ended is None or not ended.batch.parts:
            return None
        self._role.process_result(ended)
        return ended

    def _finish_pass(self) -> None:
        """End the pass under way; not before its time while requests wait for what it makes."""
        if self._pace is None or not self._overlap.live:
            self._publish(self._end_pass())

    def _publish(self, outcome: Outcome | None) -> None:
        if outcome is not None:
            self._role.publish(outcome)
            self._flush()
            self._batches.passed(outcome, self._role.queues(), self._role.running.tokens)

    def _wait(self, agreed: Agreed | None) -> float:
        if self._pace is not None and self._overlap.under_way:
            return self._pace.wait
        if agreed is None or agreed.busy:
            return 0.0
        return REMOTE_WAIT if agreed.remote or self._stopping else IDLE_WAIT

    def _handle(self, request: Request) -> None:
        if isinstance(request, Generate):
            self._served += 1
            self._role.admit(request)
        elif isinstance(request, AbortRequest):
            self._abort(request)
        elif isinstance(request, Flush):
            self._flush_cache(request)
        elif isinstance(request, Ask):
            self._answer(request)
        elif isinstance(request, AskRooms):
            self._reply(Rooms(request.id, self._resources.dp_rank or 0, live_rooms(self._role)))
        elif isinstance(request, Stop):
            self._stopping = True
            if request.now:
                self._abort(AbortRequest(all=True))
        elif isinstance(request, SwitchRole):
            self._switch_role(request)

    def _switch_role(self, request: SwitchRole) -> None:
        if self._switch is None:
            raise AssertionError("the HTTP process asks only ranks that may switch")
        self._finish_pass()
        self._role, answer = self._switch.take(request, self._role)
        self._reply(answer)

    def _abort(self, request: AbortRequest) -> None:
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
        self._finish_pass()  # aborted requests may still be in the pass, with their pages
        total = self._role.queues().total
        reason = f"{total} request(s) are running or queued" if total else ""
        if not total:
            self._resources.forget()
        self._reply(Flushed(request.id, not total, reason))

    def _answer(self, request: Ask) -> None:
        self._reply(SchedulerReport(request.id, self._resources.dp_rank or 0, self._state(), self._load()))

    def _state(self) -> dict[str, str | int | float | bool | None]:
        resources = self._resources
        return {
            "disaggregation_mode": resources.args.disaggregation_mode,  # the current one
            "max_total_num_tokens": resources.capacity,
            "last_gen_throughput": self._batches.throughput,
            "effective_max_running_requests_per_dp": resources.args.max_running_requests,
            "free_pages": resources.available_pages,
            "cached_pages": resources.prefix.pages if resources.prefix else 0,
            "num_pages": resources.num_pages,
            "free_metadata_slots": resources.metadata.free_slots,
            "uptime": steady_time() - self._started,
            "open_files": open_files.count(),
            "max_open_files": open_files.limit(),
        }

    def _load(self) -> dict[str, float]:
        """Keys of sglang 0.5.23's /v1/loads, flat; the HTTP side nests them."""
        queues = self._role.queues()
        resources, size = self._resources, self._resources.page_size
        used = resources.held_pages * size
        queued = QueuedTokens.of(self._role, self._batches.recent_hit_rate)
        moving = [req.times.bootstrapped for queue, req in self._role.members() if queue == "transfer"]
        elsewhere = queues.bootstrap + queues.prealloc + queues.transfer + queues.retracted
        return {
            "num_running_reqs": queues.running,
            "num_waiting_reqs": queues.waiting + elsewhere,
            "num_waiting_uncached_tokens": queued.uncached,
            "num_used_tokens": used,
            "num_total_tokens": used + queued.without_pages,
            "num_active_tokens": max(0, used + queued.without_pages - queued.awaiting_kv),
            "num_prealloc_ready_tokens": queued.prealloc_ready,
            "prealloc_ready_reqs": queued.prealloc_ready_reqs,
            "decode_sum_seq_lens": self._role.running.tokens,
            **self._batches.work.totals(),
            "max_total_num_tokens": self._resources.capacity,
            "token_usage": self._batches.usage(),
            "kv_available_tokens": resources.allocator.free_pages * size,
            "kv_evictable_tokens": (resources.available_pages - resources.allocator.free_pages) * size,
            "pending_prealloc_token_usage": queued.prealloc / resources.capacity,
            "gen_throughput": self._batches.throughput if queues.running else 0.0,
            "max_running_requests": self._resources.args.max_running_requests,
            "queue_waiting": queues.waiting,
            "prefill_bootstrap_queue_reqs": queues.bootstrap,
            "prefill_inflight_queue_reqs": queues.inflight,
            "decode_prealloc_queue_reqs": queues.prealloc,
            "decode_transfer_queue_reqs": queues.transfer,
            "decode_transfer_wait_s": steady_time() - min(moving) if moving else 0.0,
            "decode_retracted_queue_reqs": queues.retracted,
            "cache_hit_rate": self._batches.hit_rate,
            "draining_reqs": queues.draining,
            "decode_draining_reqs": queues.draining if resources.args.disaggregation_mode == "decode" else 0,
            "kv_transfer_speed_gb_s": self._resources.transfer_speed,
            "kv_transfer_latency_ms": self._resources.transfer_latency * 1e3,
            "num_served_reqs": self._served,
            "num_aborted_reqs": self._aborted,
        }

    def _reply(self, reply: SchedulerReport | Rooms | Flushed | Switched) -> None:
        if self._leader:
            self._mailbox.send(reply)

    def _flush(self) -> None:
        outbox = self._resources.outbox
        if outbox and self._leader:
            self._mailbox.send(Outputs(list(outbox), self._resources.dp_rank or 0))
        outbox.clear()
        for note in self._resources.afterwards:
            note()
        self._resources.afterwards.clear()


def _pace_of(resources: Resources) -> PassPace | None:
    """Return what holds passes back, if that was asked for: without it none of its code is loaded."""
    if not resources.args.pace:
        return None
    from pdctl.engine.scheduler.pace import PassPace

    return PassPace(resources.args.pace, resources.groups)


class Agreed(NamedTuple):
    """What all groups of the replica agree on for this turn; without attention DP there is one group.

    shares    what each group contributes to the pass, in rank order; () without attention DP
    busy      some group has a batch: all run the pass
    remote    some group waits for the other side: the leader must poll again soon
    held      requests of all groups that have not ended, or still hold pages
    stopping  every group has been told to stop
    """

    shares: tuple[Share, ...]
    busy: bool
    remote: bool
    held: int
    stopping: bool


class Turn:
    """Collective over the attention DP groups; without attention DP there is no communication."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    def agree(self, batch: Batch | None, queues: Queues, stopping: bool) -> Agreed:
        """Every rank of the replica calls this once a turn, with `queues` as they are before the pass."""
        held = queues.total + queues.draining
        peers = self._groups.attn_dp
        if peers.size == 1:
            return Agreed((), batch is not None, queues.remote > 0, held, stopping)
        own = (batch.tokens, len(batch.parts), int(batch.prefill)) if batch else (0, 0, 0)
        told = peers.gather_ints((*own, int(queues.remote > 0), held, int(stopping)))
        shares = tuple(Share(tokens, seqs, bool(prefill)) for tokens, seqs, prefill, *_ in told)
        return Agreed(
            shares,
            any(share.tokens for share in shares),
            any(row[3] for row in told),
            sum(row[4] for row in told),
            all(row[5] for row in told),
        )


class Overlap:
    """At most one pass is under way. Off with pipeline stages or attention DP groups, which compute in step."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        groups = resources.groups
        self._enabled = not resources.args.disable_overlap_schedule and groups.attn_dp.size == 1 and groups.pp.size == 1
        self._weights = sum(file.stat().st_size for file in Path(resources.args.model_path).glob("*.safetensors"))
        self._reach = fault_points.raiser("thread.forward", resources.tp_rank)
        self.threshold = WORTH_A_THREAD if self._reach is None else 0  # a rehearsed fault must hit small models, too
        self.lone = False  # whether to take a pass even if it completes everything the rank holds
        # OpenMP counts threads per thread: without this, a pass here would use every core, whatever --num-threads says.
        self._thread = ThreadPoolExecutor(1, "forward", torch.set_num_threads, (torch.get_num_threads(),))
        self._pass: tuple[Pass, Future[Sampled | None]] | None = None

    @property
    def under_way(self) -> bool:
        return self._pass is not None

    @property
    def live(self) -> bool:
        """Whether a request of the pass under way has not been aborted."""
        return self._pass is not None and any(part.req.finish is None for part in self._pass[0].batch.parts)

    def takes(self, batch: Batch, held: int) -> bool:
        """Return whether `batch` is worth a thread: large enough, and not all that the rank holds (`held` requests).

        Every rank of the group decides alike: no clock is read.
        """
        others = self.lone or held > len(batch.parts) or not all(part.completes for part in batch.parts)
        return self._enabled and others and batch.tokens * self._weights >= self.threshold

    def begin(self, batch: Batch) -> None:
        if self._pass is not None:
            raise AssertionError("a forward pass is under way already")
        prepared = prepare(batch, self._resources.eos)
        self._pass = prepared, self._thread.submit(self._compute, prepared)

    def compute(self, batch: Batch, shares: tuple[Share, ...]) -> None:
        """Compute a pass on this thread, as one that is under way until `end`."""
        prepared = prepare(batch, self._resources.eos, shares)
        computed: Future[Sampled | None] = Future()
        computed.set_result(compute(prepared, self._resources))
        self._pass = prepared, computed

    def _compute(self, prepared: Pass) -> Sampled | None:
        if self._reach is not None:
            self._reach()
        return compute(prepared, self._resources)

    def end(self) -> Outcome | None:
        """Wait for the pass under way, if any, and return its outcome; raise what it raised."""
        if self._pass is None:
            return None
        (prepared, future), self._pass = self._pass, None
        return conclude(prepared, future.result(), self._resources)

    def close(self) -> None:
        self._thread.shutdown()


class BatchLog:
    """SGLang's periodic lines: one for every prefill pass, one for every `decode_log_interval` decode passes."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._passes = 0
        self._tokens = 0
        self._since = time.perf_counter()
        self.throughput = 0.0
        self.hit_rate = 0.0  # of the last prefill batch, as in sglang
        self.work = WorkCounters()
        self._recent: deque[tuple[int, int]] = deque(maxlen=RECENT)  # tokens cached and computed, of prefill passes

    def passed(self, outcome: Outcome, queues: Queues, running_tokens: int) -> None:
        """Take note of a forward pass. Only attention-TP rank 0 logs it, as in sglang."""
        if not self._resources.leader:
            return
        if not all(part.req.probe for part in outcome.batch.parts):
            self.work.add(outcome)
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

    @property
    def recent_hit_rate(self) -> float:
        """The share of prompt tokens found in the cache, of the last RECENT prefill passes."""
        cached = sum(hits for hits, _ in self._recent)
        return cached / (cached + sum(computed for _, computed in self._recent)) if cached else 0.0

    def _prefill(self, outcome: Outcome, queues: Queues) -> None:
        batch, seconds = outcome.batch, outcome.ended - outcome.began
        new, cached = batch.begun, batch.cached
        self._recent.append((cached, batch.tokens))
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
