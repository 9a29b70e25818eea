"""Choose the requests of the next forward pass (waiting prompts, the running batch, the retracted), and run it.

Who is admitted and who is retracted is counted in layout/kv_pages.py. The K and V of a retracted request wait in host
memory; nothing is lost. Retracted requests resume before any new request gets pages, in order of arrival, exactly where
they stopped.

Of several pipeline stages only the last one has logits, but all must go on with the same tokens.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np

from pdctl.engine.ipc.messages import steady_time
from pdctl.engine.kvcache.kv_pool import Backup
from pdctl.engine.model.forward_pass import ForwardBatch, SeqSlice
from pdctl.engine.model.model_runner import Sampled, SamplingRow, sample
from pdctl.engine.scheduler.resources import log_step
from pdctl.layout.kv_pages import AdmittedPages, most_headroom, retraction_order
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pdctl.engine.model.forward_pass import Share
    from pdctl.engine.model.parallel import Groups
    from pdctl.engine.scheduler.resources import Req, Resources


log = logging.getLogger("pdctl.engine")


class Part(NamedTuple):
    """`extend` tokens of `req`, starting at `req.computed`."""

    req: Req
    extend: int

    @property
    def completes(self) -> bool:
        """Whether this part reaches the last token, so that its logits give the next one."""
        return self.req.computed + self.extend >= self.req.length


@dataclass(frozen=True, slots=True)
class Batch:
    """A `prefill` batch computes many tokens of its prompts; any other makes one token for each request."""

    parts: tuple[Part, ...]
    prefill: bool

    @property
    def tokens(self) -> int:
        return sum(part.extend for part in self.parts)

    @property
    def begun(self) -> list[Req]:
        """Of a prefill pass that has ended: the requests of which it computed the first tokens."""
        return [part.req for part in self.parts if part.req.computed == part.req.cached + part.extend]

    @property
    def cached(self) -> int:
        """Prompt tokens of those that were found in the cache."""
        return sum(req.cached for req in self.begun)


IDLE = Batch((), prefill=False)


class WaitingQueue:
    """Prompts waiting for their forward passes. `budget` tokens go into one pass; a longer prompt is cut into chunks.

    A chunk that is not the last ends on a page boundary, so that every page it fills can be sent at once
    (sglang 0.5.23: chunked_prefill_size is a multiple of page_size on a prefill).
    """

    def __init__(self, resources: Resources, admit: Callable[[Req], bool]) -> None:
        """`admit` gives a request its pages, or returns False if it has to wait."""
        self._resources = resources
        self._admit = admit
        self._queue: deque[Req] = deque()
        self._chunked: Req | None = None
        self._last: list[Req] = []  # those in the pass under way, which completes their prompts

    def __len__(self) -> int:
        return len(self._queue) + len(self.started)

    def __iter__(self) -> Iterator[Req]:
        yield from self.started
        yield from self._queue

    @property
    def started(self) -> list[Req]:
        """The requests that hold pages."""
        return [*self._last, self._chunked] if self._chunked is not None else self._last

    def add(self, req: Req) -> None:
        """Insert `req` in order of arrival: however long its handshake took, no later request overtakes it."""
        later = list(takewhile(lambda other: other.order > req.order, reversed(self._queue)))
        for _ in later:
            self._queue.pop()
        self._queue.extend([req, *reversed(later)])

    def next_batch(self, room_for: int) -> Batch | None:
        """Return a pass of at most `budget` tokens and `room_for` new requests, or None if nothing can start."""
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

    def end_pass(self) -> None:
        """Forget which prompts the pass that has ended completed."""
        self._last = []

    def _extend(self, req: Req, budget: int, parts: list[Part]) -> int:
        """Add what fits of `req` to the pass; return its tokens. If none fit, `req` goes first in the next pass."""
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

    def remove(self, req: Req) -> None:
        if req is self._chunked:
            self._chunked = None
        elif req in self._last:
            self._last.remove(req)
        else:
            self._queue.remove(req)


class RunningBatch:
    """Requests join between two passes without anything being recomputed, and leave as soon as they end.

    Each grows page by page as it generates. When no page is left, some are retracted until the others fit.
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
        """Let retracted requests run again as far as they fit beside the running ones and `others` with pages."""
        if self.retracted:
            self._reqs.extend(self.retracted.resume(lambda: [*self._reqs, *others()]))

    def next_batch(self) -> Batch | None:
        self._make_room()
        if not self._reqs:
            return None
        return Batch(tuple(Part(req, 1) for req in self._reqs), prefill=False)

    def _make_room(self) -> None:
        """Get a page for each request that needs one: from the pool, from unused headroom, or by retraction."""
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

    def drop_finished(self) -> None:
        """Release the requests that ended with the last pass."""
        for req in self._reqs:
            if req.finish is not None:
                self._resources.keep(req)
                self._resources.release(req)
        self._reqs = [req for req in self._reqs if req.finish is None]

    def remove(self, req: Req) -> None:
        self._reqs.remove(req)


