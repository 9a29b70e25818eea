"""Attention of one forward step: every new token over its sequence's pages, for each window of layers.

Operands are placed at addresses that do not affect a row's bits. MKL, which multiplies for torch's attention on x86,
gives the same bits for the same operands if they begin at the same offset within a cache line (its manual: "aligned on
64-byte boundaries"), and may add in another order if not. Without this, the place of a sequence's pages in the pool, or
of a row in a batch, would change an answer. Operands that begin elsewhere are copied. Heads of 16 float32 numbers and
more, which all published models have, are mostly aligned already.

Attention sinks (gpt-oss): each head has one more score in its softmax, with no value behind it. With z the sum of a
query's exponentiated scores, a sink s turns the divisor z into z + exp(s): the attention without it is scaled by
sigmoid(log z - s), and the fused kernel returns log z beside its result.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from pdctl.engine.config.layer_kinds import FULL
from pdctl.engine.model.forward_batch import KeyValue, PageReader, PageWriter, positions, stretches
from pdctl.engine.model.weights import sigmoid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.engine.kvcache.kv_pool import KVPool
    from pdctl.engine.model.forward_batch import SeqSlice

LINE = 64  # bytes


class AttentionStep:
    """What all layers of one forward step share: page arithmetic and masks, computed once."""

    def __init__(self, pool: KVPool, seqs: Sequence[SeqSlice], dtype: torch.dtype, windows: Sequence[int]) -> None:
        """`windows` has one entry per layer of the pool."""
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
        """The row of each sequence's last new token."""
        return torch.tensor([end - 1 for end in accumulate(self._counts)], device=self.positions.device)

    def past(self, layer: int) -> list[KeyValue]:
        """Return, per sequence, the K and V that its new tokens attend to in this layer (`WindowSpan`)."""
        return self._spans[layer].past(layer)

    def pieces(self, layer: int, query: torch.Tensor) -> list[tuple[torch.Tensor, KeyValue, torch.Tensor | None]]:
        """Return each sequence's rows of `query` [tokens, …], its K and V, and its mask (`WindowSpan`)."""
        span = self._spans[layer]
        return list(zip(torch.split(query, self._counts), span.past(layer), span.masks, strict=True))

    def attend(self, layer: int, query: torch.Tensor, sinks: torch.Tensor | None = None) -> torch.Tensor:
        """Attend with all new tokens' queries, each over its past and itself: [tokens, heads, head_dim] in and out."""
        if self.decode_only:
            return self.attend_last(layer, query, sinks)
        return self._spans[layer].attend(layer, query, sinks)

    def attend_last(self, layer: int, query: torch.Tensor, sinks: torch.Tensor | None = None) -> torch.Tensor:
        """Attend with one query per sequence, [seqs, heads, head_dim], that of its last token; same shape back."""
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
        # None for a single new token too: it attends to everything that was read.
        self.masks = [
            _mask(seq, part.length, window, dtype, pool.device) if seq.extend_len > 1 else None
            for seq, part in zip(seqs, parts, strict=True)
        ]

    def attend(self, layer: int, query: torch.Tensor, sinks: torch.Tensor | None = None) -> torch.Tensor:
        """Attend with all new tokens' queries, each over its past and itself: [tokens, heads, head_dim] in and out."""
        parts = []
        for part, past, hidden in zip(torch.split(query, self._counts), self.past(layer), self.masks, strict=True):
            if part.shape[0] == 1:
                parts.append(self._ones(part, [past], sinks))
            else:
                parts.append(_several(part, past, hidden, sinks))
        return torch.cat(parts)

    def attend_last(self, layer: int, query: torch.Tensor, sinks: torch.Tensor | None = None) -> torch.Tensor:
        """Attend with one query per sequence, [seqs, heads, head_dim], that of its last token; same shape back."""
        past = self.past(layer)
        if self._window and len(query) < sum(self._counts):
            # K and V were read for earlier tokens too, whose windows begin earlier.
            past = [(past_in_place(k[:, :, -self._window :]), past_in_place(v[:, :, -self._window :])) for k, v in past]
        return self._ones(query, past, sinks)

    def _ones(self, query: torch.Tensor, past: Sequence[KeyValue], sinks: torch.Tensor | None) -> torch.Tensor:
        """Attend with [seqs, heads, head_dim], each row over all of its `past`.

        One kernel call per sequence, or per group of joined ones: the kernel reads K and V in place; with many
        sequences that is a third of a step. It computes one sequence and head after the other, and a row's result does
        not depend on the others, as long as one thread computes it (weights.py) and every operand has the same
        alignment (`in_place`).
        """
        kv_heads, head_dim = self._heads
        # Query heads that share a KV head are the rows of one product, so that no K or V is repeated.
        heads = query.reshape(len(query), kv_heads, -1, head_dim)
        rows = [in_place(row) for row in torch.split(heads, [len(k) for k, _ in past])]
        if sinks is None:
            parts = [F.scaled_dot_product_attention(row, k, v) for row, (k, v) in zip(rows, past, strict=True)]
        else:
            shared = sinks.view(1, kv_heads, -1)
            parts = [attend_with_sinks(row, k, v, shared) for row, (k, v) in zip(rows, past, strict=True)]
        return (torch.cat(parts) if len(parts) > 1 else parts[0]).reshape(query.shape)

    def past(self, layer: int) -> list[KeyValue]:
        """Return K and V in the order of the sequences, in the model's dtype."""
        past = self._reader.past(layer)
        if self._convert:
            past = [(k.to(self._dtype), v.to(self._dtype)) for k, v in past]
        return [(past_in_place(k), past_in_place(v)) for k, v in past]


