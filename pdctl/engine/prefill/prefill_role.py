"""The prefill role: bootstrap queue → waiting queue → inflight queue → release.

The queues are those of sglang 0.5.23 srt/disaggregation/prefill.py:

bootstrap   the decode side has not sent its page list for the room yet
waiting     it has; the prompt is computed chunk by chunk, and the pages of a chunk are sent as soon as it is done
inflight    the last chunk is on its way, carrying the first token; the pages are ours until it has arrived
draining    the room failed during a write: its pages stay quarantined until no write can touch them
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from pdctl.engine.drill.kv_faults import FaultyTransport
from pdctl.engine.ipc.messages import steady_time
from pdctl.engine.kv_link.kv_frames import MetadataRow
from pdctl.engine.kv_link.room_state import KVPoll, http_status
from pdctl.engine.scheduler.resources import log_failed, log_finished, log_step
from pdctl.engine.scheduler.role import DRAINING, RequestPlace, SchedulerRole, shared_failure
from pdctl.engine.scheduler.schedule_batch import WaitingQueue
from pdctl.engine.transfer.transport import find_layer

if TYPE_CHECKING:
    from pdctl.engine.prefill.prefill_manager import PrefillManager
    from pdctl.engine.prefill.sender import Sender
    from pdctl.engine.scheduler.resources import Req, Resources
    from pdctl.engine.scheduler.schedule_batch import Batch, Outcome

log = logging.getLogger("pdctl.engine")
# Turns (not seconds: every rank must count alike) for which a computed prompt keeps its pages for a late decode.
PATIENCE = 20


class PrefillRole(SchedulerRole):
    """`max_new_tokens` is 1 whatever the client asked for: a prefill only makes the first token."""

    def __init__(self, resources: Resources, manager: PrefillManager) -> None:
        super().__init__(resources)
        self._manager = manager
        self.waiting = WaitingQueue(resources, lambda req: resources.allocate(req, req.prompt_len))
        self.bootstrap: list[Req] = []
        self.inflight: list[Req] = []
        self.draining: list[Req] = []
        self.early = EarlyStarts(resources)

    def add(self, req: Req) -> None:
        req.max_new_tokens = 1
        message = req.message
        host, dp_rank = message.bootstrap_host or "", message.disagg_prefill_dp_rank
        req.sender = self._manager.sender(req.room, req.rid, host, dp_rank)
        self.bootstrap.append(req)
        log_step(req, "bootstrap", input_len=req.prompt_len)

    def poll(self) -> None:
        early = [req for req in self.early.reqs if req not in self.inflight]
        watched = [*self.bootstrap, *self.inflight, *self.draining, *early]
        if not watched:
            return
        polls = self.resources.groups.replica.min_ints([_state_or_drained(req) for req in watched])
        state = dict(zip(map(id, watched), polls, strict=True))
        self._poll_early(state)
        self._poll_bootstrap(state)
        self._poll_inflight(state)
        self._poll_draining(state)

    def _poll_early(self, state: dict[int, int]) -> None:
        """Poll requests that were computed, or are being computed, before their decode was heard from."""
        for req in list(self.early.reqs):
            computed = req in self.inflight
            poll = state[id(req)]
            if poll == KVPoll.FAILED:
                self._withdraw(req)
                self._fail(req, "bootstrap")
            elif poll >= KVPoll.WAITING_FOR_INPUT:
                self.early.end(req)
                req.times.ready = req.times.bootstrapped = steady_time()
                log_step(req, "bootstrapped", bootstrap=req.times.bootstrapped - req.times.received)
                if computed or req.computed:
                    self._send(req, last=computed)
            elif computed and self.early.late(req, wanted=len(self.waiting) > len(self.waiting.started)):
                self.inflight.remove(req)
                self.early.forget(req)
                self.bootstrap.append(req)

    def _withdraw(self, req: Req) -> None:
        self.early.end(req)
        if req in self.waiting:
            self.waiting.remove(req)
        self.inflight = [other for other in self.inflight if other is not req]

    def _poll_bootstrap(self, state: dict[int, int]) -> None:
        left: list[Req] = []
        for req in self.bootstrap:
            poll = state[id(req)]
            if poll == KVPoll.FAILED:
                self._fail(req, "bootstrap")
                continue
            slot = None
            if poll >= KVPoll.WAITING_FOR_INPUT:
                req.times.ready = req.times.ready or steady_time()
                slot = self.resources.metadata.alloc()
            elif not len(self.waiting) and self.early.begin(req):
                self.waiting.add(req)
                log_step(req, "waiting", early=req.attempts)
                continue
            if slot is None:
                left.append(req)
                continue
            req.metadata_slot = slot
            req.times.bootstrapped = steady_time()
            self.waiting.add(req)
            log_step(req, "waiting", bootstrap=req.times.bootstrapped - req.times.received)
        self.bootstrap = left

    def _poll_inflight(self, state: dict[int, int]) -> None:
        left: list[Req] = []
        for req in self.inflight:
            poll = state[id(req)]
            if poll == KVPoll.SUCCESS:
                req.times.transferred = steady_time()
                self.resources.emit(req, req.output_ids[-1:])
                log_finished(req, "prefill", self.resources)  # no client waits for this answer: decode has the token
                self._release(req)
            elif poll == KVPoll.FAILED:
                self._fail(req, "transfer")
            else:
                left.append(req)
        self.inflight = left

    def _poll_draining(self, state: dict[int, int]) -> None:
        """Release the requests that are drained on all ranks: no write from their pages is outstanding."""
        for req in self.draining:
            if state[id(req)]:
                self._release(req)
        self.draining = [req for req in self.draining if req.row >= 0]

    def next_batch(self) -> Batch | None:
        room_for = self.resources.args.max_running_requests - len(self.inflight)
        return self.waiting.next_batch(max(0, room_for))

    def began(self, batch: Batch) -> None:
        """Send pages found in the prefix cache while the rest is computed (sglang: early send of a cached prefix)."""
        for req, _ in batch.parts:
            if req.computed and not req.sent_pages:
                self._send(req, last=False)

    def process_result(self, outcome: Outcome) -> None:
        self.waiting.end_pass()
        for req, _ in outcome.batch.parts:
            if not req.failed:
                self.resources.keep(req)
        self.inflight.extend(outcome.made)

    def publish(self, outcome: Outcome) -> None:
        """Send the pages of this pass while the next one computes."""
        for req, _ in outcome.batch.parts:
            if not req.failed:
                self._send(req, last=bool(req.output_ids))

    def _send(self, req: Req, last: bool) -> None:
        """Hand the pages that are complete (all of them, with the metadata row, when `last`) to the sender."""
        if req.early:
            return  # there is no decode to send to yet
        whole = len(req.pages) if last else req.computed // self.resources.page_size
        pages = req.pages[req.sent_pages : whole]
        req.sent_pages = whole
        metadata = b""
        if last:
            self.reached("prefill.before_metadata", req)
            metadata = _row(req).encode()
            req.times.sent = steady_time()
        elif not len(pages):
            return
        self._break_off(req)
        _sender(req).send(pages, last, metadata)
        if not last:
            self.reached("prefill.after_chunk", req)
        log_step(req, "inflight" if last else "chunk", pages=len(pages), computed=req.computed)

    def _break_off(self, req: Req) -> None:
        """Make the next write, on the manager's thread, stop half-way if PDCTL_FAULTS asks for it."""
        if self.faults is None or (fault := self.faults.hit("prefill.write", req.room)) is None:
            return
        transport = find_layer(self._manager.transport, FaultyTransport)
        if transport is not None:
            transport.breaks_off = partial(self.faults.happen, fault)

    def _fail(self, req: Req, stage: str) -> None:
        failure = shared_failure(self.resources.groups.replica, _sender(req).failure)
        reason = failure.message if failure else "Failed due to an unknown reason from another rank"
        code = failure.code if failure else "peer_rank"
        log_failed(req, f"Prefill {stage} failed", "req", self.resources.tp_rank, reason)
        self.resources.fail(req, f"Prefill {stage} failed: {reason}", http_status(code), code)
        _sender(req).abort(reason, code)  # if only another rank of the group failed, nothing else tells our sender
        self._drain(req)

    def _drain(self, req: Req) -> None:
        """Free at once what was never handed to the sender; otherwise wait until its writes are known to be over."""
        if req.sent_pages:
            self.draining.append(req)
        else:
            self._release(req)

    def _release(self, req: Req) -> None:
        self.resources.release(req)
        _sender(req).clear()

    def give_up(self, req: Req, name: str) -> None:
        del name
        if req.early:
            self.early.end(req)
        _sender(req).abort("Aborted by AbortReq.")
        self.resources.cancel(req)
        log_step(req, "aborted")
        self._drain(req)

    def places(self) -> dict[str, RequestPlace]:
        return {
            "bootstrap": self.bootstrap,
            "waiting": self.waiting,
            "inflight": self.inflight,
            DRAINING: self.draining,
        }


