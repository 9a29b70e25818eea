"""One room as text: what it was, its timeline over lanes, how long each part took, the verdict with its evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.quick_definitions import NamedTuple
from pdctl.render.term import cells, fitted, padded, prose, table, wrapped
from pdctl.render.trace import wording
from pdctl.render.trace.steps import Lanes, collapsed, gap_name, gap_row, named
from pdctl.render.trace.wording import MARKS, STRAY, Places, describe_without_cause, describe_wrong_prefill, escape_all
from pdctl.trace.room import BROKEN

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Sequence

    from pdctl.render.term import Term
    from pdctl.render.trace.steps import StepRow
    from pdctl.trace.room import Evidence, Room


ROOMY = 100  # columns from which each row names the instance; below, its lane and file do
TEXT = 24  # minimum columns of a line's text
BAR = 4  # columns of shade on either side of a gap's name
PHASES = {"failed": "red", "timed_out": "red", "aborted": "red", "finished": "green"}


class Cells(NamedTuple):
    when: str
    who: str
    phase: str
    place: str
    text: str


class TimelineWidths(NamedTuple):
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
    """`text` with the room's number cut to `room=…9708`: the header has all digits."""
    digits = str(room)
    return text.replace(digits, dots + digits[-4:]) if len(digits) > 8 else text


def _cells(row: StepRow, room: Room, term: Term, places: Places) -> Cells:
    step = row.step
    sign = term.symbol("±", "+-")
    doubt = wording.doubt(step.uncertainty_s).replace("±", sign) if step.t is not None else ""
    text = short_room(step.text, room.room, term.symbol("…", "...")) if term.tty else step.text
    ranks = named(row.ranks, term.symbol("×", "x"))
    who = ranks if term.tty and term.width < ROOMY else f"{step.instance} {ranks}".rstrip()
    return Cells(
        when=f"{wording.exact(step.delta_s, step.uncertainty_s)} {doubt}".rstrip(),
        who=who,
        phase=step.phase.value.replace("_", " ") if step.phase else "",
        place=places.text(step.file, step.line),
        text=text,
    )


