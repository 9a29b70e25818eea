"""Who may enter the pool, so that those inside can go on for a while (sglang 0.5.23 decode.py _allocatable_tokens).

A request needs room for what it has and for its headroom: `--num-reserved-decode-tokens` more tokens, or what it may
still say if that is less. It gets in when this leaves everybody inside their headroom, and when it could finish with
all the others retracted. Beyond the headroom requests grow as they speak, and make room for one another by retraction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.engine.scheduler.req import Req
    from pdctl.engine.scheduler.resources import Resources

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
