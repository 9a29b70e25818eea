"""The verdict as text: the cause and why, who was asked and who was contacted, the lines that show it, the fix."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pdctl.render.columns import prose
from pdctl.render.trace.outcomes import MARKS, STRAY, waits
from pdctl.render.trace.timeline import short_room
from pdctl.render.visible import cells, fitted, padded, wrapped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pdctl.render.term import Term
    from pdctl.render.trace.places import Places
    from pdctl.trace.room import Evidence, Room


ARROW = 17  # columns


class Leg(NamedTuple):
    """Who sent what to whom."""

    source: str
    what: str
    target: str
    said: str
    styles: tuple[str, ...] = ()


def verdict(room: Room, term: Term, places: Places) -> Iterator[list[str]]:
    """Blocks of lines: the cause, who was contacted, what shows it, what would have shown more, the fix."""
    yield _headline(room, term)
    yield _contact(room, term)
    yield _lines("evidence", room.evidence, room, term, places)
    echoes = [replace(line, says="") for line in room.echoes]  # the title says it of all of them
    yield _lines("echoes (effects, not causes)", echoes, room, term, places)
    yield [line for each in room.consequences for line in prose(term, "then:", each, "bold")]
    yield _missing(room, term)
    if room.fix:  # one command to paste, so never broken or cut
        yield [f"{term.style('fix:', 'green', 'bold')} {room.fix}"]


def _headline(room: Room, term: Term) -> list[str]:
    mark, cause = MARKS[room.outcome.value], room.cause
    sign = term.symbol(mark.symbol, mark.plain)
    if cause is None:
        return prose(term, f"{sign} {room.outcome.value}:", mark.said, mark.style, "bold")
    head = prose(term, f"{sign} {cause.code} {cause.slug}:", cause.headline)
    lines = [term.style(line, mark.style, "bold") for line in head]
    return lines + prose(term, "why:", cause.why, "bold") if cause.why else lines


def _contact(room: Room, term: Term) -> list[str]:
    """Both legs as they went: the request to one prefill, the decode's page list to another."""
    wrong = room.wrong_prefill
    if wrong is None:
        return []
    router = next((lane.instance for lane in room.lanes if lane.role == "router"), "router")
    legs = (
        Leg(router, "POST", wrong.requested, waits(wrong)),
        Leg(room.decode or "decode", "TransferInfo", wrong.contacted, STRAY, ("red",)),
    )
    line, head = term.symbol("─", "-"), term.symbol("▶", ">")
    source, target = max(cells(leg.source) for leg in legs), max(cells(leg.target) for leg in legs)
    rows = []
    for leg in legs:
        arrow = f"{line * 2} {leg.what} ".ljust(ARROW, line) + head
        drawn = term.style(f"{arrow} {padded(leg.target, target)}", *leg.styles, "bold")
        margin = source + ARROW + target + 7
        rows += _hanging(f"  {padded(leg.source, source)} {drawn}  ", margin, leg.said, term)
    return rows


def _lines(title: str, found: Sequence[Evidence], room: Room, term: Term, places: Places) -> list[str]:
    """Lines of each component one below the other; on a terminal what a line proves stands above the line itself."""
    if not found:
        return []
    lanes = [lane.instance for lane in room.lanes]
    order = {instance: at for at, instance in enumerate(dict.fromkeys([*lanes, *(line.instance for line in found)]))}
    who = max(cells(line.instance) for line in found)
    where = max(cells(places.text(line.file, line.line)) for line in found)
    lines = [term.style(f"{title}:", "bold")]
    before = ""
    for line in sorted(found, key=lambda line: order[line.instance]):
        name = padded("" if line.instance == before and term.tty else line.instance, who)
        place = places.text(line.file, line.line)
        link = places.link(line.file, line.line, place, "dim") + " " * (where - cells(place))
        first, *more = _proof(line, room, term, who + where + 6)
        lines += [f"  {name}  {link}  {first}", *(" " * (who + where + 6) + one for one in more)]
        before = line.instance
    return lines


def _proof(line: Evidence, room: Room, term: Term, margin: int) -> list[str]:
    """What it proves and what it says; in a pipe on one line, so that one can search for either."""
    if not term.tty:
        return [f"{line.says}: {line.text}" if line.says else line.text]
    text = short_room(line.text, room.room, term.symbol("…", "..."))
    shown = fitted(text, max(20, term.width - margin))
    return [*wrapped(line.says, max(20, term.width - margin)), term.style(shown, "dim")] if line.says else [shown]


def _hanging(head: str, margin: int, text: str, term: Term) -> list[str]:
    """`head`, which takes `margin` columns, and `text` in the columns right of it."""
    first, *more = _wrapped(text, margin, term) or [""]
    return [head + first, *(" " * margin + line for line in more)]


def _wrapped(text: str, margin: int, term: Term) -> list[str]:
    """Words in the columns right of `margin`; one line in a pipe."""
    return wrapped(text, max(20, term.width - margin)) if term.tty else [text] if text else []


def _missing(room: Room, term: Term) -> list[str]:
    lines = [term.style("missing evidence:", "bold")] if room.missing_evidence else []
    dash, arrow = term.symbol("–", "-"), term.symbol("→", "->")
    for missing in room.missing_evidence:
        lines += _hanging(f"  {dash} ", 4, missing.what, term)
        styled = [term.style(line, "cyan") for line in _wrapped(missing.enable_with, 7 + len(arrow), term)]
        lines += (
            [f"      {arrow} {styled[0]}", *(" " * (7 + len(arrow)) + line for line in styled[1:])] if styled else []
        )
    return lines
