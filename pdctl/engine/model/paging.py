"""From page lists to tensors: where a step's new K/V are written, and each sequence's past as K and V.

A sequence whose pages are one run of a layer-major pool is read in place. All others are gathered, one copy per layer
for all of them together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from pdctl.engine.cache.geometry import SLABS_PER_LAYER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.engine.cache.pool import KVPool
    from pdctl.engine.model.batch import SeqSlice

KeyValue = tuple[torch.Tensor, torch.Tensor]  # each [1, kv_heads, tokens, head_dim]
Indices = npt.NDArray[np.int64]


def positions(seqs: Sequence[SeqSlice]) -> Indices:
    """Position of every new token in its own sequence."""
    if all(seq.extend_len == 1 for seq in seqs):
        return np.array([seq.prefix_len for seq in seqs], dtype=np.int64)
    return np.concatenate([np.arange(seq.prefix_len, seq.total_len) for seq in seqs])


class PageWriter:
    """Stores one step's new K and V, layer by layer."""

    def __init__(self, pool: KVPool, seqs: Sequence[SeqSlice], where: Indices) -> None:
        geometry = pool.geometry
        numbers, offsets = np.divmod(where, geometry.page_size)
        pages = _pages_at(seqs, numbers)
        first = pages * (geometry.page_stride // geometry.token_bytes) + offsets
        slabs = np.arange(geometry.num_slabs, dtype=np.int64) * (geometry.slab_stride // geometry.token_bytes)
        rows = first[None, :, None] + slabs.reshape(geometry.layers, 1, SLABS_PER_LAYER)
        self._pool = pool
        self._rows = torch.from_numpy(rows).to(pool.device).unbind(0)

    def write(self, layer: int, key_value: torch.Tensor) -> None:
        """`key_value` is [tokens, 2, kv_heads * head_dim]."""
        self._pool.rows.index_put_((self._rows[layer],), key_value.to(self._pool.dtype))


def _pages_at(seqs: Sequence[SeqSlice], numbers: Indices) -> Indices:
    """Page of each new token, from its number within its own sequence's list."""
    if len(numbers) == len(seqs):
        held = [int(seq.pages[number]) for seq, number in zip(seqs, numbers.tolist(), strict=True)]
        return np.array(held, dtype=np.int64)
    ends = np.cumsum([seq.extend_len for seq in seqs])
    parts = np.split(numbers, ends[:-1])
    return np.concatenate([seq.pages[part] for seq, part in zip(seqs, parts, strict=True)]).astype(np.int64)


class PageReader:
    """Every sequence's K and V, past and new tokens together, layer by layer."""

    def __init__(self, pool: KVPool, seqs: Sequence[SeqSlice]) -> None:
        size = pool.geometry.page_size
        pages = [seq.pages[: -(-seq.total_len // size)] for seq in seqs]
        broken = _broken(pages) if pool.tokens is not None else set(range(len(seqs)))
        self._pool = pool
        self._in_place: list[tuple[torch.Tensor, ...] | None] = [
            None if index in broken else self._view(int(own[0]) * size, seq.total_len)
            for index, (seq, own) in enumerate(zip(seqs, pages, strict=True))
        ]
        if broken:
            self._plan_gather([(seqs[index].total_len, pages[index]) for index in sorted(broken)])
        self._scattered = bool(broken)

    def past(self, layer: int) -> list[KeyValue]:
        """In the order of the step's sequences; valid until the next call."""
        gathered = iter(self._gather(layer) if self._scattered else ())
        first = SLABS_PER_LAYER * layer
        return [
            (view[first], view[first + 1]) if view is not None else next(gathered)  # K, then V
            for view in self._in_place
        ]

    def _view(self, start: int, length: int) -> tuple[torch.Tensor, ...]:
        """One [1, kv_heads, tokens, head_dim] per slab, without a copy."""
        assert self._pool.tokens is not None
        views: tuple[torch.Tensor, ...] = self._pool.tokens.narrow(3, start, length).unbind(0)
        return views

    def _plan_gather(self, scattered: Sequence[tuple[int, npt.NDArray[np.int32]]]) -> None:
        """`scattered`: length in tokens, and pages, of each sequence that is not one run."""
        geometry = self._pool.geometry
        pages = np.concatenate([own for _, own in scattered]).astype(np.int64)
        first = pages * (geometry.page_stride // geometry.item_bytes)
        slabs = np.arange(geometry.num_slabs, dtype=np.int64) * (geometry.slab_stride // geometry.item_bytes)
        items = (slabs[:, None] + first).reshape(geometry.layers, -1)
        self._items = torch.from_numpy(items).to(self._pool.device).unbind(0)
        # Alternating: a sequence's tokens, then the unwritten rest of its last page.
        self._lengths = [part for length, own in scattered for part in (length, len(own) * geometry.page_size - length)]

    def _gather(self, layer: int) -> list[KeyValue]:
        geometry = self._pool.geometry
        copy = self._pool.items.index_select(0, self._items[layer])
        both = copy.view(SLABS_PER_LAYER, 1, -1, geometry.kv_heads, geometry.head_dim).transpose(2, 3)
        parts = torch.split(both, self._lengths, dim=3)[::2]
        return [(part[0], part[1]) for part in parts]


def _broken(pages: Sequence[npt.NDArray[np.int32]]) -> set[int]:
    """Which of the page lists are not one ascending run."""
    breaks = np.diff(np.concatenate(pages)) != 1
    ends = np.cumsum([len(own) for own in pages])
    breaks[ends[:-1] - 1] = False  # from one list to the next
    places = np.flatnonzero(breaks)
    return set(np.searchsorted(ends, places, side="right").tolist()) if len(places) else set()
