"""Prompts as token ids, of every length that matters, and what each may answer."""

from __future__ import annotations

import random
from typing import NamedTuple

PAGE = 16
FIRST_ID, LAST_ID = 10, 200  # every checkpoint's vocabulary has these, and none is special


class Prompt(NamedTuple):
    ids: tuple[int, ...]
    answer: int  # tokens to make


def make(count: int, longest: int = 700, seed: int = 7) -> list[Prompt]:
    """A mix: one token, around page borders, short, and a few longer than a chunk."""
    rng = random.Random(seed)
    edges = [1, 2, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 2 * PAGE + 1, longest]
    made = []
    for number in range(count):
        length = edges[number] if number < len(edges) else rng.choice((rng.randint(1, 40), rng.randint(20, 200)))
        ids = tuple(rng.randint(FIRST_ID, LAST_ID) for _ in range(length))
        made.append(Prompt(ids, rng.choice((1, 2, 6, 12, 20))))
    return made
