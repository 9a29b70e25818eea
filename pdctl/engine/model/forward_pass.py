"""What one forward pass computes: its tokens, their pages as tensors, attention of every new token over its sequence.

A layer that caches one slab (MLA's latent) reads it as both K and V. A sequence whose pages are one run of a
layer-major pool is read in place. All others are gathered, in one copy per layer for all of them. Sequences of the same
length at equal distances from each other, such as those of equally long requests that arrived together, can be read as
one tensor.

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

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from pdctl.engine.config.layer_kinds import FULL
from pdctl.engine.model.linear import sigmoid
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.engine.kvcache.kv_pool import KVPool


KeyValue = tuple[torch.Tensor, torch.Tensor]  # each [sequences, kv_heads, tokens, head_dim]
Indices = npt.NDArray[np.int64]

LINE = 64  # bytes of a cache line


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
        not depend on the others, as long as one thread computes it (linear.py) and every operand has the same
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
