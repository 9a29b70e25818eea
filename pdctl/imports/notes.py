"""What an import has to say besides the topology: each with the place it is about."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Sort(str, Enum):
    """LEFT_OUT: a topology has no place for it. ASSUMED: nobody said. CHANGED: pdctl does it in another way."""

    SUSPECT = "looks wrong"
    LEFT_OUT = "left out"
    CHANGED = "changed"
    ASSUMED = "assumed"


class Note(NamedTuple):
    """`place` is file:line, or "" where the whole is meant."""

    sort: Sort
    place: str
    text: str

    def __str__(self) -> str:
        return f"{self.sort.value}: {self.place}: {self.text}" if self.place else f"{self.sort.value}: {self.text}"


class Notes:
    """Collects notes, each once, those on one thing together."""

    def __init__(self) -> None:
        self._found: dict[Note, None] = {}

    def suspect(self, place: str, text: str) -> None:
        self._found.setdefault(Note(Sort.SUSPECT, place, text))

    def left_out(self, place: str, text: str) -> None:
        self._found.setdefault(Note(Sort.LEFT_OUT, place, text))

    def changed(self, place: str, text: str) -> None:
        self._found.setdefault(Note(Sort.CHANGED, place, text))

    def assumed(self, place: str, text: str) -> None:
        self._found.setdefault(Note(Sort.ASSUMED, place, text))

    def listed(self) -> tuple[Note, ...]:
        """What looks wrong first; of each sort, what has a place before what has none."""
        order = list(Sort)
        return tuple(sorted(self._found, key=lambda note: (order.index(note.sort), not note.place)))
