"""Optimistic prefill: compute a prompt before its decode has answered (sglang 0.5.18+ --optimistic-prefill-attempts).

The handshake then takes place beside the forward pass instead of before it. Nothing leaves before the decode's page
list is here; a request whose list stays away gives its pages back (the prefix cache keeps what was computed) and waits
for it in the bootstrap queue like any other.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdctl.engine.scheduler.req import Req
    from pdctl.engine.scheduler.resources import Resources

log = logging.getLogger("pdctl.engine")

# Turns (not seconds: every rank must count alike) that a computed prompt keeps its pages for a decode that is late.
PATIENCE = 20


class EarlyStarts:
    """Requests that were let into the waiting queue before their decode was heard of. None unless `attempts`."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._attempts = resources.args.optimistic_prefill_attempts
        self.reqs: list[Req] = []

    def begin(self, req: Req) -> bool:
        """Whether `req` may start now: it has attempts left, and a metadata slot, which it takes."""
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
        """`req` is bootstrapped, gone, or back in the bootstrap queue."""
        req.early = False
        self.reqs.remove(req)

    def late(self, req: Req, wanted: bool) -> bool:
        """Count a turn that `req` has waited with its prompt computed; True when its pages are to go.

        `wanted`: a request whose decode is ready could use them.
        """
        req.held_turns += 1
        return wanted or req.held_turns > PATIENCE

    def forget(self, req: Req) -> None:
        """Back to the beginning: what it computed stays in the prefix cache, if there is one."""
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
