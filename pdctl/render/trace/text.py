"""One room for people: what it was, its timeline over lanes, how long each part took, the verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.render.columns import prose, table
from pdctl.render.trace import measures
from pdctl.render.trace.harmless import harmless
from pdctl.render.trace.outcomes import MARKS
from pdctl.render.trace.places import Places
from pdctl.render.trace.timeline import timeline
from pdctl.render.trace.verdict import verdict

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator

    from pdctl.render.term import Term
    from pdctl.trace.room import Room


def show(room: Room, term: Term, zone: dt.tzinfo | None = None, told: bool = False) -> None:
    """`zone`: the clock the times are shown on; None is this machine's. `told`: its lines stand above already."""
    first = True
    for block in _blocks(harmless(room, term), term, zone, told):
        if not block:
            continue
        if not first:
            term.write()
        for line in block:
            term.write(line.rstrip())
        first = False


def _blocks(room: Room, term: Term, zone: dt.tzinfo | None, told: bool) -> Iterator[list[str]]:
    files = [*(step.file for step in room.events), *(line.file for line in (*room.evidence, *room.echoes))]
    places = Places(files, term)
    yield header(room, term, zone)
    if not told:
        yield timeline(room, term, places)
    yield _durations(room, term)
    yield from verdict(room, term, places)
    yield _notes(room, term)


def header(room: Room, term: Term, zone: dt.tzinfo | None) -> list[str]:
    """Room, outcome and pair; when, with the zone named once."""
    mark = MARKS[room.outcome.value]
    outcome = term.style(f"{term.symbol(mark.symbol, mark.plain)} {room.outcome.value}", mark.style, "bold")
    lines = [f"room {term.style(str(room.room), 'bold')}  {term.style(f'0x{room.room:x}', 'dim')}  {outcome}"]
    arrow = term.symbol("→", "->")
    prefill = room.prefill_requested or room.prefill_contacted
    pair = f"{prefill or '?'} {arrow} {room.decode or '?'}" if prefill or room.decode else ""
    lines.append(", ".join(part for part in (pair, _when(room, term, zone)) if part))
    rids = "  ".join(f"{instance} {rid}" for instance, rid in room.rids.items())
    return [*lines, *prose(term, "rid", rids, "dim")] if rids else lines


def _when(room: Room, term: Term, zone: dt.tzinfo | None) -> str:
    if room.began is None:
        return ""
    doubt = max((step.uncertainty_s for step in room.events if step.t is not None), default=0.0)
    began = measures.moment(room.began, zone, doubt)
    places = "seconds" if doubt >= measures.COARSE else "milliseconds"
    text = began.strftime("%Y-%m-%d ") + began.time().isoformat(places)
    if room.ended is not None and room.ended > room.began:
        ended = measures.moment(room.ended, zone, doubt)
        text += f" {term.symbol('–', '-')} {ended.time().isoformat(places)}"
    offset = began.strftime("%z")
    zone_name = "UTC" if offset == "+0000" else f"UTC{offset[:3]}:{offset[3:]}"
    return f"{text} {zone_name}" + (", in whole seconds" if doubt == 1 else "")


def _durations(room: Room, term: Term) -> list[str]:
    if not room.durations:
        return []
    moved = any(each.bytes is not None or each.gb_s is not None for each in room.durations)
    head = ["PHASE", "WHERE", "BEGAN", "TOOK", *(["MOVED", "SPEED"] if moved else [])]
    rows = []
    for each in room.durations:
        doubt = f" {measures.doubt(each.uncertainty_s)}".rstrip()
        began = measures.began(each)
        row = [each.name, each.instance, began, measures.took(each.seconds, each.uncertainty_s) + doubt]
        if moved:
            row.append("" if each.bytes is None else measures.size(each.bytes))
            row.append("" if each.gb_s is None else measures.speed(each.gb_s))
        rows.append([cell.replace("±", term.symbol("±", "+-")) for cell in row])
    return table(term, head, rows)


def _notes(room: Room, term: Term) -> list[str]:
    lines = []
    for clock in room.clocks:
        if clock.offset_s is None:
            continue
        off = f"{clock.instance} {clock.offset_s:+.3f} s ±{clock.uncertainty_s:g} s ({clock.why})"
        lines += prose(term, "clock", off.replace("±", term.symbol("±", "+-")), "dim")
    for note in room.notes:
        lines += prose(term, "note", note, "dim")
    return lines
