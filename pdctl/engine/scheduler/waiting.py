"""First come, first served prefill: which prompts, or chunks of them, go into the next forward pass."""

from __future__ import annotations

from collections import deque
from itertools import takewhile
from typing import TYPE_CHECKING

from pdctl.engine.scheduler.schedule_batch import Batch, Part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pdctl.engine.scheduler.req import Req
    from pdctl.engine.scheduler.resources import Resources


class WaitingQueue:
    """Prompts waiting for their forward passes. `budget` tokens go into one pass; a longer prompt is cut into chunks.

    A chunk that is not the last ends on a page boundary, so that every page it fills can leave at once
    (sglang 0.5.23: chunked_prefill_size is a multiple of page_size on a prefill).
    """

    def __init__(self, resources: Resources, admit: Callable[[Req], bool]) -> None:
        """`admit` gives a request its pages, or says that it has to wait."""
        self._resources = resources
        self._admit = admit
        self._queue: deque[Req] = deque()
        self._chunked: Req | None = None
        self._last: list[Req] = []  # in the pass under way, which computes the rest of their prompts

    def __len__(self) -> int:
        return len(self._queue) + len(self.started)

    def __iter__(self) -> Iterator[Req]:
        yield from self.started
        yield from self._queue

    @property
    def started(self) -> list[Req]:
        """Those that hold pages."""
        return [*self._last, self._chunked] if self._chunked is not None else self._last

    @property
    def pending_tokens(self) -> int:
        started = self._chunked.prompt_len - self._chunked.computed if self._chunked else 0
        return started + sum(req.prompt_len for req in self._queue)

    def add(self, req: Req) -> None:
        """In order of arrival, however long each one's handshake took: none is overtaken by what came after it."""
        later = list(takewhile(lambda other: other.order > req.order, reversed(self._queue)))
        for _ in later:
            self._queue.pop()
        self._queue.extend([req, *reversed(later)])

    def next_batch(self, room_for: int) -> Batch | None:
        """A pass of at most `budget` tokens and `room_for` new requests, or None when nothing can start."""
        budget = self._resources.args.chunked_prefill_size
        parts: list[Part] = []
        self._last = []
        if self._chunked is not None:
            budget -= self._extend(self._chunked, budget, parts)
        while self._queue and room_for > 0 and budget > 0 and self._chunked is None:
            req = self._queue[0]
            if not self._admit(req):
                break
            self._queue.popleft()
            budget -= self._extend(req, budget, parts)
            room_for -= 1
        return Batch(tuple(parts), prefill=True) if parts else None

    def settle(self) -> None:
        """The pass has ended."""
        self._last = []

    def _extend(self, req: Req, budget: int, parts: list[Part]) -> int:
        """Add what fits of `req` to the pass; returns its tokens. One that fits not at all goes first in the next."""
        part = self._part(req, budget)
        if part.extend:
            parts.append(part)
        if part.extend and part.completes:
            self._chunked = None
            self._last.append(req)
        else:
            self._chunked = req
        return part.extend

    def _part(self, req: Req, budget: int) -> Part:
        left = req.prompt_len - req.computed
        if left <= budget:
            return Part(req, left)
        return Part(req, budget - budget % self._resources.page_size)

    def remove(self, match: Callable[[Req], bool]) -> list[Req]:
        """Take out (and return) the requests that match; their pages are the caller's to release."""
        gone = [req for req in self if match(req)]
        self._queue = deque(req for req in self._queue if req not in gone)
        self._last = [req for req in self._last if req not in gone]
        if self._chunked in gone:
            self._chunked = None
        return gone
