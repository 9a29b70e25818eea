"""Continuous batching: the requests that make one token each per forward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engine.scheduler.batch import Batch, Part

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.engine.scheduler.request import Req
    from pdctl.engine.scheduler.resources import Resources


class RunningBatch:
    """Requests join between two passes without anything being recomputed, and leave as soon as they end."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._reqs: list[Req] = []

    def __len__(self) -> int:
        return len(self._reqs)

    @property
    def tokens(self) -> int:
        return sum(req.length for req in self._reqs)

    def join(self, req: Req) -> None:
        self._reqs.append(req)

    def next_batch(self) -> Batch | None:
        if not self._reqs:
            return None
        return Batch(tuple(Part(req, 1) for req in self._reqs), prefill=False)

    def settle(self) -> None:
        """After a pass: send every new token on, and drop the requests that ended with it."""
        for req in self._reqs:
            self._resources.emit(req, req.output_ids[-1:])
            if req.finish is not None:
                self._resources.release(req)
        self._reqs = [req for req in self._reqs if req.finish is None]

    def remove(self, match: Callable[[Req], bool]) -> list[Req]:
        gone = [req for req in self._reqs if match(req)]
        self._reqs = [req for req in self._reqs if req not in gone]
        return gone
