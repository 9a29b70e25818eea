"""Which known names a person most likely had in mind: every "did you mean" of pdctl."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

COMPARED = 32  # names compared letter by letter with a word
LISTED = 8  # a list of at most this many allowed names helps; a longer one is for the documentation


def nearest(word: str, known: Iterable[str]) -> str | None:
    """A name at most two edits away (one for short words), or else one that begins the word or that the word begins."""
    word = word.lower().replace("_", "-")
    limit = 2 if len(word) > 3 else 1 if len(word) > 2 else 0
    scored = []
    for order, name in enumerate(known):
        folded = name.lower().replace("_", "-")
        edits = distance(word, folded, limit)
        if edits <= limit:
            scored.append((edits, order, name))
        elif len(word) > 2 and folded.startswith(word):
            scored.append((limit + 1, order, name))
        elif len(word) > 2 and word.startswith(folded + "-"):
            scored.append((limit + 2, order, name))
    return min(scored)[2] if scored else None


def similar(word: str, known: Iterable[str], count: int = 1, cutoff: float = 0.6) -> list[str]:
    """At most `count` names that share letters with the word, the closest first; a cutoff of 1 wants the same word.

    For long names, where more than two edits can still mean the same; `nearest` for short ones.
    """
    from difflib import get_close_matches  # late: only a mistake needs it

    names = tuple(known)
    return get_close_matches(word, names if len(names) <= COMPARED else _sharing_pairs(word, names), count, cutoff)


def _sharing_pairs(word: str, known: tuple[str, ...]) -> list[str]:
    """The names that have most pairs of neighbouring letters in common with the word.

    Comparing one name takes microseconds: with every flag of every release, and thousands of unknown flags in a script,
    that was most of the time of a verb.
    """
    index = _by_pair(known)
    shared: Counter[str] = Counter()
    for pair in _pairs(word):
        shared.update(index.get(pair, ()))
    return [name for name, _ in shared.most_common(COMPARED)]


@lru_cache(maxsize=16)
def _by_pair(known: tuple[str, ...]) -> dict[str, list[str]]:
    index: dict[str, list[str]] = {}
    for name in known:
        for pair in _pairs(name):
            index.setdefault(pair, []).append(name)
    return index


def _pairs(name: str) -> set[str]:
    return {name[at : at + 2] for at in range(len(name) - 1)}


def one_of(name: str, known: Sequence[str]) -> str:
    """The fix for an unknown name: the most similar names, and all that exist."""
    near, names = similar(name, known, 2), ", ".join(known)
    return f"did you mean {' or '.join(near)}? There are {names}" if near else f"one of {names}"


def distance(one: str, other: str, limit: int) -> int:
    """Count insertions, deletions, substitutions and swaps of neighbours; beyond `limit`, any number above it."""
    if abs(len(one) - len(other)) > limit:
        return limit + 1
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, left in enumerate(one, 1):
        earlier, before = before, row
        row = [i]
        for j, right in enumerate(other, 1):
            edits = min(before[j] + 1, row[-1] + 1, before[j - 1] + (left != right))
            if i > 1 and j > 1 and left == other[j - 2] and one[i - 2] == right:
                edits = min(edits, earlier[j - 2] + 1)
            row.append(edits)
    return row[-1]


def hint(word: str, known: Iterable[str]) -> str:
    """The hint for an unknown word: its nearest name, the list of names if that is short, or nothing."""
    names = tuple(known)
    near = nearest(word, names)
    allowed = f"allowed: {', '.join(names)}" if 0 < len(names) <= LISTED else ""
    return "; ".join(filter(None, (f"did you mean `{near}`?" if near else "", allowed)))
