"""What one rank owns and every role shares: model, pages, metadata slots, and the limits requests are held to."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pdctl.engine.messages import Finish, Tokens
from pdctl.engine.scheduler.request import NO_PAGES

if TYPE_CHECKING:
    import numpy as np

    from pdctl.engine.args import ServerArgs
    from pdctl.engine.cache.allocator import PageAllocator
    from pdctl.engine.cache.metadata import MetadataBuffers
    from pdctl.engine.cache.table import PageTable
    from pdctl.engine.model.parallel import Groups
    from pdctl.engine.model.runner import ModelRunner
    from pdctl.engine.scheduler.request import Req

log = logging.getLogger("pdctl.engine")

ABORTED = "Aborted by AbortReq."  # sglang's text: tools that read it know it as an echo, not a cause


@dataclass(slots=True)
class Resources:
    """`limit` is the context length and `capacity` the tokens the pool holds; both bound what a request may ask for."""

    args: ServerArgs
    runner: ModelRunner
    groups: Groups
    allocator: PageAllocator
    table: PageTable
    metadata: MetadataBuffers
    eos: frozenset[int]
    limit: int
    capacity: int
    dp_rank: int | None
    random: np.random.Generator  # for requests without a seed; the same stream on every rank of the group
    outbox: list[Tokens] = field(default_factory=list)
    transfer_speed: float = 0.0  # GB/s of the last room whose KV cache moved
    transfer_latency: float = 0.0  # seconds of the same

    @property
    def tp_rank(self) -> int:
        return self.groups.rank.tp_rank

    @property
    def leader(self) -> bool:
        """Whether this rank speaks for its attention DP group: the others compute the same and keep silent."""
        return self.groups.replica.rank == 0

    @property
    def page_size(self) -> int:
        return self.args.page_size

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.args.page_size)

    @property
    def num_pages(self) -> int:
        """Pages that can be handed out (page 0 never is)."""
        return self.allocator.free_pages + self.allocator.used_pages

    def allocate(self, req: Req, tokens: int) -> bool:
        """Give `req` a row of the page table and pages for `tokens` tokens, or nothing. Every rank decides alike."""
        count = self.pages_for(tokens)
        if not self.table.free_rows or count > self.allocator.free_pages:
            return False
        row, pages = self.table.acquire(), self.allocator.alloc(count)
        if row is None or pages is None:
            raise AssertionError(f"rid {req.rid}: {count} pages were free a moment ago")
        self.table.extend(row, pages)
        req.row, req.pages = row, self.table.pages(row)
        return True

    def release(self, req: Req) -> None:
        """Return the pages, the row and the metadata slot of `req`; harmless when it holds none."""
        if req.row >= 0:
            self.allocator.free(self.table.release(req.row))
            req.row, req.pages = -1, NO_PAGES
        if req.metadata_slot >= 0:
            self.metadata.free(req.metadata_slot)
            req.metadata_slot = -1

    def check_idle(self) -> None:
        """Nothing is in flight: every page, row and metadata slot must be free, or something leaked."""
        self.allocator.check(expected_used=0)
        self.table.check(expected_rows=0)
        self.metadata.check(expected_out=0)

    def emit(self, req: Req, ids: list[int]) -> None:
        """Queue new tokens (and the end, if `req.finish` is set) for the tokenizer manager."""
        final = req.finish is not None
        wanted = req.message.return_logprob
        self.outbox.append(
            Tokens(
                req.rid,
                ids,
                req.finish,
                req.logprobs[-len(ids) :] if wanted and ids else [],
                req.top_logprobs[-len(ids) :] if wanted and ids and req.top_logprobs else [],
                req.meta(self.dp_rank) if final else None,
            )
        )

    def fail(self, req: Req, message: str, status: int, code: str) -> None:
        """End `req` with an HTTP status and a reason that reaches the client. Pages are the caller's business."""
        req.finish = Finish("abort", message=message, status=status, code=code)
        self.emit(req, [])

    def cancel(self, req: Req) -> None:
        self.fail(req, ABORTED, 499, "aborted")
