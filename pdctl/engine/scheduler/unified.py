"""The ordinary engine: prefill and decode in one process, no room involved (disaggregation mode null)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engine.scheduler.queues import Queues
from pdctl.engine.scheduler.role import Match, Role
from pdctl.engine.scheduler.waiting import WaitingQueue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.engine.scheduler.req import Req
    from pdctl.engine.scheduler.resources import Resources
    from pdctl.engine.scheduler.schedule_batch import Batch, Outcome


class UnifiedRole(Role):
    """Prefill goes first, as in sglang; requests taken back for want of pages go before that."""

    def __init__(self, resources: Resources) -> None:
        super().__init__(resources)
        self.waiting = WaitingQueue(resources, self._admit)

    def add(self, req: Req) -> None:
        self.waiting.add(req)

    def _admit(self, req: Req) -> bool:
        running = self.running
        if running.retracted:
            return False
        return running.admission.admit(req, [*running, *self.waiting.started])

    def poll(self) -> None:
        return

    def next_batch(self) -> Batch | None:
        self.running.resume(lambda: self.waiting.started)
        room_for = self.resources.args.max_running_requests - len(self.running)
        return self.waiting.next_batch(room_for) or self.running.next_batch()

    def settle(self, outcome: Outcome) -> None:
        if not outcome.batch.prefill:
            self.running.settle()
            return
        self.waiting.settle()
        for req, _ in outcome.batch.parts:
            if not req.aborted:
                self.resources.keep(req)
        for req in outcome.made:
            if req.finish is None:
                self.running.join(req)
            else:
                self.resources.release(req)

    def publish(self, outcome: Outcome) -> None:
        for req in outcome.made:
            self.resources.emit(req, req.output_ids[-1:])

    def abort(self, match: Match) -> int:
        gone = self.waiting.remove(match)
        for req in gone:
            self.resources.cancel(req)
            self.resources.release(req)
        return len(gone) + self._cancel_running(match)

    def members(self) -> Iterator[tuple[str, Req]]:
        yield from (("waiting", req) for req in self.waiting)
        yield from (("running", req) for req in self.running)
        yield from (("retracted", req) for req in self.running.retracted)

    def queues(self) -> Queues:
        running = self.running
        return Queues(running=len(running), waiting=len(self.waiting), retracted=len(running.retracted))
