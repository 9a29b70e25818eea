"""What one rank owns and every role shares: model, pages, metadata slots, and the limits requests are held to."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pdctl.engine.ipc.messages import Finish, Tokens
from pdctl.engine.kvcache.metadata_row import ANY
from pdctl.engine.kvcache.radix import RadixCache
from pdctl.engine.scheduler.req import NO_PAGES

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from pdctl.engine.config.instance_args import ServerArgs
    from pdctl.engine.kvcache.allocator import PageAllocator, Pages, PageTable
    from pdctl.engine.kvcache.metadata_row import MetadataSlots
    from pdctl.engine.model.model_runner import ModelRunner
    from pdctl.engine.model.parallel import Groups
    from pdctl.engine.scheduler.req import Req

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
    metadata: MetadataSlots  # a prefill's
    eos: frozenset[int]
    limit: int
    capacity: int
    dp_rank: int | None
    random: np.random.Generator  # for requests without a seed; the same stream on every rank of the group
    vocab: int = ANY
    outbox: list[Tokens] = field(default_factory=list)
    afterwards: list[Callable[[], None]] = field(default_factory=list)  # log lines that no token should wait for
    transfer_speed: float = 0.0  # GB/s of the last room whose KV cache moved
    transfer_latency: float = 0.0  # seconds of the same
    prefix: RadixCache | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._begin_prefixes()

    def _begin_prefixes(self) -> None:
        self.prefix = RadixCache(self.page_size, self.allocator) if self.args.keeps_prefixes else None

    def turn(self, args: ServerArgs) -> None:
        """Serve another role: nothing may be in flight, and what was computed so far is forgotten."""
        self.forget()
        self.check_idle()
        self.args = args
        self._begin_prefixes()

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

    @property
    def available_pages(self) -> int:
        """Free ones, and those of the prefix cache that nobody reads."""
        return self.allocator.free_pages + (self.prefix.evictable_pages if self.prefix else 0)

    @property
    def held_pages(self) -> int:
        """Pages that running and queued requests keep from others."""
        return self.num_pages - self.available_pages

    def allocate(self, req: Req, tokens: int, within: int | None = None, fresh: bool = False) -> bool:
        """Give `req` a row of the page table and pages for `tokens` tokens, or nothing. Every rank decides alike.

        What the prefix cache knows of the beginning counts as computed (never all of it: the last token's logits are
        needed), unless the pages are to be `fresh`. At most `within` pages are taken beside those.
        """
        if not self.table.free_rows:
            return False
        hit = self.prefix.match(req.tokens(req.length - 1)) if self.prefix and not fresh else None
        known = len(hit.pages) if hit else 0
        if self.prefix and hit:
            self.prefix.lock(hit.node)
        missing = self.pages_for(tokens) - known
        pages = self._take(missing) if within is None or missing <= within else None
        row = self.table.acquire() if pages is not None else None
        if pages is None or row is None:
            if self.prefix and hit:
                self.prefix.unlock(hit.node)
            return False
        if hit:
            self.table.extend(row, hit.pages)
            self.table.lend(row, 0, known)
            req.node, req.kept_pages = hit.node, known
            req.cached = req.computed = known * self.page_size
        self.table.extend(row, pages)
        req.row, req.pages = row, self.table.pages(row)
        return True

    def grow(self, req: Req, tokens: int, ahead: int = 0) -> bool:
        """Make sure that `req` has pages for `tokens` tokens; then also `ahead` more pages, of those that are free."""
        missing = self.pages_for(tokens) - len(req.pages)
        if missing <= 0:
            return True
        more = max(0, min(ahead, self.allocator.free_pages - missing))
        pages = self._take(missing + more, int(req.pages[-1]))
        if pages is None:
            return False
        self.table.extend(req.row, pages)
        req.pages = self.table.pages(req.row)
        return True

    def trim(self, req: Req) -> int:
        """Take back the pages `req` has no token for yet; returns how many."""
        gone = self.table.truncate(req.row, self.pages_for(req.length))
        if len(gone):
            self.allocator.free(gone)
            req.pages = self.table.pages(req.row)
        return len(gone)

    def _take(self, count: int, after: int = -1) -> Pages | None:
        missing = count - self.allocator.free_pages
        if missing > 0 and self.prefix and count <= self.available_pages:
            self.prefix.evict(missing)
        return self.allocator.alloc(count, after)

    def keep(self, req: Req) -> None:
        """Let the prefix cache have every whole page that `req` has computed; the request reads on in them."""
        whole = req.computed // self.page_size
        if self.prefix is None or req.fake or req.row < 0 or whole <= req.kept_pages:
            return
        done = self.prefix.insert(req.tokens(whole * self.page_size), req.pages[:whole])
        self.table.lend(req.row, done.known, whole)
        self.prefix.lock(done.node)
        if req.node is not None:
            self.prefix.unlock(req.node)
        req.node, req.kept_pages = done.node, whole

    def release(self, req: Req) -> None:
        """Return the pages, the row and the metadata slot of `req`; harmless when it holds none.

        Pages that a forward pass is working on come back at its end: nobody else may write into them before.
        """
        if req.computing:
            req.leaving = True
            return
        if req.row >= 0:
            self.allocator.free(self.table.release(req.row))
            req.row, req.pages = -1, NO_PAGES
        if req.node is not None and self.prefix:
            self.prefix.unlock(req.node)
            req.node, req.kept_pages = None, 0
        if req.metadata_slot >= 0:
            self.metadata.free(req.metadata_slot)
            req.metadata_slot = -1

    def forget(self) -> int:
        """Empty the prefix cache; returns how many pages that freed."""
        return self.prefix.clear() if self.prefix else 0

    def check_idle(self) -> None:
        """Nothing is in flight: every page, row and metadata slot must be free or in the cache, or something leaked."""
        if self.prefix:
            self.prefix.check(idle=True)
        self.allocator.check(expected_used=self.prefix.pages if self.prefix else 0)
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
