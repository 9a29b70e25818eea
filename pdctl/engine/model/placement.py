"""Where in memory attention finds its operands: at addresses of which a row's bits do not depend.

MKL, which multiplies for torch's attention on x86, gives the same bits for the same operands where they begin at the
same place within a cache line (its manual: "aligned on 64-byte boundaries"), and may add in another order elsewhere:
where a sequence's pages lie in the pool, or a row in a batch, would change an answer. What begins elsewhere is copied.
Heads of 16 float32 numbers and more, as all published models have them, mostly begin right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from pdctl.engine.kvcache.kv_pool import KVPool

LINE = 64  # bytes


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
