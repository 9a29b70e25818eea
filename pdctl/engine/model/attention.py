"""Attention of one forward step: every new token over its sequence's pages, for each window of layers.

Attention finds its operands at addresses of which a row's bits do not depend. MKL, which multiplies for torch's
attention on x86, gives the same bits for the same operands where they begin at the same place within a cache line (its
manual: "aligned on 64-byte boundaries"), and may add in another order elsewhere: where a sequence's pages lie in the
pool, or a row in a batch, would change an answer. What begins elsewhere is copied. Heads of 16 float32 numbers and
more, as all published models have them, mostly begin right.

Attention sinks (gpt-oss): each head has one more score to share its softmax with, and no value behind it. With z the
sum of a query's exponentiated scores, a sink s turns the divisor z into z + exp(s): the attention without it is scaled
by sigmoid(log z - s), and log z is what the fused kernel hands out beside its result.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from pdctl.engine.config.layer_kinds import FULL
from pdctl.engine.model.forward_batch import KeyValue, PageReader, PageWriter, positions, stretches
from pdctl.engine.model.linear import sigmoid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.engine.kvcache.kv_pool import KVPool
    from pdctl.engine.model.forward_batch import SeqSlice

LINE = 64  # bytes


class AttentionStep:
    """What every layer of one forward step shares: page arithmetic and masks, computed once."""

    def __init__(self, pool: KVPool, seqs: Sequence[SeqSlice], dtype: torch.dtype, windows: Sequence[int]) -> None:
        """`windows` has an entry for each layer of the pool."""
        self._counts = [seq.extend_len for seq in seqs]
        self.decode_only = max(self._counts) == 1
        where = positions(seqs)
        self.positions = torch.from_numpy(where).to(pool.device)
        self.writer = PageWriter(pool, seqs, where)
        spans = {window: WindowSpan(pool, seqs, dtype, window) for window in set(windows)}
        self._spans = [spans[window] for window in windows]

    @property
    def num_seqs(self) -> int:
        return len(self._counts)

    @property
    def last_tokens(self) -> torch.Tensor:
        """Row of each sequence's last new token."""
        return torch.tensor([end - 1 for end in accumulate(self._counts)], device=self.positions.device)

    def past(self, layer: int) -> list[KeyValue]:
        """Of each sequence, what its new tokens attend to in this layer (`WindowSpan`)."""
        return self._spans[layer].past(layer)

    def pieces(self, layer: int, query: torch.Tensor) -> list[tuple[torch.Tensor, KeyValue, torch.Tensor | None]]:
        """Each sequence's rows of `query` [tokens, …], its K and V, and its mask (`WindowSpan`)."""
        span = self._spans[layer]
        return list(zip(torch.split(query, self._counts), span.past(layer), span.masks, strict=True))

    def attend(self, layer: int, query: torch.Tensor, sinks: torch.Tensor | None = None) -> torch.Tensor:
        """Queries of all new tokens, [tokens, heads, head_dim], each over its past and itself; same shape back."""
        if self.decode_only:
            return self.attend_last(layer, query, sinks)
        return self._spans[layer].attend(layer, query, sinks)

    def attend_last(self, layer: int, query: torch.Tensor, sinks: torch.Tensor | None = None) -> torch.Tensor:
        """One query per sequence, [seqs, heads, head_dim], of its last token; same shape back."""
        return self._spans[layer].attend_last(layer, query, sinks)


class WindowSpan:
    """K and V of every sequence, as far back as a window reaches."""

    def __init__(self, pool: KVPool, seqs: Sequence[SeqSlice], dtype: torch.dtype, window: int = FULL) -> None:
        parts = stretches(seqs, pool.geometry.page_size, window)
        self._heads = (pool.geometry.kv_heads, pool.geometry.head_dim)
        self._counts = [seq.extend_len for seq in seqs]
        self._dtype = dtype
        self._convert = pool.dtype != dtype
        self._window = window
        alone = max(self._counts) == 1 and pool.geometry.slabs_per_layer > 1
        self._reader = PageReader(pool, parts, join=alone and joinable(pool, dtype))
        # None for one new token too: it attends to all that was read.
        self.masks = [
            _mask(seq, part.length, window, dtype, pool.device) if seq.extend_len > 1 else None
            for seq, part in zip(seqs, parts, strict=True)
        ]

    def attend(self, layer: int, query: torch.Tensor, sinks: torch.Tensor | None = None) -> torch.Tensor:
        """Queries of all new tokens, [tokens, heads, head_dim], each over its past and itself; same shape back."""
        parts = []
        for part, past, hidden in zip(torch.split(query, self._counts), self.past(layer), self.masks, strict=True):
            if part.shape[0] == 1:
                parts.append(self._ones(part, [past], sinks))
            else:
                parts.append(_several(part, past, hidden, sinks))
        return torch.cat(parts)

    def attend_last(self, layer: int, query: torch.Tensor, sinks: torch.Tensor | None = None) -> torch.Tensor:
        """One query per sequence, [seqs, heads, head_dim], of its last token; same shape back."""
        past = self.past(layer)
        if self._window and len(query) < sum(self._counts):
            # Read for earlier tokens too, whose windows begin earlier.
            past = [(past_in_place(k[:, :, -self._window :]), past_in_place(v[:, :, -self._window :])) for k, v in past]
        return self._ones(query, past, sinks)

    def _ones(self, query: torch.Tensor, past: Sequence[KeyValue], sinks: torch.Tensor | None) -> torch.Tensor:
        """[seqs, heads, head_dim], each over all of its `past`.

        One call of the kernel for each, or for those that were joined: the kernel reads K and V where they lie, which
        for many sequences is a third of a step. It computes one sequence and head after the other, each alike alone
        and among others, as long as one thread does it (linear.py) and each begins where the others do
        (`in_place`).
        """
        kv_heads, head_dim = self._heads
        # Query heads that share a KV head are the rows of one product: no K or V is repeated.
        heads = query.reshape(len(query), kv_heads, -1, head_dim)
        rows = [in_place(row) for row in torch.split(heads, [len(k) for k, _ in past])]
        if sinks is None:
            parts = [F.scaled_dot_product_attention(row, k, v) for row, (k, v) in zip(rows, past, strict=True)]
        else:
            shared = sinks.view(1, kv_heads, -1)
            parts = [attend_with_sinks(row, k, v, shared) for row, (k, v) in zip(rows, past, strict=True)]
        return (torch.cat(parts) if len(parts) > 1 else parts[0]).reshape(query.shape)

    def past(self, layer: int) -> list[KeyValue]:
        """In the order of the sequences, in the model's dtype."""
        past = self._reader.past(layer)
        if self._convert:
            past = [(k.to(self._dtype), v.to(self._dtype)) for k, v in past]
        return [(past_in_place(k), past_in_place(v)) for k, v in past]


