"""What a rank has in every role (model, pages, metadata slots, limits), and `Req`, a request, which takes its share.

A request has its tokens, its pages, its place in the queues, the time of each step, and its log lines.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from pdctl.engine.config.instance_args import FAKE_BOOTSTRAP_HOST
from pdctl.engine.ipc.messages import HEALTH_PREFIX, Finish, Generate, Meta, Tokens, steady_time
from pdctl.engine.kv_link.kv_frames import ANY
from pdctl.engine.kv_link.room_state import TransferStats
from pdctl.engine.kvcache.allocator import RadixCache
from pdctl.layout.kv_pages import pages_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from pdctl.engine.config.instance_args import ServerArgs
    from pdctl.engine.decode.receiver import Receiver
    from pdctl.engine.kvcache.allocator import Node, PageAllocator, Pages, PageTable
    from pdctl.engine.kvcache.kv_pool import Backup
    from pdctl.engine.model.model_runner import ModelRunner
    from pdctl.engine.model.parallel import Groups
    from pdctl.engine.prefill.sender import Sender


log = logging.getLogger("pdctl.engine")
NO_PAGES: NDArray[np.int32] = np.empty(0, dtype=np.int32)


@dataclass(slots=True)
class Times:
    """Seconds since the epoch at which each step was reached; 0 until then."""

    received: float
    ready: float = 0.0  # the other side is ready; only memory may be missing
    bootstrapped: float = 0.0
    forward: float = 0.0
    first_token: float = 0.0
    sent: float = 0.0
    transferred: float = 0.0
    failed: float = 0.0  # while it had pages that the other side may still write into

    @property
    def reached(self) -> dict[str, float]:
        """Step → time, for the steps that were reached."""
        return {name: when for name in self.__slots__ if (when := getattr(self, name))}


@dataclass(slots=True, eq=False)
class Req:
    """`computed` counts the tokens whose K and V are in the pool; `sent_pages` the pages handed to the sender.

    `cached` counts the prompt tokens that a prefill found in the cache; the first `kept_pages` pages are in the prefix
    cache, locked by `node`. `order` is the place in the order of arrival. While `computing`, a forward pass reads and
    writes the pages: a release in that time is only noted in `leaving`.
    """

    message: Generate
    max_new_tokens: int
    times: Times
    output_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    pages: NDArray[np.int32] = field(default_factory=lambda: NO_PAGES)
    computed: int = 0
    sent_pages: int = 0
    row: int = -1
    metadata_slot: int = -1
    order: int = 0
    cached: int = 0
    kept_pages: int = 0
    node: Node | None = None
    backup: Backup | None = None
    retractions: int = 0
    retracted_output: int = 0
    computing: bool = False
    leaving: bool = False
    early: bool = False  # started before its decode was heard from (prefill_role.py EarlyStarts)
    attempts: int = 0
    held_turns: int = 0
    sender: Sender | None = None
    receiver: Receiver | None = None
    finish: Finish | None = None

    @classmethod
    def of(cls, message: Generate, max_new_tokens: int) -> Req:
        return cls(message, max_new_tokens, Times(message.received or steady_time()))

    @property
    def rid(self) -> str:
        return self.message.rid

    @property
    def room(self) -> int:
        return self.message.bootstrap_room or 0

    @property
    def fake(self) -> bool:
        """Whether this is a warm-up or health request: on a decode, nothing is written into its pages."""
        return self.message.bootstrap_host == FAKE_BOOTSTRAP_HOST

    @property
    def probe(self) -> bool:
        """Whether this is a health request: no traffic."""
        return self.rid.startswith(HEALTH_PREFIX)

    @property
    def input_ids(self) -> list[int]:
        return self.message.input_ids

    @property
    def prompt_len(self) -> int:
        return len(self.message.input_ids)

    @property
    def length(self) -> int:
        """Tokens so far: prompt and output."""
        return self.prompt_len + len(self.output_ids)

    @property
    def failed(self) -> bool:
        """Whether it has ended without its whole answer: refused, failed or aborted."""
        return self.finish is not None and self.finish.type == "abort"

    def tokens(self, count: int) -> NDArray[np.int32]:
        """Return the first `count` tokens of prompt and output."""
        prompt = np.asarray(self.input_ids[:count], dtype=np.int32)
        more = count - len(prompt)
        return np.concatenate([prompt, np.asarray(self.output_ids[:more], dtype=np.int32)]) if more > 0 else prompt

    def append(self, token: int, eos: frozenset[int], limit: int) -> None:
        """Take one output token and decide whether it ends the request (`limit`: the context length)."""
        self.output_ids.append(token)
        sampling = self.message.sampling
        made = len(self.output_ids)
        stops = token in sampling.stop_token_ids or (token in eos and not sampling.ignore_eos)
        if stops and made >= sampling.min_new_tokens:
            self.finish = Finish("stop", matched=token)
        elif made >= self.max_new_tokens or self.length >= limit:
            self.finish = Finish("length", length=made)

    def meta(self, dp_rank: int | None) -> Meta:
        at = self.times
        stats = self.sender.stats if self.sender else self.receiver.stats if self.receiver else TransferStats()
        return Meta(
            prompt_tokens=self.prompt_len,
            completion_tokens=len(self.output_ids),
            cached_tokens=self.cached,
            retractions=self.retractions,
            retracted_output_tokens=self.retracted_output,
            prefill_retries=max(0, self.attempts - 1),
            queue_time=max(0.0, at.forward - (at.bootstrapped or at.received)) if at.forward else 0.0,
            bootstrap_time=max(0.0, at.bootstrapped - at.received) if at.bootstrapped else 0.0,
            alloc_time=max(0.0, at.bootstrapped - at.ready) if at.bootstrapped and at.ready else 0.0,
            transfer_time=stats.transfer,
            transfer_bytes=stats.nbytes,
            transfer_room_bytes=stats.room_nbytes,
            transfer_pages=stats.pages,
            transfer_chunks=stats.chunks,
            transfer_descriptors=stats.descriptors,
            transfer_gb_s=stats.gb_s,
            forward_entry_time=at.forward,
            dp_rank=dp_rank,
            steps=at.reached,
        )


ABORTED = "Aborted by AbortReq."  # sglang's text, which readers of logs know as an echo, not a cause


@dataclass(slots=True)
class Resources:
    """`limit` is the context length and `capacity` the tokens the pool holds; both limit what a request may ask for."""

    args: ServerArgs
    runner: ModelRunner
    groups: Groups
    allocator: PageAllocator
    table: PageTable
    metadata: MetadataSlots  # used by a prefill
    eos: frozenset[int]
    limit: int
    capacity: int
    dp_rank: int | None
    random: np.random.Generator  # for requests without a seed; the same stream on every rank of the group
    vocab: int = ANY
    outbox: list[Tokens] = field(default_factory=list)
    afterwards: list[Callable[[], None]] = field(default_factory=list)  # log lines that must not delay any token
    transfer_speed: float = 0.0  # GB/s of the last room whose KV cache moved
    transfer_latency: float = 0.0  # seconds that it took
    prefix: RadixCache | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._begin_prefixes()

    def _begin_prefixes(self) -> None:
        self.prefix = RadixCache(self.page_size, self.allocator) if self.args.keeps_prefixes else None

    def turn(self, args: ServerArgs) -> None:
        """Switch to another role. Nothing may be in flight; the prefix cache is emptied."""
        self.forget()
        self.check_idle()
        self.args = args
        self._begin_prefixes()

    @property
    def tp_rank(self) -> int:
        return self.groups.rank.tp_rank

    @property
    def leader(self) -> bool:
        """Whether this rank replies for its attention DP group: the others compute the same and send nothing."""
        return self.groups.replica.rank == 0

    @property
    def page_size(self) -> int:
        return self.args.page_size

    def pages_for(self, tokens: int) -> int:
        return pages_for(tokens, self.args.page_size)

    @property
    def num_pages(self) -> int:
        """Pages that can be allocated (page 0 never is)."""
        return self.allocator.free_pages + self.allocator.used_pages

    @property
    def available_pages(self) -> int:
        """Free pages, and those of the prefix cache that no request uses."""
        return self.allocator.free_pages + (self.prefix.evictable_pages if self.prefix else 0)

    @property
    def held_pages(self) -> int:
        """Pages that running and queued requests keep from others."""
        return self.num_pages - self.available_pages

    def allocate(self, req: Req, tokens: int, within: int | None = None, fresh: bool = False) -> bool:
        """Give `req` a row of the page table and pages for `tokens` tokens, or nothing; return whether it got them.

        Every rank decides alike. A prefix found in the cache counts as computed (never the whole prompt: the last
        token's logits are needed), unless the pages are to be `fresh`. At most `within` other pages are taken.
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
        """Return whether `req` now has pages for `tokens` tokens; give it up to `ahead` more if they are free."""
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
        """Take back the pages for which `req` has no token yet; return how many."""
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
        """Add every whole page that `req` has computed to the prefix cache; the request goes on reading them."""
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
        """Return the pages, the row and the metadata slot of `req`; harmless if it holds none.

        Pages in use by a forward pass are returned when it ends: nothing else may write into them before.
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
        """Empty the prefix cache; return how many pages that freed."""
        return self.prefix.clear() if self.prefix else 0

    def check_idle(self) -> None:
        """Check for leaks with nothing in flight: all pages, rows and metadata slots must be free or in the cache."""
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
        """End `req` with an HTTP status and a reason that reaches the client. The caller releases its pages."""
        req.finish = Finish("abort", message=message, status=status, code=code)
        self.emit(req, [])

    def cancel(self, req: Req) -> None:
        self.fail(req, ABORTED, 499, "aborted")


class MetadataLeakError(RuntimeError):
    """A metadata slot was freed twice, or is still allocated while nothing runs."""


class MetadataSlots:
    """Limits how many rooms of a prefill may be between their decode's page list and the end of their transfer.

    SGLang's slots are memory the row is written from (sglang 0.5.23 MetadataBuffers); here they are only counted.
    """

    def __init__(self, slots: int) -> None:
        self._free = list(range(slots - 1, -1, -1))
        self._out = [False] * slots

    @property
    def free_slots(self) -> int:
        return len(self._free)

    def alloc(self) -> int | None:
        """Return a free slot, or None if every slot is taken."""
        if not self._free:
            return None
        slot = self._free.pop()
        self._out[slot] = True
        return slot

    def free(self, slot: int | Sequence[int]) -> None:
        for one in (slot,) if isinstance(slot, int) else slot:
            self._require(one)
            self._out[one] = False
            self._free.append(one)

    def check(self, expected_out: int | None = None) -> None:
        """Raise MetadataLeakError unless the slots add up; `expected_out` is 0 when the scheduler is idle."""
        out = sum(self._out)
        if out + len(self._free) != len(self._out):
            raise MetadataLeakError(f"metadata books differ: {out} out, {len(self._free)} free of {len(self._out)}")
        if expected_out is not None and out != expected_out:
            raise MetadataLeakError(f"metadata slots leak: {out} slots out, {expected_out} expected")

    def _require(self, slot: int) -> None:
        if not 0 <= slot < len(self._out) or not self._out[slot]:
            raise MetadataLeakError(f"metadata slot {slot} is not out")


def log_step(req: Req, phase: str, **facts: float | int | str) -> None:
    """Log that a room has just entered the queue `phase`; floats are seconds.

    SGLang (0.5.23) writes no INFO line for a healthy room; ours start with `Room step:`, so that a reader can tell.
    """
    if not req.room:
        return
    words = " ".join(
        f"{key}={value:.6f}" if isinstance(value, float) else f"{key}={value}" for key, value in facts.items()
    )
    log.info("Room step: room=%d rid='%s' phase=%s %s", req.room, req.rid, phase, words)


def log_failed(req: Req, what: str, path: str, rank: int, reason: str) -> None:
    """sglang 0.5.23: a prefill logs a warning, a decode an error; the two texts differ only in `path`."""
    level = logging.WARNING if path == "req" else logging.ERROR
    log.log(
        level,
        "%s for request rank=%d %s.rid='%s' %s.bootstrap_room=%d with exception KVTransferError(bootstrap_room=%d): %s",
        what, rank, path, req.rid, path, req.room, req.room, reason,
    )  # fmt: skip


def log_finished(req: Req, kind: str, resources: Resources) -> None:
    """Log SGLang's line for a room whose KV cache moved (in SGLang only with --enable-request-time-stats-logging)."""
    if not req.room:
        return
    at, meta = req.times, req.meta(resources.dp_rank)
    speed = meta.transfer_gb_s
    resources.transfer_speed, resources.transfer_latency = speed, meta.transfer_time
    if kind == "prefill":
        spans = (
            f"bootstrap_duration={_ms(at.bootstrapped - at.received)}, "
            f"queue_duration={_ms(at.forward - at.bootstrapped)}, "
            f"forward_duration={_ms(at.sent - at.forward)}, transfer_duration={_ms(at.transferred - at.sent)}"
        )
    else:
        spans = (
            f"prealloc_queue_duration={_ms(at.bootstrapped - at.received)}, "
            f"transfer_duration={_ms(at.transferred - at.bootstrapped)}"
        )
    log.info(
        "ReqTimeStats(rid=%s, bootstrap_room=%d, input_len=%d, cached_input_len=%d, output_len=%d, type=%s): "
        "%s, entry_time=%.3f, transfer_speed=%s GB/s, transfer_total=%.2f MB",
        req.rid, req.room, req.prompt_len, req.cached, len(req.output_ids), kind,
        spans, at.received, _speed(speed), meta.transfer_bytes / 1e6,
    )  # fmt: skip


def _speed(gb_s: float) -> str:
    """Format with SGLang's two decimals, or with more where those would show a slow transfer as 0."""
    return f"{gb_s:.2f}" if gb_s >= 0.01 or not gb_s else f"{gb_s:.6f}"


def _ms(seconds: float) -> str:
    return f"{max(0.0, seconds) * 1000:.2f}ms"
