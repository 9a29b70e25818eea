"""Attention of one forward step: every new token over its sequence's pages."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from pdctl.engine.model.paging import KeyValue, PageWriter, positions
from pdctl.engine.model.span import Span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.engine.kvcache.kv_pool import KVPool
    from pdctl.engine.model.forward_batch import SeqSlice


class Step:
    """What every layer of one forward step shares: page arithmetic and masks, computed once."""

    def __init__(self, pool: KVPool, seqs: Sequence[SeqSlice], dtype: torch.dtype, windows: Sequence[int]) -> None:
        """`windows` has an entry for each layer of the pool (window.py)."""
        self._counts = [seq.extend_len for seq in seqs]
        self.decode_only = max(self._counts) == 1
        where = positions(seqs)
        self.positions = torch.from_numpy(where).to(pool.device)
        self.writer = PageWriter(pool, seqs, where)
        spans = {window: Span(pool, seqs, dtype, window) for window in set(windows)}
        self._spans = [spans[window] for window in windows]

    @property
    def num_seqs(self) -> int:
        return len(self._counts)

    @property
    def last_tokens(self) -> torch.Tensor:
        """Row of each sequence's last new token."""
        return torch.tensor([end - 1 for end in accumulate(self._counts)], device=self.positions.device)

    def past(self, layer: int) -> list[KeyValue]:
        """Of each sequence, what its new tokens attend to in this layer (span.py)."""
        return self._spans[layer].past(layer)

    def pieces(self, layer: int, query: torch.Tensor) -> list[tuple[torch.Tensor, KeyValue, torch.Tensor | None]]:
        """Each sequence's rows of `query` [tokens, …], its K and V, and its mask (span.py)."""
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
