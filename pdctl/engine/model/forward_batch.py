"""What one forward step computes, and its pages as tensors: where new K and V go, and each sequence's past.

A layer that caches one slab (MLA's latent) reads it as both K and V. A sequence whose pages are one run of a
layer-major pool is read in place. All others are gathered, in one copy per layer for all of them. Sequences of the same
length at equal distances from each other, such as those of equally long requests that arrived together, can be read as
one tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.engine.kvcache.kv_pool import KVPool

KeyValue = tuple[torch.Tensor, torch.Tensor]  # each [sequences, kv_heads, tokens, head_dim]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SeqSlice:
    """`pages` hold `prefix_len` cached tokens and then the `extend_len` new ones; pages beyond that are ignored."""

    pages: npt.NDArray[np.int32]
    prefix_len: int
    extend_len: int

    @property
    def total_len(self) -> int:
        return self.prefix_len + self.extend_len


class Stretch(NamedTuple):
    """The part of a sequence that one step reads: `length` tokens up to its end, `skip` tokens into the first page."""

    pages: npt.NDArray[np.int32]
    skip: int
    length: int


def stretches(seqs: Sequence[SeqSlice], page_size: int, window: int = 0) -> list[Stretch]:
    """Return what each sequence's new tokens attend to, taken together; earlier pages are not read. `window` 0: all."""
    parts = []
    for seq in seqs:
        start = max(0, seq.prefix_len + 1 - window) if window else 0
        first, skip = divmod(start, page_size)
        parts.append(Stretch(seq.pages[first : -(-seq.total_len // page_size)], skip, seq.total_len - start))
    return parts


class Share(NamedTuple):
    """What one attention DP group brings to a pass: new tokens, sequences, and whether it extends prompts."""

    tokens: int
    seqs: int
    prefill: bool


@dataclass(slots=True)
class ForwardBatch:
    """Prefill, decode or both: `input_ids` are the new tokens of every sequence, one sequence after the other.

    `shares` has one entry for each attention DP group, including ours; () without attention DP. With shares the batch
    may be empty: an idle group takes part in the others' pass.
    """

    input_ids: Sequence[int] | npt.NDArray[np.int64]
    seqs: Sequence[SeqSlice]
    shares: tuple[Share, ...] = ()

    def check(self, page_size: int) -> None:
        """Raise ValueError if lengths contradict each other: nothing may be written past the end of a page list."""
        for number, seq in enumerate(self.seqs):
            lengths = f"sequence {number}: prefix {seq.prefix_len}, extend {seq.extend_len}"
            if seq.extend_len < 1 or seq.prefix_len < 0:
                raise ValueError(f"{lengths}; a sequence extends by at least 1")
            if len(seq.pages) * page_size < seq.total_len:
                raise ValueError(f"{lengths}; {len(seq.pages)} pages of {page_size} tokens do not hold that")
        total = sum(seq.extend_len for seq in self.seqs)
        if total != len(self.input_ids) or not (total or self.shares):
            raise ValueError(f"{len(self.input_ids)} input ids for sequences that extend by {total} tokens")


def positions(seqs: Sequence[SeqSlice]) -> Indices:
    """Return the position of every new token in its own sequence."""
    if all(seq.extend_len == 1 for seq in seqs):
        return np.array([seq.prefix_len for seq in seqs], dtype=np.int64)
    return np.concatenate([np.arange(seq.prefix_len, seq.total_len) for seq in seqs])


class PageWriter:
    """Stores one step's new K and V, layer by layer."""

    def __init__(self, pool: KVPool, seqs: Sequence[SeqSlice], where: Indices) -> None:
        geometry = pool.geometry
        numbers, offsets = np.divmod(where, geometry.page_size)
        pages = _pages_at(seqs, numbers)
        size = geometry.token_stride
        first = pages * (geometry.page_stride // size) + offsets
        slabs = np.arange(geometry.num_slabs, dtype=np.int64) * (geometry.slab_stride // size)
        rows = first[None, :, None] + slabs.reshape(geometry.layers, 1, geometry.slabs_per_layer)
        self._apart = size != geometry.token_bytes
        if self._apart:  # one row per head
            rows = rows[..., None] + np.arange(geometry.kv_heads) * geometry.page_size
        self._pool = pool
        self._rows = torch.from_numpy(rows).to(pool.device).unbind(0)

    def write(self, layer: int, key_value: torch.Tensor) -> None:
        """`key_value` is [tokens, slabs of a layer, kv_heads * head_dim]."""
        rows = self._rows[layer]
        if self._apart:
            key_value = key_value.view(*rows.shape, -1)
        self._pool.rows.index_put_((rows,), key_value.to(self._pool.dtype))


def _pages_at(seqs: Sequence[SeqSlice], numbers: Indices) -> Indices:
    """Return the page of each new token, given its index in its own sequence's page list."""
    if len(numbers) == len(seqs):
        held = [int(seq.pages[number]) for seq, number in zip(seqs, numbers.tolist(), strict=True)]
        return np.array(held, dtype=np.int64)
    ends = np.cumsum([seq.extend_len for seq in seqs])
    parts = np.split(numbers, ends[:-1])
    return np.concatenate([seq.pages[part] for seq, part in zip(seqs, parts, strict=True)]).astype(np.int64)


class KVPlace(NamedTuple):
    """Where `seqs` sequences lie, `step` tokens apart: in the pool, or in the gathered copy."""

    gathered: bool
    start: int  # first token
    length: int  # tokens of each
    seqs: int = 1
    step: int = 0

    def joined(self, other: KVPlace) -> KVPlace | None:
        """Return both as one place if `other` continues this one, else None."""
        step = other.start - self.start - (self.seqs - 1) * self.step
        if (self.gathered, self.length) != (other.gathered, other.length) or step <= 0:
            return None
        return self._replace(seqs=self.seqs + 1, step=step) if step == self.step or self.seqs == 1 else None

    def of(self, tokens: torch.Tensor) -> torch.Tensor:
        """View [slabs, 1, kv_heads, tokens, head_dim] as [slabs, seqs, kv_heads, length, head_dim], without a copy."""
        slabs, _, heads, _, dim = tokens.shape
        slab, _, head, token, number = tokens.stride()
        return tokens.as_strided(
            (slabs, self.seqs, heads, self.length, dim),
            (slab, self.step * token, head, token, number),
            tokens.storage_offset() + self.start * token,
        )


class PageReader:
    """K and V of a stretch of every sequence, past and new tokens together, layer by layer."""

    def __init__(self, pool: KVPool, parts: Sequence[Stretch], join: bool = False) -> None:
        """With `join`, sequences that can be read as one tensor are."""
        self._pool = pool
        places = self._places(parts)
        if join:
            places = _joined(places)
        tokens = pool.tokens
        self._views = [
            (place, () if place.gathered or tokens is None else place.of(tokens).unbind(0)) for place in places
        ]

    def past(self, layer: int) -> list[KeyValue]:
        """Return K and V in the step's order of sequences, one entry per joined group; valid until the next call."""
        slabs = self._pool.geometry.slabs_per_layer
        first, last = slabs * layer, slabs * layer + slabs - 1
        copy = self._gather(layer) if self._strips else None
        found = []
        for place, views in self._views:
            if copy is None or not place.gathered:
                found.append((views[first], views[last]))  # K, then V
            else:
                both = place.of(copy)
                found.append((both[0], both[-1]))
        return found

    def _places(self, parts: Sequence[Stretch]) -> list[KVPlace]:
        size = self._pool.geometry.page_size
        pages = [part.pages for part in parts]
        broken = _scattered_lists(pages) if self._pool.tokens is not None else set(range(len(parts)))
        self._strips = self._plan_gather([pages[index] for index in sorted(broken)]) if broken else ()
        places, copied = [], 0
        for index, part in enumerate(parts):
            start = copied if index in broken else int(part.pages[0]) * size
            places.append(KVPlace(index in broken, start + part.skip, part.length))
            copied += len(part.pages) * size if index in broken else 0
        return places

    def _plan_gather(self, scattered: Sequence[npt.NDArray[np.int32]]) -> tuple[torch.Tensor, ...]:
        """Return, per layer, the strips of the pages of the scattered sequences: slab by slab, head by head."""
        geometry = self._pool.geometry
        size = geometry.page_size * geometry.token_stride
        first = np.concatenate(scattered).astype(np.int64) * (geometry.page_stride // size)
        slabs = np.arange(geometry.num_slabs, dtype=np.int64) * (geometry.slab_stride // size)
        heads = np.arange(geometry.item_bytes // size, dtype=np.int64)
        strips = (slabs[:, None, None] + heads[:, None] + first).reshape(geometry.layers, -1)
        layers: tuple[torch.Tensor, ...] = torch.from_numpy(strips).to(self._pool.device).unbind(0)
        return layers

    def _gather(self, layer: int) -> torch.Tensor:
        """Return the gathered strips as [slabs of a layer, 1, kv_heads, tokens, head_dim]."""
        geometry = self._pool.geometry
        copy = self._pool.strips.index_select(0, self._strips[layer])
        if geometry.token_stride != geometry.token_bytes:
            return copy.view(geometry.slabs_per_layer, 1, geometry.kv_heads, -1, geometry.head_dim)
        return copy.view(geometry.slabs_per_layer, 1, -1, geometry.kv_heads, geometry.head_dim).transpose(2, 3)


def _joined(places: Sequence[KVPlace]) -> list[KVPlace]:
    found = [places[0]]
    for place in places[1:]:
        both = found[-1].joined(place)
        if both is None:
            found.append(place)
        else:
            found[-1] = both
    return found


def _scattered_lists(pages: Sequence[npt.NDArray[np.int32]]) -> set[int]:
    """Return which of the page lists are not one ascending run."""
    breaks = np.diff(np.concatenate(pages)) != 1
    ends = np.cumsum([len(own) for own in pages])
    breaks[ends[:-1] - 1] = False  # from one list to the next
    places = np.flatnonzero(breaks)
    return set(np.searchsorted(ends, places, side="right").tolist()) if len(places) else set()