def _several(
    query: torch.Tensor, past: KeyValue, hidden: torch.Tensor | None, sinks: torch.Tensor | None
) -> torch.Tensor:
    """Attend with [new, heads, head_dim] under an additive mask. None is causal, for a past of only the new tokens."""
    rows = in_place(query.transpose(0, 1).unsqueeze(0))
    if sinks is None:
        out = F.scaled_dot_product_attention(rows, *past, attn_mask=hidden, is_causal=hidden is None, enable_gqa=True)
    else:
        shared = rows.shape[1] // past[0].shape[1]
        keys, values = (part.repeat_interleave(shared, dim=1) for part in past)
        out = attend_with_sinks(rows, keys, values, sinks.view(1, -1, 1), hidden, causal=hidden is None)
    return out[0].transpose(0, 1)


def _mask(seq: SeqSlice, length: int, window: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor | None:
    """Return an additive mask [new tokens, length]; None if the kernel's own causal mask, which is faster, will do.

    `length` is the number of tokens in the stretch, up to the sequence's end.
    """
    if not seq.prefix_len and (not window or length <= window):
        return None
    ones = torch.ones(seq.extend_len, length, dtype=torch.bool, device=device)
    own = length - seq.extend_len  # column of the first new token itself
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
    """Attend with [1, heads, rows, head_dim] over [1, heads, tokens, head_dim]. `sinks` broadcasts to [1, heads, rows].

    `hidden` is an additive mask [rows, tokens]; alternatively, `causal` hides what comes after each row's own position.
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
    """Compute the same with plain operations, for devices whose kernel does not return log z."""
    scores = (query @ key.transpose(-1, -2)).float() * query.shape[-1] ** -0.5
    if causal:
        scores.masked_fill_(torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu_(1), -torch.inf)
    elif hidden is not None:
        scores += hidden
    column = sinks.float().expand(scores.shape[:-1]).unsqueeze(-1)
    weights = torch.cat((scores, column), dim=-1).softmax(dim=-1)[..., :-1]
    return weights.to(value.dtype) @ value


def in_place(query: torch.Tensor) -> torch.Tensor:
    """Return the same numbers, dense and aligned to a cache line, whatever tensor they are a slice of."""
    if query.device.type != "cpu" or (query.data_ptr() % LINE == 0 and query.is_contiguous()):
        return query
    return query.clone(memory_format=torch.contiguous_format)


def past_in_place(part: torch.Tensor) -> torch.Tensor:
    """Return K or V, [sequences, kv_heads, tokens, head_dim], with every head of every sequence at a fixed alignment.

    The stride between tokens is kept. Within the first token, a head begins where the previous head ends; if each
    head's tokens are contiguous, every head begins at a cache line.
    """
    if part.device.type != "cpu":
        return part
    seqs, heads, tokens, width = part.shape
    step, apart, stride, _ = part.stride()
    size = part.element_size()
    together = heads > 1 and apart > width  # each head's tokens are contiguous
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
    """Return whether every sequence that is joined with others begins at a cache line."""
    geometry = pool.geometry
    return pool.device.type != "cpu" or geometry.head_dim * dtype.itemsize % LINE == 0
