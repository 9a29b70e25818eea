"""The decode role: prealloc queue → transfer queue → running batch (sglang 0.5.23 srt/disaggregation/decode.py).

prealloc   the handshake is under way, or there is no memory yet; once both are there pages are reserved and announced.
           A room that has had no pages or slot for the waiting time-out fails: its prefill has given it up by then
transfer   the prefill writes into our pages; the last message carries the metadata row with the first token
running    continuous batching; the prompt is never computed again
draining   the room failed after we announced pages: they stay quarantined until the prefill has stopped, or 30 s
"""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from pdctl.engine.ipc.messages import Drained, Tokens, steady_time
from pdctl.engine.kv_link.kv_frames import ContextCorruptionError, MetadataRow, believed_row
from pdctl.engine.kv_link.room_state import Failure, FakeReceiver, KVPoll, http_status, timed_out
from pdctl.engine.scheduler.resources import log_failed, log_finished, log_step
from pdctl.engine.scheduler.role import DRAINING, RequestPlace, SchedulerRole, shared_failure

if TYPE_CHECKING:
    from pdctl.engine.decode.decode_manager import DecodeManager
    from pdctl.engine.decode.receiver import Receiver
    from pdctl.engine.scheduler.resources import Req, Resources
    from pdctl.engine.scheduler.schedule_batch import Batch, Outcome

log = logging.getLogger("pdctl.engine")

# The share of the grace period after which a release counts as a timeout: a live prefill has stopped after half of the
# period (DisaggConfig.write_grace).
TIMED_OUT = 0.9
LATE = 5.0  # seconds after which a room in the transfer queue counts as late
LATE_SAID_EVERY = 10.0  # seconds between log lines about slots that late rooms hold


