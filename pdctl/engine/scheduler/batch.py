"""One forward pass: which tokens of which requests, and what comes out of it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pdctl.engine.model.batch import ForwardBatch, SeqSlice
from pdctl.engine.model.sampler import SamplingRow, sample

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from pdctl.engine.model.batch import Share
    from pdctl.engine.scheduler.request import Req
    from pdctl.engine.scheduler.resources import Resources


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
    """`prefill` batches extend prompts by many tokens; the others make one token for each request."""

    parts: tuple[Part, ...]
    prefill: bool

    @property
    def tokens(self) -> int:
        return sum(part.extend for part in self.parts)


IDLE = Batch((), prefill=False)


def run(batch: Batch, resources: Resources, shares: tuple[Share, ...] = ()) -> None:
    """Compute K and V of every part, and take the next token of each request whose part completes.

    `shares`: what every attention DP group brings to this pass (turn.py).
    """
    now = time.time()
    tokens: list[int] = []
    slices: list[SeqSlice] = []
    for req, extend in batch.parts:
        req.times.forward = req.times.forward or now
        tokens.extend(_tokens(req, req.computed, req.computed + extend))
        slices.append(SeqSlice(req.pages, req.computed, extend))
    logits = resources.runner.forward(ForwardBatch(tokens, slices, shares))
    rows = [index for index, part in enumerate(batch.parts) if part.completes]
    for req, extend in batch.parts:
        req.computed += extend
    if not rows:
        return
    reqs = [batch.parts[index].req for index in rows]
    chosen = logits if len(rows) == len(batch.parts) else logits[rows]
    _take(chosen, reqs, resources)


def _tokens(req: Req, start: int, end: int) -> Sequence[int]:
    prompt = req.prompt_len
    if start >= prompt:
        return req.output_ids[start - prompt : end - prompt]
    if end <= prompt:
        return req.input_ids[start:end]
    return [*req.input_ids[start:], *req.output_ids[: end - prompt]]


def _take(logits: torch.Tensor, reqs: Sequence[Req], resources: Resources) -> None:
    rows = [
        SamplingRow(
            req.message.sampling,
            req.input_ids,
            req.output_ids,
            req.message.return_logprob,
            req.message.top_logprobs_num,
        )
        for req in reqs
    ]
    sampled = sample(logits, rows, resources.random)
    now = time.time()
    for index, req in enumerate(reqs):
        if req.message.return_logprob:
            req.logprobs.append(float(sampled.logprobs[index]))
            req.top_logprobs.append(sampled.top_logprobs[index])
        req.times.first_token = req.times.first_token or now
        req.append(int(sampled.ids[index]), resources.eos, resources.limit)
