"""Who may enter a decode's pool, so that those inside can go on for a while, and who leaves it when pages run out.

sglang 0.5.23 decode.py _allocatable_tokens: a request needs room for what it has and for its headroom,
`--num-reserved-decode-tokens` more tokens, or what it may still say if that is less. It gets in when this leaves
everybody inside their headroom, and when it could finish with all the others retracted. Beyond the headroom requests
grow as they speak, and make room for one another by retraction.

ScheduleBatch.retract_decode: the one with the fewest output tokens goes first, of several the one with the longest
prompt, and the latest to arrive. Its K and V wait in host memory, nothing is lost. They resume before any new request
gets pages, in order of arrival, and go on exactly where they were.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pdctl.engine.kvcache.backup import Backup
from pdctl.engine.scheduler import scheduler_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pdctl.engine.scheduler.req import Req
    from pdctl.engine.scheduler.resources import Resources


log = logging.getLogger("pdctl.engine")

SMALLEST_SHARE = 8  # in a small pool the headroom of one request is at most this part of it


class Admission:
    """`active` are the requests inside: those that run, and those whose prompts are being computed or received."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        cap = max(resources.page_size, resources.capacity // SMALLEST_SHARE)
        self.reserved = min(resources.args.num_reserved_decode_tokens, cap)

    def admit(self, req: Req, active: Sequence[Req], fresh: bool = False) -> bool:
        """Give `req` its pages, headroom included, or nothing. `fresh`: with no help of the prefix cache."""
        resources = self._resources
        held = sum(self._pages(one.length) for one in active)
        ahead = sum(self._ahead(one) for one in active)
        largest = max((self._pages(self._most(one)) for one in active), default=0)
        spare = sum(len(one.pages) for one in active) - held
        free = resources.available_pages + spare - max(ahead, largest - held)
        if self._pages(self._most(req)) - held > free:
            return False
        wanted = req.length + self._headroom(req)
        if resources.available_pages < self._pages(wanted) <= free:
            for one in active:  # they keep their headroom in the books, not in pages
                resources.trim(one)
        return resources.allocate(req, wanted, max(0, free), fresh)

    def grow(self, req: Req, ahead: bool = True) -> bool:
        """A page for the next token of `req` if that begins one; `ahead`: and its headroom as far as pages are free."""
        return self._resources.grow(req, req.length, self._ahead(req) if ahead else 0)

    def _pages(self, tokens: int) -> int:
        return self._resources.pages_for(tokens)

    def _headroom(self, req: Req) -> int:
        return min(self.reserved, req.max_new_tokens - len(req.output_ids))

    def _ahead(self, req: Req) -> int:
        """Pages of the headroom."""
        return self._pages(req.length + self._headroom(req)) - self._pages(req.length)

    def _most(self, req: Req) -> int:
        """Tokens of prompt and longest possible answer."""
        return req.prompt_len + req.max_new_tokens


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
