"""The roles that end as real ones do, in the middle of a request: for rehearsals only (docs/rehearsals.md)."""

from __future__ import annotations

import logging
import os
import signal
from typing import TYPE_CHECKING

from pdctl.engine import faults
from pdctl.engine.args import FAKE_BOOTSTRAP_HOST
from pdctl.engine.disaggregation.failure import FailureCode
from pdctl.engine.disaggregation.state import KVPoll
from pdctl.engine.rehearsal import MARK
from pdctl.engine.scheduler.decode import DecodeRole
from pdctl.engine.scheduler.prefill import PrefillRole
from pdctl.engine.transfer.around import find
from pdctl.engine.transfer.rehearsal import RehearsedTransport

if TYPE_CHECKING:
    from pdctl.engine.disaggregation.decode import DecodeManager
    from pdctl.engine.disaggregation.prefill import PrefillManager
    from pdctl.engine.rehearsal import Rehearsal
    from pdctl.engine.scheduler.batch import Outcome
    from pdctl.engine.scheduler.request import Req
    from pdctl.engine.scheduler.resources import Resources

log = logging.getLogger("pdctl.engine")


class Doom:
    """Counts real requests (warm-up and health checks are none); those after the first `die_after` are the last."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self._left = rehearsal.die_after
        self._last: set[int] = set()  # rooms

    def take(self, req: Req) -> None:
        if self._left is None or req.message.bootstrap_host == FAKE_BOOTSTRAP_HOST:
            return
        if self._left:
            self._left -= 1
        else:
            self._last.add(req.room)

    def holds(self, req: Req) -> bool:
        return req.room in self._last


class End:
    """SIGKILL for the server process and this rank: the instance goes as a whole, and without a word to anybody."""

    def __init__(self) -> None:
        self._server = os.getppid()

    def __call__(self) -> None:
        log.warning("%s: this instance ends itself by SIGKILL now, in the middle of a transfer", MARK)
        if os.getppid() == self._server:  # else it is gone already, and the number may be anybody's
            os.kill(self._server, signal.SIGKILL)
        faults.kill()


class RehearsedPrefill(PrefillRole):
    """Its last write stops half-way: some pages have arrived, and no word about them ever will."""

    def __init__(self, resources: Resources, manager: PrefillManager) -> None:
        super().__init__(resources, manager)
        self._doom = Doom(resources.args.rehearsal)

    def add(self, req: Req) -> None:
        self._doom.take(req)
        super().add(req)

    def publish(self, outcome: Outcome) -> None:
        doomed = find(self._manager.transport, RehearsedTransport)
        if doomed is not None and any(self._doom.holds(part.req) for part in outcome.batch.parts):
            doomed.doomed = True  # the manager's thread does the rest, in its next write
        super().publish(outcome)


class RehearsedDecode(DecodeRole):
    """Ends while its last room's KV cache moves (or has just arrived), or on a page size it cannot read."""

    def __init__(self, resources: Resources, manager: DecodeManager) -> None:
        super().__init__(resources, manager)
        self._doom = Doom(resources.args.rehearsal)
        self._vanish = End()
        self._crashes = resources.args.rehearsal.crash_on_page_size_mismatch

    def add(self, req: Req) -> None:
        self._doom.take(req)
        super().add(req)

    def _poll_transfer(self, state: dict[int, int]) -> None:
        if any(self._doom.holds(req) and state[id(req)] >= KVPoll.TRANSFERRING for req in self.transfer):
            self._vanish()
        super()._poll_transfer(state)

    def _fail(self, req: Req, stage: str) -> None:
        failure = req.receiver.failure if req.receiver else None
        if self._crashes and failure and failure.code == FailureCode.MISMATCH.value:
            raise RuntimeError(failure.message.partition(" (bootstrap_addr: ")[0])
        super()._fail(req, stage)