class DecodeRole(SchedulerRole):
    """Reserves the prompt's pages, and room for the answer to begin, before a prefill may write (Admission)."""

    def __init__(self, resources: Resources, manager: DecodeManager) -> None:
        super().__init__(resources)
        self._manager = manager
        self._drain_grace = manager.config.drain_grace
        self._waiting_timeout = manager.config.waiting_timeout
        args = resources.args
        # Where a request without a port is sent. Outside a rehearsal it is refused long before it gets here.
        self._default_port = args.disaggregation_bootstrap_port if args.rehearsal.null_port_fallback else 0
        self.prealloc: deque[Req] = deque()
        self.transfer: list[Req] = []
        self.draining: list[Req] = []
        self._late_said = 0.0

    def add(self, req: Req) -> None:
        host, port = req.message.bootstrap_host or "", req.message.bootstrap_port or self._default_port
        dp_rank = req.message.disagg_prefill_dp_rank
        req.receiver = self._manager.receiver(req.room, req.rid, host, port, dp_rank)
        self.prealloc.append(req)
        log_step(req, "prealloc", bootstrap_addr=f"{host}:{port}")

    def poll(self) -> None:
        watched = [*self.prealloc, *self.transfer, *self.draining]
        if not watched:
            return
        polls = self.resources.groups.replica.min_ints([self._state_or_drained(req) for req in watched])
        state = dict(zip(map(id, watched), polls, strict=True))
        self._poll_transfer(state)
        self._poll_draining(state)
        self._poll_prealloc(state)

    def _poll_prealloc(self, state: dict[int, int]) -> None:
        """Reserve pages in order of arrival: the first ready room that does not fit blocks the rest (sglang's rule)."""
        blocked = bool(self.running.retracted)  # requests that ran before go first
        left: deque[Req] = deque()
        for req in self.prealloc:
            poll = state[id(req)]
            if poll == KVPoll.FAILED:
                self._fail(req, "handshake")
            elif poll < KVPoll.WAITING_FOR_INPUT:
                left.append(req)
            else:
                req.times.ready = req.times.ready or steady_time()
                blocked = blocked or not self._reserve(req)
                if blocked:
                    self._abort_overdue(req, before=len(left))
                    left.append(req)
                else:
                    self._announce(req)
        self.prealloc = left

    def _abort_overdue(self, req: Req, before: int) -> None:
        """Fail a room that has waited too long behind `before` others; the ranks agree on that in a later turn."""
        waited, limit = steady_time() - req.times.ready, self._waiting_timeout
        if waited < limit:
            return
        resources = self.resources
        missing = (
            f"no pages or slot on this decode: {resources.available_pages} of {resources.num_pages} pages are free, "
            f"{len(self.running) + len(self.transfer)} of {resources.args.max_running_requests} slots taken, "
            f"{before} rooms come before it"
        )
        failure = timed_out(req.room, waited, limit, KVPoll.WAITING_FOR_INPUT, missing)
        _receiver(req).abort(failure.message, failure.code)

    def _reserve(self, req: Req) -> bool:
        resources = self.resources
        if len(self.running) + len(self.transfer) >= resources.args.max_running_requests:
            self._say_late()
            return False
        return self.running.admission.admit(req, [*self.running, *self.transfer], fresh=req.fake)

    def _say_late(self) -> None:
        """Say which rooms hold the slots, if half of these wait for KV cache: nothing else tells why others wait.

        A prefill that has no request with a room and one that is slow look alike from here until the time-out.
        """
        now, slots = steady_time(), self.resources.args.max_running_requests
        if now < self._late_said + LATE_SAID_EVERY or not self.resources.leader:
            return
        late = [req for req in self.transfer if now - req.times.bootstrapped > LATE]
        if 2 * len(late) < slots:
            return
        self._late_said = now
        longest = min(late, key=lambda req: req.times.bootstrapped)
        message = longest.message
        log.warning(
            "No slot for %d room(s): %d of %d are held by rooms without their KV cache for more than %g s, the longest "
            "by room=%d rid='%s' for %.1f s: has prefill %s:%s a request with it?",
            *(len(self.prealloc), len(late), slots, LATE, longest.room, longest.rid),
            *(now - longest.times.bootstrapped, message.bootstrap_host, message.bootstrap_port or self._default_port),
        )

    def _announce(self, req: Req) -> None:
        req.times.bootstrapped = steady_time()
        pages = req.pages[req.kept_pages : self.resources.pages_for(req.prompt_len)]
        _receiver(req).send_metadata(pages, req.kept_pages)
        self.transfer.append(req)
        self.reached("decode.after_announce", req)
        log_step(req, "transfer", pages=len(pages), prealloc=req.times.bootstrapped - req.times.received)

    def _poll_transfer(self, state: dict[int, int]) -> None:
        left: list[Req] = []
        for req in self.transfer:
            poll = state[id(req)]
            if poll >= KVPoll.TRANSFERRING:
                self.reached("decode.transfer", req)
            if poll == KVPoll.SUCCESS:
                self._merge(req)
            elif poll == KVPoll.FAILED:
                self._fail(req, "transfer")
            else:
                left.append(req)
        self.transfer = left

    def _merge(self, req: Req) -> None:
        """The pages are here: take the first token from the metadata row and join the running batch."""
        resources = self.resources
        self.reached("decode.after_arrival", req)
        row = self._row(req)
        req.times.transferred = req.times.first_token = steady_time()
        req.computed, req.cached = req.prompt_len, row.cached_tokens
        if req.message.return_logprob:
            req.logprobs.append(row.logprob)
            req.top_logprobs.append(list(row.top_logprobs))
        req.append(row.output_id, resources.eos, resources.limit)
        resources.emit(req, req.output_ids[-1:])
        resources.afterwards.append(partial(log_finished, req, "decode", resources))
        _receiver(req).clear()
        if req.finish is None:
            self.running.join(req)
            waited = req.times.transferred - req.times.bootstrapped
            resources.afterwards.append(partial(log_step, req, "running", transfer=waited))
        else:
            resources.release(req)

    def _row(self, req: Req) -> MetadataRow:
        """Return the room's metadata row; raise ContextCorruptionError if it cannot belong to this room."""
        receiver = _receiver(req)
        if isinstance(receiver, FakeReceiver):
            return MetadataRow(req.room, req.input_ids[-1])  # nothing was computed: any token will do
        return believed_row(receiver.metadata or b"", req.room, req.prompt_len, self.resources.vocab)

    def _corruption(self, req: Req) -> Failure | None:
        """Return what is wrong with the row that arrived, or None if it is valid or has not arrived."""
        if _receiver(req).poll() != KVPoll.SUCCESS:
            return None
        try:
            self._row(req)
        except ContextCorruptionError as error:
            return Failure("context_corruption", error.message)
        return None

    def _state_or_drained(self, req: Req) -> int:
        """Return where the room stands on this rank; of a failed request, 1 if its pages are safe to free here, else 0.

        The row is checked here, before the ranks agree: a room that one rank cannot run fails on all of them.
        """
        receiver = _receiver(req)
        if req.failed:
            return int(receiver.drained)
        poll = receiver.poll()
        return KVPoll.FAILED if poll == KVPoll.SUCCESS and self._corruption(req) else poll

    def _poll_draining(self, state: dict[int, int]) -> None:
        """Release pages that are drained on all ranks: the prefill has stopped writing, or was given the time to."""
        for req in self.draining:
            if state[id(req)]:
                self.resources.outbox.append(Tokens(req.rid, [], drained=self._drained(req)))
                self._release(req)
        self.draining = [req for req in self.draining if req.row >= 0]

    def _drained(self, req: Req) -> Drained:
        """Return how long the pages were kept. The receiver's clock started a loop turn or two before ours."""
        seconds = max(0.0, steady_time() - req.times.failed)
        return Drained(seconds, "timeout" if seconds > TIMED_OUT * self._drain_grace else "drained")

    def next_batch(self) -> Batch | None:
        self.running.resume(lambda: self.transfer)
        return self.running.next_batch()

    def process_result(self, outcome: Outcome) -> None:
        del outcome
        self.running.drop_finished()

    def publish(self, outcome: Outcome) -> None:
        for req in outcome.made:
            self.resources.emit(req, req.output_ids[-1:])

    def _fail(self, req: Req, stage: str) -> None:
        corruption = self._corruption(req)
        if corruption is not None:
            head = f"Request {req.rid} (bootstrap_room={req.room})"
            log.error("Context corruption detected: %s %s", head, corruption.message)
        failure = shared_failure(self.resources.groups.replica, _receiver(req).failure or corruption)
        reason = failure.message if failure else "Failed due to an unknown reason from another rank"
        code = failure.code if failure else "peer_rank"
        log_failed(req, f"Decode {stage} failed", "decode_req.req", self.resources.tp_rank, reason)
        _receiver(req).abort(reason, code)  # if only another rank of the group failed, nothing else tells our receiver
        self._end(req, f"Decode {stage} failed: {reason}", http_status(code), code)

    def _end(self, req: Req, message: str, status: int, code: str) -> None:
        self.resources.fail(req, message, status, code)
        self._drain(req)

    def _drain(self, req: Req) -> None:
        """Free unannounced pages at once, announced ones when the prefill is known to have stopped."""
        if req.row >= 0:
            req.times.failed = steady_time()
            self.draining.append(req)
        else:
            self._release(req)

    def _release(self, req: Req) -> None:
        self.resources.release(req)
        _receiver(req).clear()

    def give_up(self, req: Req, name: str) -> None:
        if name in ("running", "retracted"):  # no prefill writes into its pages any more
            super().give_up(req, name)
            return
        _receiver(req).abort("Aborted by AbortReq.")
        self.resources.cancel(req)
        log_step(req, "aborted")
        self._drain(req)

    def places(self) -> dict[str, RequestPlace]:
        return {
            "prealloc": self.prealloc,
            "transfer": self.transfer,
            "running": self.running,
            "retracted": self.running.retracted,
            DRAINING: self.draining,
        }


def _receiver(req: Req) -> Receiver:
    if req.receiver is None:
        raise AssertionError(f"room {req.room} has no receiver")
    return req.receiver
