"""Requests taken out of the running batch because pages ran out: their K and V wait in host memory, nothing is lost.

As sglang 0.5.23 has it (ScheduleBatch.retract_decode): the one with the fewest output tokens goes first, of several
the one with the longest prompt, and the latest to arrive. They resume before any new request gets pages, in order of
arrival, and go on exactly where they were.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pdctl.engine.kvcache.backup import Backup
from pdctl.engine.scheduler import scheduler_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pdctl.engine.decode.admission import Admission
    from pdctl.engine.scheduler.req import Req
    from pdctl.engine.scheduler.resources import Resources

log = logging.getLogger("pdctl.engine")


def victim(reqs: Iterable[Req]) -> Req:
    return min(reqs, key=lambda req: (len(req.output_ids), -req.prompt_len, -req.order))


class Retracted:
    """Called between two passes only: nothing is computing on the pages it copies."""

    def __init__(self, resources: Resources, admission: Admission) -> None:
        self._resources = resources
        self._admission = admission
        self._reqs: list[Req] = []

    def __len__(self) -> int:
        return len(self._reqs)

    def __iter__(self) -> Iterator[Req]:
        return iter(self._reqs)

    def take(self, req: Req) -> None:
        """Copy the pages of `req` to host memory and free them."""
        resources = self._resources
        req.backup = Backup(resources.runner.pool, req.pages[: resources.pages_for(req.computed)])
        req.retractions += 1
        req.retracted_output += len(req.output_ids)
        resources.release(req)
        scheduler_log.step(req, "retracted", computed=req.computed, output_len=len(req.output_ids))
        self._reqs = sorted([*self._reqs, req], key=lambda one: one.order)

    def tell(self, reqs: list[Req]) -> None:
        """SGLang's line, once for all that went in one turn."""
        gained = sum(req.backup.pages for req in reqs if req.backup) * self._resources.page_size
        log.warning(
            "KV cache pool is full. Retract requests. #retracted_reqs: %d, #new_tokens_gained: %d", len(reqs), gained
        )

    def resume(self, active: Callable[[], list[Req]]) -> list[Req]:
        """Those that fit again, in order of arrival; the first that does not holds back the others."""
        resumed: list[Req] = []
        while self._reqs and self._admission.admit(self._reqs[0], [*active(), *resumed], fresh=True):
            req = self._reqs.pop(0)
            if req.backup is None:
                raise AssertionError(f"rid {req.rid} was retracted without a backup")
            req.backup.restore(self._resources.runner.pool, req.pages[: req.backup.pages])
            req.backup = None
            resumed.append(req)
            scheduler_log.step(req, "resumed", computed=req.computed, output_len=len(req.output_ids))
        return resumed

    def remove(self, match: Callable[[Req], bool]) -> list[Req]:
        """Take out (and return) those that match, and drop their copies."""
        gone = [req for req in self._reqs if match(req)]
        self._reqs = [req for req in self._reqs if not match(req)]
        for req in gone:
            req.backup = None
        return gone
