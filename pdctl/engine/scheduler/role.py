"""What the event loop asks of a role; unified, prefill and decode each answer in a file of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pdctl.engine.config.instance_args import FAKE_BOOTSTRAP_HOST
from pdctl.engine.drill.fault_points import arm
from pdctl.engine.scheduler.req import Req
from pdctl.engine.scheduler.running import RunningBatch

if TYPE_CHECKING:
    from pdctl.engine.ipc.messages import Generate
    from pdctl.engine.scheduler.queues import Queues
    from pdctl.engine.scheduler.resources import Resources
    from pdctl.engine.scheduler.schedule_batch import Batch, Outcome

Match = Callable[[Req], bool]


class Role(ABC):
    """Owns the queues of one kind of instance. Called by the event loop's thread only."""

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self.running = RunningBatch(resources)
        self._arrived = 0
        args = resources.args
        self.faults = arm(resources.tp_rank, args.rehearsal.fault(args.disaggregation_mode))

    def admit(self, message: Generate) -> None:
        """Take a request, or answer it with the reason it can never run here (sglang 0.5.23: HTTP 400)."""
        resources = self.resources
        prompt = len(message.input_ids)
        limit = min(resources.limit, resources.capacity)
        if prompt >= limit:
            req = Req.of(message, 1)
            text = f"Request {req.rid} exceeds the maximum number of tokens: {prompt} > {limit - 1}"
            resources.fail(req, text, 400, "context_length_exceeded")
            return
        req = Req.of(message, min(message.sampling.max_new_tokens, limit - prompt))
        self._arrived += 1
        req.order = self._arrived
        if self.faults is not None and message.bootstrap_host != FAKE_BOOTSTRAP_HOST:
            self.faults.admitted(req.room)
        self.add(req)

    @abstractmethod
    def add(self, req: Req) -> None:
        """Put an admitted request into the role's first queue."""

    @abstractmethod
    def poll(self) -> None:
        """Move requests whose other side has news. Collective: every rank of the TP group calls it each turn."""

    @abstractmethod
    def next_batch(self) -> Batch | None:
        """The next forward pass, or None when nothing can run."""

    def began(self, batch: Batch) -> None:
        """The pass is under way: what can leave before its end, leaves."""
        del batch

    @abstractmethod
    def settle(self, outcome: Outcome) -> None:
        """Take the results of a pass: move or end requests. Nothing is computing; the next pass waits for it."""

    @abstractmethod
    def publish(self, outcome: Outcome) -> None:
        """Send tokens and pages on, after `settle`. The next pass may be under way, and does not wait for it."""

    @abstractmethod
    def abort(self, match: Match) -> int:
        """Abort every matching request, in whichever queue it is; returns how many."""

    @abstractmethod
    def members(self) -> Iterator[tuple[str, Req]]:
        """Every request that has not ended, with the name of the queue it is in; `draining` ones hold pages only."""

    @abstractmethod
    def queues(self) -> Queues:
        """How many requests are where."""

    def reached(self, step: str, req: Req) -> None:
        """A named step of a request: PDCTL_FAULTS may ask for something to go wrong here (drill/fault_points.py)."""
        if self.faults is not None:
            self.faults.at(step, req.room)

    def _cancel_running(self, match: Match) -> int:
        gone = self.running.remove(match)
        for req in gone:
            self.resources.cancel(req)
            self.resources.release(req)
        return len(gone)
