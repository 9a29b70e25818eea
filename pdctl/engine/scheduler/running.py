"""Continuous batching: the requests that make one token each per forward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engine.decode.pool_admission import Admission, Retracted, victim
from pdctl.engine.scheduler.schedule_batch import Batch, Part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pdctl.engine.scheduler.req import Req
    from pdctl.engine.scheduler.resources import Resources


class RunningBatch:
    """Requests join between two passes without anything being recomputed, and leave as soon as they end.

    Each grows page by page as it speaks. When no page is left, some are retracted until the others fit.
    """

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self.admission = Admission(resources)
        self.retracted = Retracted(resources, self.admission)
        self._reqs: list[Req] = []

    def __len__(self) -> int:
        return len(self._reqs)

    def __iter__(self) -> Iterator[Req]:
        return iter(self._reqs)

    @property
    def tokens(self) -> int:
        return sum(req.length for req in self._reqs)

    def join(self, req: Req) -> None:
        self._reqs.append(req)

    def resume(self, others: Callable[[], list[Req]]) -> None:
        """Let retracted requests run again as far as they fit beside those running and `others` that hold pages."""
        if self.retracted:
            self._reqs.extend(self.retracted.resume(lambda: [*self._reqs, *others()]))

    def next_batch(self) -> Batch | None:
        self._make_room()
        if not self._reqs:
            return None
        return Batch(tuple(Part(req, 1) for req in self._reqs), prefill=False)

    def _make_room(self) -> None:
        """A page for each request that begins one: from the pool, from headroom not yet used, by retraction."""
        if all(self.admission.grow(req) for req in self._reqs):
            return
        for req in self._reqs:
            self._resources.trim(req)
        gone: list[Req] = []
        while not all(self.admission.grow(req, ahead=False) for req in self._reqs):
            gone.append(victim(self._reqs))
            self._reqs.remove(gone[-1])
            self.retracted.take(gone[-1])
        if gone:
            self.retracted.tell(gone)

    def settle(self) -> None:
        """After a pass: drop the requests that ended with it."""
        for req in self._reqs:
            if req.finish is not None:
                self._resources.keep(req)
                self._resources.release(req)
        self._reqs = [req for req in self._reqs if req.finish is None]

    def remove(self, match: Callable[[Req], bool]) -> list[Req]:
        gone = [req for req in self._reqs if match(req)]
        self._reqs = [req for req in self._reqs if req not in gone]
        return gone + self.retracted.remove(match)
