"""One step's work: new tokens of several sequences, each with the pages that hold its past and its new tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class SeqSlice:
    """`pages` hold `prefix_len` cached tokens and then the `extend_len` new ones; pages beyond that are ignored."""

    pages: npt.NDArray[np.int32]
    prefix_len: int
    extend_len: int

    @property
    def total_len(self) -> int:
        return self.prefix_len + self.extend_len


class Share(NamedTuple):
    """What one attention DP group brings to a pass: new tokens, sequences, and whether it extends prompts."""

    tokens: int
    seqs: int
    prefill: bool


@dataclass(slots=True)
class ForwardBatch:
    """Prefill, decode or both: `input_ids` are the new tokens of every sequence, one sequence after the other.

    `shares` has one entry for each attention DP group, ours among them; () without attention DP. With them the batch
    may be empty: an idle group takes part in the others' pass.
    """

    input_ids: Sequence[int] | npt.NDArray[np.int64]
    seqs: Sequence[SeqSlice]
    shares: tuple[Share, ...] = ()

    def check(self, page_size: int) -> None:
        """Raise ValueError when lengths contradict each other: the pool must never be written past a page list."""
        for number, seq in enumerate(self.seqs):
            lengths = f"sequence {number}: prefix {seq.prefix_len}, extend {seq.extend_len}"
            if seq.extend_len < 1 or seq.prefix_len < 0:
                raise ValueError(f"{lengths}; a sequence extends by at least 1")
            if len(seq.pages) * page_size < seq.total_len:
                raise ValueError(f"{lengths}; {len(seq.pages)} pages of {page_size} tokens do not hold that")
        total = sum(seq.extend_len for seq in self.seqs)
        if total != len(self.input_ids) or not (total or self.shares):
            raise ValueError(f"{len(self.input_ids)} input ids for sequences that extend by {total} tokens")
