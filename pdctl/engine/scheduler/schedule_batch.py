"""One forward pass: which tokens of which requests it computes, and its results.

Of several pipeline stages only the last one has logits, but all must go on with the same tokens.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pdctl.engine.ipc.messages import steady_time
from pdctl.engine.model.forward_batch import ForwardBatch, SeqSlice
from pdctl.engine.model.model_runner import Sampled, SamplingRow, sample

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pdctl.engine.model.forward_batch import Share
    from pdctl.engine.model.parallel import Groups
    from pdctl.engine.scheduler.resources import Req, Resources


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


IDLE = Batch((), prefill=False)


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
    """A pass that has ended. `made`: the requests that got a token in it and were not aborted meanwhile."""

    batch: Batch
    made: tuple[Req, ...]
    seconds: float


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
    return Outcome(batch, tuple(made), time.perf_counter() - prepared.began)


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
