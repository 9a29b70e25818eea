"""What layers with the same window share in one step: the tokens they read, their masks, and attention over them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from pdctl.engine.config.layer_windows import FULL, stretches
from pdctl.engine.model.paging import KeyValue, PageReader
from pdctl.engine.model.placement import in_place, joinable, past_in_place
from pdctl.engine.model.sinks import attend_with_sinks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.engine.kvcache.kv_pool import KVPool
    from pdctl.engine.model.forward_batch import SeqSlice


class Span:
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
        and among others, as long as one thread does it (threads.py) and each begins where the others do
        (placement.py).
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