def _widths(shown: Sequence[Cells], lanes: Lanes, term: Term) -> TimelineWidths:
    when, who, phase, place, text = (max(cells(cell[at]) for cell in shown) for at in range(5))
    if not term.tty:
        return TimelineWidths(when, who, phase, place, text)
    fixed = when + 1 + lanes.width + (who + 1 if who else 0) + phase + 1
    place = min(place, max(12, term.width - fixed - TEXT - 1))
    return TimelineWidths(when, who, phase, place, max(TEXT // 2, term.width - fixed - place - 1))


def _line(row: StepRow, cell: Cells, lanes: Lanes, widths: TimelineWidths, term: Term, places: Places) -> str:
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


def _mark(row: StepRow, term: Term) -> str:
    phase = row.step.phase.value if row.step.phase else ""
    if row.step.echo:
        return term.symbol("○", "o")
    if phase == "finished":
        return term.symbol("✓", "+")
    return term.symbol("✗", "x") if phase in PHASES else term.symbol("●", "*")


def _gap(room: Room, rows: Sequence[StepRow], lanes: Lanes, widths: TimelineWidths, term: Term) -> list[str]:
    """A shaded block to the right of the lanes with the gap's name in it, on as many lines as the name needs."""
    if room.gap is None:
        return []
    shade = term.symbol("░", ":") * BAR
    colour = "red" if room.outcome in BROKEN else "yellow"
    head = f"{' ' * widths.when} {lanes.silent()}"
    name = gap_name(room, rows)
    space = max(TEXT, term.width - widths.when - 1 - lanes.width - 2 * BAR - 2) if term.tty else cells(name)
    parts = wrapped(name, space)
    width = max(cells(part) for part in parts)
    bar = term.style(shade, colour)
    block = [f"{head}{bar} {term.style(padded(part, width), colour, 'bold')} {bar}" for part in parts]
    return [head, *block, head]


ARROW = 17  # columns


class VerdictLeg(NamedTuple):
    """One leg of a request: who sent what to whom."""

    source: str
    what: str
    target: str
    said: str
    styles: tuple[str, ...] = ()


def verdict(room: Room, term: Term, places: Places) -> Iterator[list[str]]:
    """Blocks of lines: the cause, who was contacted, the evidence, what would have shown more, the fix."""
    yield _headline(room, term)
    yield _contact(room, term)
    yield _lines("evidence", room.evidence, room, term, places)
    echoes = [line._replace(says="") for line in room.echoes]  # the title says it for all of them
    yield _lines("echoes (effects, not causes)", echoes, room, term, places)
    yield [line for each in room.consequences for line in prose(term, "then:", each, "bold")]
    yield _missing(room, term)
    if room.fix:  # one command to paste, so never broken or cut
        yield [f"{term.style('fix:', 'green', 'bold')} {room.fix}"]


def _headline(room: Room, term: Term) -> list[str]:
    mark, cause = MARKS[room.outcome.value], room.cause
    sign = term.symbol(mark.symbol, mark.plain)
    if cause is None:
        return prose(term, f"{sign} {room.outcome.value}:", describe_without_cause(room), mark.style, "bold")
    head = prose(term, f"{sign} {cause.code} {cause.slug}:", cause.headline)
    lines = [term.style(line, mark.style, "bold") for line in head]
    return lines + prose(term, "why:", cause.why, "bold") if cause.why else lines


def _contact(room: Room, term: Term) -> list[str]:
    """Both legs of a mismatch: the request to one prefill, the decode's page list to another."""
    wrong = room.wrong_prefill
    if wrong is None:
        return []
    known = "router" if room.cause is not None and room.cause.side == "router" else "unknown"
    sender = next((lane.instance for lane in room.lanes if lane.role == "router"), known)
    legs = (
        VerdictLeg(sender, "POST", wrong.requested, describe_wrong_prefill(wrong)),
        VerdictLeg(room.decode or "decode", "TransferInfo", wrong.contacted, STRAY, ("red",)),
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
    """Lines grouped by component; on a terminal, what a line proves is above the line itself."""
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
    """What the line proves, then its text; in a pipe on one line, so that either can be searched for."""
    if not term.tty:
        return [f"{line.says}: {line.text}" if line.says else line.text]
    text = short_room(line.text, room.room, term.symbol("…", "..."))
    shown = fitted(text, max(20, term.width - margin))
    return [*wrapped(line.says, max(20, term.width - margin)), term.style(shown, "dim")] if line.says else [shown]


def _hanging(head: str, margin: int, text: str, term: Term) -> list[str]:
    """`head`, which takes `margin` columns, and `text` in the columns to its right."""
    first, *more = _wrapped(text, margin, term) or [""]
    return [head + first, *(" " * margin + line for line in more)]


def _wrapped(text: str, margin: int, term: Term) -> list[str]:
    """`text` wrapped to the columns right of `margin`; one line in a pipe."""
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


def show(room: Room, term: Term, zone: dt.tzinfo | None = None, told: bool = False) -> None:
    """Write the room as text. zone: of the times shown; None is this machine's. told: its lines were already shown."""
    first = True
    for block in _blocks(escape_all(room, term), term, zone, told):
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
    """Room, outcome and pair; the time, with its zone."""
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
    began = wording.moment(room.began, zone, doubt)
    places = "seconds" if doubt >= wording.COARSE else "milliseconds"
    text = began.strftime("%Y-%m-%d ") + began.time().isoformat(places)
    if room.ended is not None and room.ended > room.began:
        ended = wording.moment(room.ended, zone, doubt)
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
        doubt = f" {wording.doubt(each.uncertainty_s)}".rstrip()
        began = wording.began(each)
        row = [each.name, each.instance, began, wording.took(each.seconds, each.uncertainty_s) + doubt]
        if moved:
            row.append("" if each.bytes is None else wording.size(each.bytes))
            row.append("" if each.gb_s is None else wording.speed(each.gb_s))
        rows.append([cell.replace("±", term.symbol("±", "+-")) for cell in row])
    return table(term, head, rows)


def _notes(room: Room, term: Term) -> list[str]:
    lines = []
    for clock in room.clocks:
        if clock.offset_s is not None:
            lines += prose(term, "clock", wording.describe_clock(clock, term), "dim")
    for note in room.notes:
        lines += prose(term, "note", note, "dim")
    return lines
