"""Which blocks of earlier prompts a prefill still has, by the names that a trace gives to blocks of prompts.

A block is found only behind those before it. What has not been used for longest goes first, the end of a prompt before
its start; blocks live in the KV memory that no room needs.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class PrefixCache:
    def __init__(self) -> None:
        self._blocks: dict[int, None] = {}  # the longest unused first

    def find(self, blocks: Sequence[int]) -> int:
        """How many of the first blocks of a prompt are there."""
        here = self._blocks
        for at, block in enumerate(blocks):
            if block not in here:
                return at
        return len(blocks)

    def keep(self, blocks: Sequence[int], room_for: int) -> None:
        """Use or add the blocks of a prompt; then drop what is beyond the room there is."""
        here = self._blocks
        for block in reversed(blocks):
            here.pop(block, None)
            here[block] = None
        if len(here) > room_for:
            for block in list(islice(here, len(here) - max(0, room_for))):
                del here[block]
