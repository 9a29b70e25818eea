"""The timeline as text: a row for each step on its lane, and the silence that matters painted and named."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pdctl.render.trace import measures
from pdctl.render.trace.gaps import gap_name, gap_row
from pdctl.render.trace.lanes import Lanes
from pdctl.render.trace.outcomes import BROKEN
from pdctl.render.trace.rows import collapsed, named
from pdctl.render.visible import cells, fitted, padded, wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.render.term import Term
    from pdctl.render.trace.places import Places
    from pdctl.render.trace.rows import Row
    from pdctl.trace.room import Room

ROOMY = 100  # columns from which the instance stands in each row; below, its lane and file tell it
TEXT = 24  # columns of a line's text at least
BAR = 4  # of the shade on either side of a gap's name
PHASES = {"failed": "red", "timed_out": "red", "aborted": "red", "finished": "green"}


class Cells(NamedTuple):
    when: str
    who: str
    phase: str
    place: str
    text: str


class Widths(NamedTuple):
    when: int
    who: int
    phase: int
    place: int
    text: int


def timeline(room: Room, term: Term, places: Places) -> list[str]:
    lanes = Lanes(room, term)
    rows = collapsed(room.events)
    if not rows:
        return []
    shown = [_cells(row, room, term, places) for row in rows]
    widths = _widths(shown, lanes, term)
    lines = lanes.legend(widths.when + 1)
    at, gap = gap_row(rows, room.gap), _gap(room, rows, lanes, widths, term)
    for index, (row, cell) in enumerate(zip(rows, shown, strict=True)):
        if index == at:
            lines += gap
        lines.append(_line(row, cell, lanes, widths, term, places))
    if at == len(rows):
        lines += gap
    return lines


def short_room(text: str, room: int, dots: str = "…") -> str:
    """The room's many digits stand in the header: `room=…9708` tells them from another's."""
    digits = str(room)
    return text.replace(digits, dots + digits[-4:]) if len(digits) > 8 else text


def _cells(row: Row, room: Room, term: Term, places: Places) -> Cells:
    step = row.step
    sign = term.symbol("±", "+-")
    doubt = measures.doubt(step.uncertainty_s).replace("±", sign) if step.t is not None else ""
    text = short_room(step.text, room.room, term.symbol("…", "...")) if term.tty else step.text
    ranks = named(row.ranks, term.symbol("×", "x"))
    who = ranks if term.tty and term.width < ROOMY else f"{step.instance} {ranks}".rstrip()
    return Cells(
        when=f"{measures.exact(step.delta_s, step.uncertainty_s)} {doubt}".rstrip(),
        who=who,
        phase=step.phase.value.replace("_", " ") if step.phase else "",
        place=places.text(step.file, step.line),
        text=text,
    )


def _widths(shown: Sequence[Cells], lanes: Lanes, term: Term) -> Widths:
    when, who, phase, place, text = (max(cells(cell[at]) for cell in shown) for at in range(5))
    if not term.tty:
        return Widths(when, who, phase, place, text)
    fixed = when + 1 + lanes.width + (who + 1 if who else 0) + phase + 1
    place = min(place, max(12, term.width - fixed - TEXT - 1))
    return Widths(when, who, phase, place, max(TEXT // 2, term.width - fixed - place - 1))


def _line(row: Row, cell: Cells, lanes: Lanes, widths: Widths, term: Term, places: Places) -> str:
    step = row.step
    colour = PHASES.get(step.phase.value if step.phase else "", "")
    text = padded(fitted(cell.text, widths.text), widths.text) if term.tty else cell.text
    styles = ("dim",) if step.echo else (colour,) if colour else ()
    parts = [
        term.style(cell.when.rjust(widths.when), "dim"),
        lanes.marked(step.instance, _mark(row, term), *((colour, "bold") if colour else ())).rstrip(),
        term.style(padded(fitted(cell.who, widths.who), widths.who), *lanes.styles(step.instance)),
        term.style(padded(cell.phase, widths.phase), *styles),
        places.link(step.file, step.line, fitted(cell.place, widths.place), "dim")
        + " " * (widths.place - min(widths.place, cells(cell.place))),
        term.style(text, *styles),
    ]
    return " ".join(part for part, width in zip(parts, (1, 1, *widths[1:]), strict=True) if width)


def _mark(row: Row, term: Term) -> str:
    phase = row.step.phase.value if row.step.phase else ""
    if row.step.echo:
        return term.symbol("○", "o")
    if phase == "finished":
        return term.symbol("✓", "+")
    return term.symbol("✗", "x") if phase in PHASES else term.symbol("●", "*")


def _gap(room: Room, rows: Sequence[Row], lanes: Lanes, widths: Widths, term: Term) -> list[str]:
    """A block of shade behind the lanes with its name in it, over as many lines as the name needs."""
    if room.gap is None:
        return []
    shade = term.symbol("░", ":") * BAR
    colour = "red" if room.outcome.value in BROKEN else "yellow"
    head = f"{' ' * widths.when} {lanes.silent()}"
    name = gap_name(room, rows)
    space = max(TEXT, term.width - widths.when - 1 - lanes.width - 2 * BAR - 2) if term.tty else cells(name)
    parts = wrapped(name, space)
    width = max(cells(part) for part in parts)
    bar = term.style(shade, colour)
    block = [f"{head}{bar} {term.style(padded(part, width), colour, 'bold')} {bar}" for part in parts]
    return [head, *block, head]