class Admission:
    """`active` are the admitted requests: those that run, and those whose prompts are being computed or received."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        reserved = resources.args.num_reserved_decode_tokens
        self.most_headroom = most_headroom(reserved, resources.page_size, resources.capacity)

    def admit(self, req: Req, active: Sequence[Req], fresh: bool = False) -> bool:
        """Give `req` its pages, including headroom, or nothing. `fresh`: without use of the prefix cache."""
        resources = self._resources
        admitted = AdmittedPages(
            held=sum(self._pages(one.length) for one in active),
            ahead=sum(self._ahead(one) for one in active),
            largest=max((self._pages(self._most(one)) for one in active), default=0),
        )
        # What is not held by tokens, as if all headroom had been taken back.
        pool = resources.available_pages + sum(len(one.pages) for one in active)
        free = admitted.left(pool)
        if not admitted.could_finish(pool, self._pages(self._most(req))):
            return False
        wanted = req.length + self._headroom(req)
        if resources.available_pages < self._pages(wanted) <= free:
            for one in active:  # their headroom stays accounted for, but not as pages
                resources.trim(one)
        return resources.allocate(req, wanted, max(0, free), fresh)

    def grow(self, req: Req, ahead: bool = True) -> bool:
        """Ensure a page for the next token of `req`; with `ahead`, also its headroom as far as pages are free."""
        return self._resources.grow(req, req.length, self._ahead(req) if ahead else 0)

    def _pages(self, tokens: int) -> int:
        return self._resources.pages_for(tokens)

    def _headroom(self, req: Req) -> int:
        return min(self.most_headroom, req.max_new_tokens - len(req.output_ids))

    def _ahead(self, req: Req) -> int:
        """Return the pages of the headroom."""
        return self._pages(req.length + self._headroom(req)) - self._pages(req.length)

    def _most(self, req: Req) -> int:
        """Return the tokens of the prompt and the longest possible answer."""
        return req.prompt_len + req.max_new_tokens


def victim(reqs: Iterable[Req]) -> Req:
    return min(reqs, key=lambda req: retraction_order(len(req.output_ids), req.prompt_len, req.order))


class Retracted:
    """Used between two passes only, while no pass uses the pages that it copies."""

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
        log_step(req, "retracted", computed=req.computed, output_len=len(req.output_ids))
        self._reqs = sorted([*self._reqs, req], key=lambda one: one.order)

    def tell(self, reqs: list[Req]) -> None:
        """Log SGLang's line, once for all requests retracted in one turn."""
        gained = sum(req.backup.pages for req in reqs if req.backup) * self._resources.page_size
        log.warning(
            "KV cache pool is full. Retract requests. #retracted_reqs: %d, #new_tokens_gained: %d", len(reqs), gained
        )

    def resume(self, active: Callable[[], list[Req]]) -> list[Req]:
        """Return those that fit again, in order of arrival; the first that does not fit holds back the others."""
        resumed: list[Req] = []
        while self._reqs and self._admission.admit(self._reqs[0], [*active(), *resumed], fresh=True):
            req = self._reqs.pop(0)
            if req.backup is None:
                raise AssertionError(f"rid {req.rid} was retracted without a backup")
            req.backup.restore(self._resources.runner.pool, req.pages[: req.backup.pages])
            req.backup = None
            resumed.append(req)
            log_step(req, "resumed", computed=req.computed, output_len=len(req.output_ids))
        return resumed

    def remove(self, req: Req) -> None:
        """Remove `req` and its copy."""
        self._reqs.remove(req)
        req.backup = None


@dataclass(frozen=True, slots=True)
class Pass:
    """A batch ready to be computed: nothing in it changes while another thread does that.

    `rows` are the parts that get a token, `sampling` how it is sampled for each.
    """

    batch: Batch
    forward: ForwardBatch
    rows: tuple[int, ...]
    sampling: tuple[SamplingRow, ...]
    began: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """A pass that has ended, with its times in seconds of `time.perf_counter`.

    `made`: the requests that got a token in it and were not aborted meanwhile.
    """

    batch: Batch
    made: tuple[Req, ...]
    began: float
    ended: float


def run(batch: Batch, resources: Resources, shares: tuple[Share, ...] = ()) -> Outcome:
    """Compute K and V of every part, and take the next token of each request whose part completes.

    `shares`: what each attention DP group contributes to this pass (loop.py).
    """
    prepared = prepare(batch, resources.eos, shares)
    return conclude(prepared, compute(prepared, resources), resources)


