"""First come, first served prefill: which prompts, or chunks of them, go into the next forward pass."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from pdctl.engine.scheduler.batch import Batch, Part

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.engine.scheduler.request import Req
    from pdctl.engine.scheduler.resources import Resources


class WaitingQueue:
    """Prompts waiting for their forward passes. `budget` tokens go into one pass; a longer prompt is cut into chunks.

    A chunk that is not the last ends on a page boundary, so that every page it fills can leave at once
    (sglang 0.5.23: chunked_prefill_size is a multiple of page_size on a prefill).
    """

    def __init__(self, resources: Resources, tokens_needed: Callable[[Req], int]) -> None:
        self._resources = resources
        self._needed = tokens_needed
        self._queue: deque[Req] = deque()
        self._chunked: Req | None = None

    def __len__(self) -> int:
        return len(self._queue) + (self._chunked is not None)

    @property
    def pending_tokens(self) -> int:
        started = self._chunked.prompt_len - self._chunked.computed if self._chunked else 0
        return started + sum(req.prompt_len for req in self._queue)

    def add(self, req: Req) -> None:
        self._queue.append(req)

    def next_batch(self, room_for: int) -> Batch | None:
        """A pass of at most `budget` tokens and `room_for` new requests, or None when nothing can start."""
        budget = self._resources.args.chunked_prefill_size
        parts: list[Part] = []
        if self._chunked is not None:
            part = self._part(self._chunked, budget)
            parts.append(part)
            budget -= part.extend
            if part.completes:
                self._chunked = None
        while self._queue and room_for > 0 and budget > 0 and self._chunked is None:
            req = self._queue[0]
            part = self._part(req, budget)
            if part.extend == 0 or not self._resources.allocate(req, self._needed(req)):
                break
            self._queue.popleft()
            parts.append(part)
            budget -= part.extend
            room_for -= 1
            if not part.completes:
                self._chunked = req
        return Batch(tuple(parts), prefill=True) if parts else None

    def _part(self, req: Req, budget: int) -> Part:
        left = req.prompt_len - req.computed
        if left <= budget:
            return Part(req, left)
        return Part(req, budget - budget % self._resources.page_size)

    def remove(self, match: Callable[[Req], bool]) -> list[Req]:
        """Take out (and return) the requests that match; their pages are the caller's to release."""
        gone = [req for req in self._queue if match(req)]
        self._queue = deque(req for req in self._queue if req not in gone)
        if self._chunked is not None and match(self._chunked):
            gone.append(self._chunked)
            self._chunked = None
        return gone
