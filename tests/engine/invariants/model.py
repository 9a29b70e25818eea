"""A model whose K and V are the tokens themselves: the next one depends on all before it, read from the pool."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from pdctl.engine.kvcache.kv_pool import KVPool
from pdctl.engine.model.forward_pass import ForwardBatch
from tests.engine.invariants.transport import Tokens

VOCABULARY = 64
POSITIONS = 1024
NONSENSE = VOCABULARY - 1  # the answer to K and V that are not those of the prompt


def next_token(tokens: Sequence[int]) -> int:
    """Never NONSENSE."""
    mixed = 17
    for token in tokens:
        mixed = (mixed * 31 + token + 7) % 1_000_003
    return mixed % NONSENSE


def reference(prompt: Sequence[int], count: int) -> list[int]:
    """The greedy answer of `count` tokens."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class SimModel:
    """Stands in for ModelRunner. `tokens` is the pool as an array; a number holds a token and its position."""

    def __init__(self, pool: KVPool, tokens: Tokens) -> None:
        self.pool = pool
        self._tokens = tokens

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        batch.check(self.pool.geometry.page_size)
        logits = torch.zeros(len(batch.seqs), VOCABULARY)
        at = 0
        for row, seq in enumerate(batch.seqs):
            self._write(seq.pages, seq.prefix_len, batch.input_ids[at : at + seq.extend_len])
            at += seq.extend_len
            logits[row, self._next(seq.pages, seq.total_len)] = 1.0
        return logits

    def _write(self, pages: npt.NDArray[np.int32], start: int, tokens: Sequence[int] | npt.NDArray[np.int64]) -> None:
        size = self.pool.geometry.page_size
        for place, token in enumerate(tokens, start):
            self._tokens[:, pages[place // size], place % size] = int(token) * POSITIONS + place

    def _next(self, pages: npt.NDArray[np.int32], length: int) -> int:
        size = self.pool.geometry.page_size
        there = self._tokens[:, pages[: -(-length // size)]]  # [slabs, pages, slots, heads, dim]
        flat = there.reshape(there.shape[0], -1, there.shape[3] * there.shape[4])[:, :length]
        numbers = flat[0, :, 0]
        if not (flat == numbers[None, :, None]).all():
            return NONSENSE
        values = numbers.astype(np.int64)
        if not np.array_equal(values % POSITIONS, np.arange(length)):
            return NONSENSE
        return next_token((values // POSITIONS).tolist())