def _several(
    query: torch.Tensor, past: KeyValue, hidden: torch.Tensor | None, sinks: torch.Tensor | None
) -> torch.Tensor:
    """[new, heads, head_dim] over `past` under an additive mask; None is causal, for a past of the new tokens alone."""
    rows = in_place(query.transpose(0, 1).unsqueeze(0))
    if sinks is None:
        out = F.scaled_dot_product_attention(rows, *past, attn_mask=hidden, is_causal=hidden is None, enable_gqa=True)
    else:
        shared = rows.shape[1] // past[0].shape[1]
        keys, values = (part.repeat_interleave(shared, dim=1) for part in past)
        out = attend_with_sinks(rows, keys, values, sinks.view(1, -1, 1), hidden, causal=hidden is None)
    return out[0].transpose(0, 1)


def _mask(seq: SeqSlice, length: int, window: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor | None:
    """Additive [new tokens, length]; None where the kernel's own causal mask does it, which is faster.

    `length` is what the stretch holds, up to the sequence's end.
    """
    if not seq.prefix_len and (not window or length <= window):
        return None
    ones = torch.ones(seq.extend_len, length, dtype=torch.bool, device=device)
    own = length - seq.extend_len  # column of the first new token, for itself
    hidden = ones.triu(own + 1)
    if window:
        hidden |= ones.tril_(own - window)
    return torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))


def attend_with_sinks(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sinks: torch.Tensor,
    hidden: torch.Tensor | None = None,
    causal: bool = False,
) -> torch.Tensor:
    """[1, heads, rows, head_dim] over [1, heads, tokens, head_dim]; `sinks` broadcasts over [1, heads, rows].

    `hidden` is an additive mask [rows, tokens]; `causal` hides what comes after the row's own place instead.
    """
    if query.device.type == "cpu":
        attended, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, is_causal=causal, attn_mask=hidden
        )
        kept = sigmoid(log_sum - sinks.float()).unsqueeze(-1)
        scaled: torch.Tensor = attended * kept.to(attended.dtype)
        return scaled
    return _plain(query, key, value, sinks, hidden, causal)


def _plain(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sinks: torch.Tensor,
    hidden: torch.Tensor | None,
    causal: bool,
) -> torch.Tensor:
    """The same in plain operations, where no kernel hands out its sums."""
    scores = (query @ key.transpose(-1, -2)).float() * query.shape[-1] ** -0.5
    if causal:
        scores.masked_fill_(torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu_(1), -torch.inf)
    elif hidden is not None:
        scores += hidden
    column = sinks.float().expand(scores.shape[:-1]).unsqueeze(-1)
    weights = torch.cat((scores, column), dim=-1).softmax(dim=-1)[..., :-1]
    return weights.to(value.dtype) @ value


def in_place(query: torch.Tensor) -> torch.Tensor:
    """The same numbers, dense and at the beginning of a cache line, whatever they were cut out of."""
    if query.device.type != "cpu" or (query.data_ptr() % LINE == 0 and query.is_contiguous()):
        return query
    return query.clone(memory_format=torch.contiguous_format)


def past_in_place(part: torch.Tensor) -> torch.Tensor:
    """K or V, [sequences, kv_heads, tokens, head_dim]: each head of each sequence at its own place in a line.

    Tokens keep their distance. A head begins where the heads before it end, at the first token; where each head has
    its tokens together, at the beginning of a line.
    """
    if part.device.type != "cpu":
        return part
    seqs, heads, tokens, width = part.shape
    step, apart, stride, _ = part.stride()
    size = part.element_size()
    together = heads > 1 and apart > width  # a head's tokens lie one after the other
    placed = part.data_ptr() % LINE == 0 and (seqs == 1 or step * size % LINE == 0)
    if placed and not (together and apart * size % LINE):
        return part
    line = LINE // size
    if together:
        apart = -(-tokens * stride // line) * line
    step = -(-(heads * apart if together else tokens * stride) // line) * line
    copy = torch.empty(seqs * step, dtype=part.dtype).as_strided(part.shape, (step, apart, stride, 1))
    return copy.copy_(part)


def joinable(pool: KVPool, dtype: torch.dtype) -> bool:
    """Whether what sequences that are read as one begin with is always at the beginning of a line."""
    geometry = pool.geometry
    return pool.device.type != "cpu" or geometry.head_dim * dtype.itemsize % LINE == 0
