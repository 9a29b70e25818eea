"""The ordinary engine: prefill and decode in one process, no room involved (disaggregation mode null)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engine.scheduler.role import Match, Queues, Role
from pdctl.engine.scheduler.waiting import WaitingQueue

if TYPE_CHECKING:
    from pdctl.engine.scheduler.batch import Batch
    from pdctl.engine.scheduler.request import Req
    from pdctl.engine.scheduler.resources import Resources


class UnifiedRole(Role):
    """Prefill goes first, as in sglang. Pages for the whole answer are reserved at the start: nothing is retracted."""

    def __init__(self, resources: Resources) -> None:
        super().__init__(resources)
        self.waiting = WaitingQueue(resources, lambda req: req.prompt_len + req.max_new_tokens)

    def add(self, req: Req) -> None:
        self.waiting.add(req)

    def poll(self) -> None:
        return

    def next_batch(self) -> Batch | None:
        room_for = self.resources.args.max_running_requests - len(self.running)
        return self.waiting.next_batch(room_for) or self.running.next_batch()

    def settle(self, batch: Batch) -> None:
        if not batch.prefill:
            self.running.settle()
            return
        for req, _ in batch.parts:
            if not req.output_ids:
                continue
            self.resources.emit(req, req.output_ids[-1:])
            if req.finish is None:
                self.running.join(req)
            else:
                self.resources.release(req)

    def abort(self, match: Match) -> int:
        gone = self.waiting.remove(match)
        for req in gone:
            self.resources.cancel(req)
            self.resources.release(req)
        return len(gone) + self._cancel_running(match)

    def queues(self) -> Queues:
        return Queues(running=len(self.running), waiting=len(self.waiting))