def _row(req: Req) -> MetadataRow:
    if not req.logprobs:
        return MetadataRow(req.room, req.output_ids[0], req.cached)
    top = tuple(req.top_logprobs[0]) if req.top_logprobs else ()
    return MetadataRow(req.room, req.output_ids[0], req.cached, req.logprobs[0], top)


def _sender(req: Req) -> Sender:
    if req.sender is None:
        raise AssertionError(f"room {req.room} has no sender")
    return req.sender


def _state_or_drained(req: Req) -> int:
    """Return where the room stands on this rank; of a failed request, 1 if its writes are over here, else 0."""
    sender = _sender(req)
    if req.failed:
        return int(sender.drained)
    return sender.poll()


class EarlyStarts:
    """Optimistic prefill: requests let into the waiting queue before their decode was heard from.

    The handshake then takes place during the forward pass instead of before it (sglang 0.5.18+
    --optimistic-prefill-attempts; off without it). Nothing is sent before the decode's page list is here. A request
    whose page list does not come returns its pages (the prefix cache keeps what was computed) and waits for the list
    in the bootstrap queue like any other.
    """

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._attempts = resources.args.optimistic_prefill_attempts
        self.reqs: list[Req] = []

    def begin(self, req: Req) -> bool:
        """Start `req` now if it has attempts left and gets a metadata slot; return whether it does."""
        if req.attempts >= self._attempts:
            return False
        slot = self._resources.metadata.alloc()
        if slot is None:
            return False
        req.metadata_slot = slot
        req.attempts += 1
        req.early, req.held_turns = True, 0
        self.reqs.append(req)
        return True

    def end(self, req: Req) -> None:
        """End the early start: `req` is bootstrapped, gone, or back in the bootstrap queue."""
        req.early = False
        self.reqs.remove(req)

    def late(self, req: Req, wanted: bool) -> bool:
        """Count a turn for which `req` has waited with its prompt computed; return whether it must return its pages.

        `wanted`: a request whose decode is ready could use them.
        """
        req.held_turns += 1
        return wanted or req.held_turns > PATIENCE

    def forget(self, req: Req) -> None:
        """Reset `req` to its beginning: what it computed stays in the prefix cache, if there is one."""
        self.end(req)
        self._resources.release(req)
        req.computed = req.sent_pages = req.cached = 0
        req.output_ids.clear()
        req.logprobs.clear()
        req.top_logprobs.clear()
        req.finish = None
        log.info("Req %s optimistic prefill yielded (%d/%d attempts used)", req.rid, req.attempts, self._attempts)
        if req.attempts == self._attempts:
            log.info("Req %s exhausted optimistic prefill attempts falling back to bootstrap queue", req.rid)
