"""What `pdctl import` says on stderr: its notes, and how many there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.imports.notes import Sort

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.imports.notes import Note
    from pdctl.render.term import Term

COLORS = {Sort.SUSPECT: "red", Sort.LEFT_OUT: "yellow", Sort.CHANGED: "cyan", Sort.ASSUMED: "blue"}


def show(notes: Sequence[Note], summary: str, file: str, term: Term) -> None:
    """One line for each note, as compilers write them: place, sort, text."""
    for note in notes:
        place = f"{note.place}: " if note.place else ""
        term.write(f"{place}{term.style(note.sort.value, COLORS[note.sort], 'bold')}: {_printable(note.text)}")
    counted = [f"{count} {sort.value}" for sort in Sort if (count := sum(note.sort is sort for note in notes))]
    whither = f" to {file}" if file else ""
    term.write(f"imported {summary}{whither}" + (f"; {', '.join(counted)}" if counted else ""))


def _printable(text: str) -> str:
    """What could steer the terminal as a replacement character."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