def prepare(batch: Batch, eos: frozenset[int], shares: tuple[Share, ...] = ()) -> Pass:
    """Prepare a pass. Until `conclude`, the batch's requests keep their pages, whatever happens to them."""
    now = steady_time()
    tokens: list[int] = []
    slices: list[SeqSlice] = []
    for req, extend in batch.parts:
        req.computing = True
        req.times.forward = req.times.forward or now
        tokens.extend(_tokens(req, req.computed, req.computed + extend))
        slices.append(SeqSlice(req.pages, req.computed, extend))
    rows = tuple(index for index, part in enumerate(batch.parts) if part.completes)
    sampling = tuple(_sampling(batch.parts[index].req, eos) for index in rows)
    return Pass(batch, ForwardBatch(tokens, slices, shares), rows, sampling, time.perf_counter())


def compute(prepared: Pass, resources: Resources) -> Sampled | None:
    """Run the pass itself, on any thread; return None if no part completes."""
    logits = resources.runner.forward(prepared.forward)
    rows = prepared.rows
    if not rows:
        return None
    if logits is None:
        return share(None, prepared.sampling, resources.groups)
    chosen = logits if len(rows) == len(prepared.batch.parts) else logits[list(rows)]
    return share(sample(chosen, prepared.sampling, resources.random), prepared.sampling, resources.groups)


def conclude(prepared: Pass, sampled: Sampled | None, resources: Resources) -> Outcome:
    """Give each request its token. One aborted during the pass gets none, and its pages are released now."""
    batch, made = prepared.batch, []
    for req, extend in batch.parts:
        req.computing = False
        req.computed += extend
        if req.leaving:
            req.leaving = False
            resources.release(req)
    now = steady_time()
    for index, row in enumerate(prepared.rows if sampled else ()):
        req = batch.parts[row].req
        if sampled is None or req.finish is not None:
            continue
        made.append(req)
        if req.message.return_logprob:
            req.logprobs.append(float(sampled.logprobs[index]))
            req.top_logprobs.append(sampled.top_logprobs[index])
        req.times.first_token = req.times.first_token or now
        req.append(int(sampled.ids[index]), resources.eos, resources.limit)
    return Outcome(batch, tuple(made), prepared.began, time.perf_counter())


def _tokens(req: Req, start: int, end: int) -> Sequence[int]:
    prompt = req.prompt_len
    if start >= prompt:
        return req.output_ids[start - prompt : end - prompt]
    if end <= prompt:
        return req.input_ids[start:end]
    return [*req.input_ids[start:], *req.output_ids[: end - prompt]]


def _sampling(req: Req, eos: frozenset[int]) -> SamplingRow:
    message, sampling = req.message, req.message.sampling
    ends = (*sampling.stop_token_ids, *sorted(eos)) if sampling.min_new_tokens else ()
    return SamplingRow(sampling, req.input_ids, req.output_ids, message.return_logprob, message.top_logprobs_num, ends)


def share(sampled: Sampled | None, rows: Sequence[SamplingRow], groups: Groups) -> Sampled:
    """Return what the last stage sampled, on every rank of the replica; `sampled` is None on the other stages."""
    if groups.pp.size == 1:
        if sampled is None:
            raise AssertionError("the only pipeline stage computed no logits")
        return sampled
    width = sum(2 + 2 * row.top_logprobs_num for row in rows)
    values = list(_packed(sampled, rows)) if sampled is not None else [0] * width
    last = groups.replica.size - groups.attn_tp.size  # its ranks are last in world order
    return _unpacked(groups.replica.share_ints(values, last), rows)


def _packed(sampled: Sampled, rows: Sequence[SamplingRow]) -> Iterator[int]:
    """Yield id, logprob, then (id, logprob) of the best, padded with -1; a float64 is sent as the int64 of its bits."""
    for index, row in enumerate(rows):
        yield int(sampled.ids[index])
        yield _bits(sampled.logprobs[index])
        top = sampled.top_logprobs[index]
        for token, logprob in top:
            yield token
            yield _bits(logprob)
        for _ in range(row.top_logprobs_num - len(top)):
            yield -1
            yield 0


def _unpacked(values: Sequence[int], rows: Sequence[SamplingRow]) -> Sampled:
    ids, logprobs, tops, at = [], [], [], 0
    for row in rows:
        ids.append(values[at])
        logprobs.append(_float(values[at + 1]))
        at += 2
        end = at + 2 * row.top_logprobs_num
        pairs = zip(values[at:end:2], values[at + 1 : end : 2], strict=True)
        tops.append([(token, _float(bits)) for token, bits in pairs if token >= 0])
        at = end
    return Sampled(np.asarray(ids, dtype=np.int64), tuple(logprobs), tuple(tops))


def _bits(value: float) -> int:
    return int(np.float64(value).view(np.int64))


def _float(bits: int) -> float:
    return float(np.int64(bits).view(np.float64)) if bits else 0.0
