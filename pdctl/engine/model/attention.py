"""Attention of one forward step: every new token over its sequence's pages."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from pdctl.engine.model.paging import KeyValue, PageReader, PageWriter, positions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.engine.cache.pool import KVPool
    from pdctl.engine.model.batch import SeqSlice


class Step:
    """What every layer of one forward step shares: page arithmetic and masks, computed once."""

    def __init__(self, pool: KVPool, seqs: Sequence[SeqSlice], dtype: torch.dtype) -> None:
        self._heads = (pool.geometry.kv_heads, pool.geometry.head_dim)
        self._counts = [seq.extend_len for seq in seqs]
        self._dtype = dtype
        self._convert = pool.dtype != dtype
        self.decode_only = max(self._counts) == 1
        where = positions(seqs)
        self.positions = torch.from_numpy(where).to(pool.device)
        self.writer = PageWriter(pool, seqs, where)
        self._reader = PageReader(pool, seqs)
        self._masks = [] if self.decode_only else [self._mask(seq, pool.device) for seq in seqs]

    @property
    def num_seqs(self) -> int:
        return len(self._counts)

    @property
    def last_tokens(self) -> torch.Tensor:
        """Row of each sequence's last new token."""
        return torch.tensor([end - 1 for end in accumulate(self._counts)], device=self.positions.device)

    def attend(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """Queries of all new tokens, [tokens, heads, head_dim], each over its past and itself; same shape back."""
        if self.decode_only:
            return self.attend_last(layer, query)
        past = self._past(layer)
        parts = [
            F.scaled_dot_product_attention(
                part.transpose(0, 1).unsqueeze(0), k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True
            )
            for part, (k, v), mask in zip(torch.split(query, self._counts), past, self._masks, strict=True)
        ]
        return torch.cat([part[0].transpose(0, 1) for part in parts])

    def attend_last(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """One query per sequence, [seqs, heads, head_dim], over the whole sequence; same shape back."""
        kv_heads, head_dim = self._heads
        # Query heads that share a KV head are the rows of one product: no K or V is repeated.
        rows = query.reshape(len(self._counts), 1, kv_heads, -1, head_dim).unbind(0)
        past = self._past(layer)
        parts = [F.scaled_dot_product_attention(row, k, v) for row, (k, v) in zip(rows, past, strict=True)]
        return torch.cat(parts).view(query.shape)

    def _past(self, layer: int) -> list[KeyValue]:
        past = self._reader.past(layer)
        return [(k.to(self._dtype), v.to(self._dtype)) for k, v in past] if self._convert else past

    def _mask(self, seq: SeqSlice, device: torch.device) -> torch.Tensor | None:
        """Additive [new, past + new]; None where the kernel's own causal mask (past is empty) does it faster."""
        if not seq.prefix_len:
            return None
        hidden = torch.ones(seq.extend_len, seq.total_len, dtype=torch.bool, device=device).triu_(seq.prefix_len + 1)
        return torch.zeros_like(hidden, dtype=self._dtype).masked_fill_(hidden, float("-inf"))
