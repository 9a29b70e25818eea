"""From logits to tokens: greedy at once, sampling by inverse transform so that a seed and a position fix the token.

The random number of a seeded row depends on its seed and on how many tokens it has produced, never on the batch it
is in; and every TP rank, given the same logits, takes the same token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.engine.ipc.messages import Sampling

_MASK64 = (1 << 64) - 1
# Where the caller brings no stream of its own. It starts alike in every process: TP ranks, which sample in step, agree.
_UNSEEDED = np.random.default_rng(1)


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """What one row of the logits is sampled with; the ids are what penalties look at.

    `ends` are the tokens that may not come before `min_new_tokens` of them have been made (sglang 0.5.23:
    BatchedMinNewTokensPenalizer).
    """

    sampling: Sampling
    input_ids: Sequence[int] = ()
    output_ids: Sequence[int] = ()
    return_logprob: bool = False
    top_logprobs_num: int = 0
    ends: Sequence[int] = ()

    @property
    def greedy(self) -> bool:
        return self.sampling.temperature <= 0 or self.sampling.top_k == 1

    @property
    def penalised(self) -> bool:
        sampling = self.sampling
        repeats = sampling.frequency_penalty or sampling.presence_penalty or sampling.repetition_penalty != 1.0
        return bool(repeats or self.early)

    @property
    def early(self) -> bool:
        """Whether the answer may not end with this token."""
        return bool(self.ends) and len(self.output_ids) < self.sampling.min_new_tokens


@dataclass(frozen=True, slots=True)
class Sampled:
    """One entry per row. `logprobs` is NaN and `top_logprobs` empty where none were asked for."""

    ids: npt.NDArray[np.int64]
    logprobs: tuple[float, ...]
    top_logprobs: tuple[list[tuple[int, float]], ...]


def sample(logits: torch.Tensor, rows: Sequence[SamplingRow], unseeded: np.random.Generator | None = None) -> Sampled:
    """The next token of each row of `logits`, float32 [rows, vocab]. `logits` is not changed."""
    logits = _penalise(logits, rows)
    drawn = [index for index, row in enumerate(rows) if not row.greedy]
    ids = logits.argmax(dim=-1).cpu().numpy()
    if drawn:
        chosen = rows if len(drawn) == len(rows) else [rows[index] for index in drawn]
        ids[drawn] = _draw(logits[drawn], chosen, unseeded or _UNSEEDED)
    if any(row.return_logprob for row in rows):
        return _with_logprobs(logits, rows, ids)
    nothing: tuple[list[tuple[int, float]], ...] = tuple([] for _ in rows)
    return Sampled(ids, (math.nan,) * len(rows), nothing)


def _penalise(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    """Frequency and presence look at the output, repetition at prompt and output (sglang, and the papers)."""
    if not any(row.penalised for row in rows):
        return logits
    logits = logits.clone()
    for line, row in zip(logits, rows, strict=True):
        if not row.penalised:
            continue
        sampling = row.sampling
        if row.output_ids:
            counts = torch.bincount(torch.tensor(row.output_ids), minlength=len(line)).to(line)
            line -= sampling.frequency_penalty * counts + sampling.presence_penalty * (counts > 0)
        if sampling.repetition_penalty != 1.0:
            seen = torch.tensor(sorted({*row.input_ids, *row.output_ids}), dtype=torch.int64, device=line.device)
            value = line[seen]
            line[seen] = torch.where(
                value > 0, value / sampling.repetition_penalty, value * sampling.repetition_penalty
            )
        if row.early:
            line[[token for token in row.ends if token < len(line)]] = -math.inf
    return logits


def _draw(logits: torch.Tensor, rows: Sequence[SamplingRow], unseeded: np.random.Generator) -> npt.NDArray[np.int64]:
    """Keep what top-k, then top-p, then min-p leave of the sorted distribution, and invert its cumulative sum."""

    def column(values: Sequence[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64, device=logits.device).unsqueeze(1)

    scaled = logits / column([row.sampling.temperature for row in rows])
    probs, order = torch.softmax(scaled.double(), dim=-1).sort(dim=-1, descending=True, stable=True)
    vocab = probs.shape[-1]
    rank = torch.arange(vocab, device=probs.device)
    kept = rank < column([row.sampling.top_k if row.sampling.top_k > 0 else vocab for row in rows])
    probs = probs.masked_fill(~kept, 0.0)
    before = probs.cumsum(dim=-1) - probs
    kept = before < column([row.sampling.top_p for row in rows]) * probs.sum(dim=-1, keepdim=True)
    kept &= probs >= column([row.sampling.min_p for row in rows]) * probs[:, :1]
    kept[:, 0] = True
    cumulative = probs.masked_fill(~kept, 0.0).cumsum(dim=-1)
    number = column([_uniform(row, unseeded) for row in rows]) * cumulative[:, -1:]
    place = torch.searchsorted(cumulative, number, right=True).clamp_(max=vocab - 1)
    drawn: npt.NDArray[np.int64] = order.gather(1, place)[:, 0].cpu().numpy()
    return drawn


def _uniform(row: SamplingRow, unseeded: np.random.Generator) -> float:
    """In [0, 1): from the seed and the output position (splitmix64), or the next of the shared stream."""
    if row.sampling.seed is None:
        return float(unseeded.random())
    state = (row.sampling.seed * 0x9E3779B97F4A7C15 + len(row.output_ids) * 0xD1B54A32D192ED03 + 1) & _MASK64
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK64
    return ((state ^ (state >> 31)) >> 11) / (1 << 53)


def _with_logprobs(logits: torch.Tensor, rows: Sequence[SamplingRow], ids: npt.NDArray[np.int64]) -> Sampled:
    """Of the distribution at the row's temperature, before top-k, top-p and min-p (sglang 0.5.23)."""
    values: list[float] = []
    tops: list[list[tuple[int, float]]] = []
    for line, row, token in zip(logits, rows, ids.tolist(), strict=True):
        if not row.return_logprob:
            values.append(math.nan)
            tops.append([])
            continue
        logprobs = torch.log_softmax(line if row.greedy else line / row.sampling.temperature, dim=-1)
        values.append(float(logprobs[token]))
        best = logprobs.topk(min(row.top_logprobs_num, len(logprobs)))
        tops.append(list(zip(best.indices.tolist(), best.values.tolist(), strict=True)))
    return Sampled(ids, tuple(values), tuple(tops))
