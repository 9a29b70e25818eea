"""Rooms as one HTML file: no network, no fonts, ASCII; log lines are escaped, so they are always text."""

from __future__ import annotations

import base64
import hashlib
import html
from itertools import groupby
from typing import TYPE_CHECKING

from pdctl import __version__
from pdctl.package_data import data
from pdctl.quick_definitions import NamedTuple
from pdctl.render.term import visible
from pdctl.render.trace import wording
from pdctl.render.trace.steps import ORDER, StepRow, collapsed, gap_name, gap_row, lanes, named
from pdctl.render.trace.wording import MARKS, STRAY, describe_without_cause, describe_wrong_prefill, shortest
from pdctl.trace.room import BROKEN

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pdctl.trace.room import Evidence, Room


def escaped(text: str) -> str:
    """Escape for text or a quoted attribute value; control and bidirectional characters are shown as escapes."""
    return html.escape(visible(text), quote=True)


def role_class(role: str) -> str:
    """The CSS class for the colour of a role; an unknown role has none."""
    return f"role-{role if role in ORDER else ''}"


GAP_SHARE = 0.4  # share of the axis at most, so that what happened around minutes of silence stays legible
LEAST = 1e-3  # seconds; even a room with one line needs a length
NEAR = 4.0  # percent; ticks closer than this would overlap


class AxisStretch(NamedTuple):
    """A stretch of the axis: start to end in seconds is at left to right in percent."""

    start: float
    end: float
    left: float
    right: float


class Axis(NamedTuple):
    stretches: tuple[AxisStretch, ...]
    broken: bool

    @classmethod
    def of(cls, room: Room) -> Axis:
        starts = [each.start for each in room.durations if each.start is not None]
        ends = [step.delta_s + step.uncertainty_s for step in room.events if step.delta_s is not None]
        ends += [each.start + each.seconds for each in room.durations if each.start is not None]
        if room.gap is not None:
            starts.append(room.gap.start)
            ends.append(room.gap.end)
        first = min([0.0, *starts])  # a wait that a timeout line reports may begin before the first line
        last = max([first + LEAST, *ends])
        if room.gap is None or (room.gap.end - room.gap.start) / (last - first) <= GAP_SHARE:
            return cls((AxisStretch(first, last, 0.0, 100.0),), False)
        return cls(_broken((first, room.gap.start, min(room.gap.end, last), last)), True)

    def place(self, seconds: float) -> float:
        """Percent from the left."""
        for start, end, left, right in self.stretches:
            if seconds <= end:
                share = (max(seconds, start) - start) / (end - start) if end > start else 0.0
                return left + share * (right - left)
        return 100.0

    def ticks(self) -> list[tuple[float, float]]:
        """(seconds, percent): the ends of every stretch and, on an unbroken axis, round numbers between them."""
        first, last = self.stretches[0], self.stretches[-1]
        moments = [first.start, *(stretch.end for stretch in self.stretches)]
        if not self.broken:
            step = _step(last.end - first.start)
            moments += [first.start + at * step for at in range(1, 10) if first.start + at * step < last.end]
        ticks: list[tuple[float, float]] = []
        for seconds, percent in sorted((moment, self.place(moment)) for moment in set(moments)):
            if not ticks or percent - ticks[-1][1] >= NEAR:
                ticks.append((seconds, percent))
        return ticks


def _broken(moments: tuple[float, float, float, float]) -> tuple[AxisStretch, ...]:
    """Stretches before, in and after the gap; before and after share the rest by length, each at least a tenth."""
    before, after = moments[1] - moments[0], moments[3] - moments[2]
    rest = 1 - GAP_SHARE
    least = 0.1 if before and after else 0.0
    share = max(least, min(rest - least, rest * before / (before + after))) if before + after > 0 else 0.0
    middle = share + (GAP_SHARE if before + after > 0 else 1.0)
    edges = (0.0, 100 * share, 100 * middle, 100.0)
    return tuple(
        AxisStretch(moments[at], moments[at + 1], edges[at], edges[at + 1])
        for at in range(3)
        if edges[at + 1] > edges[at]
    )


def _step(total: float) -> float:
    """A round number of which four to ten fit into `total`."""
    step = 10.0**-6
    while total / step > 10:
        for factor in (2, 2.5, 2):  # 1, 2, 5, 10
            step *= factor
            if total / step <= 10:
                break
    return step


MARK, BAR, TOP = 24, 20, 11  # pixels: a row of marks, a row of bars, above the first
MARK_WIDTH = 1.6  # percent of the axis that one mark needs, on a page of usual width
LETTER = 0.75  # percent of the axis that one character of a bar's name needs


class ChartMark(NamedTuple):
    """at: index of its row among all rows, which is also the row's id in the table of lines."""

    at: int
    row: StepRow


class Box(NamedTuple):
    """The marks of one clock reading, in file order."""

    left: float
    width: float
    level: int
    marks: tuple[ChartMark, ...]


class ChartBar(NamedTuple):
    left: float
    width: float
    level: int
    name: str
    told: str


def chart(room: Room, prefix: str) -> Iterator[str]:
    axis, rows = Axis.of(room), collapsed(room.events)
    yield '<div class="scroll"><div class="chart">'
    yield from _gap_name(room, rows, axis)
    for lane in lanes(room):
        boxes = _boxes([ChartMark(at, row) for at, row in enumerate(rows) if row.step.instance == lane.instance], axis)
        bars = _bars(room, lane.instance, axis)
        deep, low = (1 + max((each.level for each in found), default=-1) for found in (boxes, bars))
        height = TOP + MARK * max(deep, 1) + BAR * low + 4
        role = role_class(lane.role)
        yield f'<div class="lane-name {role}"><b>{escaped(lane.instance)}</b><span>{escaped(lane.why)}</span></div>'
        yield f'<div class="track {role}" style="min-height:{height}px"><div class="rail"></div>'
        yield from _gap(room, axis)
        yield from (_drawn_box(box, prefix) for box in boxes)
        yield from (_drawn_bar(bar, TOP + MARK * max(deep, 1)) for bar in bars)
        yield "</div>"
    yield '<div></div><div class="axis">'
    doubt = max((row.step.uncertainty_s for row in rows), default=0.0)
    yield from (f'<span style="left:{place:.2f}%">{wording.exact(at, doubt)}</span>' for at, place in axis.ticks())
    yield "</div></div></div>"


def _boxes(marks: Iterable[ChartMark], axis: Axis) -> list[Box]:
    """Marks of one second share a box, as their order in it is unknown. Boxes that would overlap go to lower levels."""
    ends: list[float] = []
    boxes = []
    timed = (mark for mark in marks if mark.row.step.delta_s is not None)
    for (start, doubt), group in groupby(
        timed, key=lambda mark: (mark.row.step.delta_s or 0.0, mark.row.step.uncertainty_s)
    ):
        inside = tuple(group)
        left = axis.place(start)
        width = max(axis.place(start + doubt) - left, MARK_WIDTH * len(inside))
        left = max(0.0, min(left, 100.0 - width))
        boxes.append(Box(left, width, _level(ends, left, width), inside))
    return boxes


def _bars(room: Room, instance: str, axis: Axis) -> list[ChartBar]:
    ends: list[float] = []
    bars = []
    for each in room.durations:
        if each.instance != instance or each.start is None:
            continue
        left = axis.place(each.start)
        width = max(axis.place(each.start + each.seconds) - left, 0.3)
        name = f"{each.name} {wording.took(each.seconds, each.uncertainty_s)}"
        moved = [] if each.bytes is None else [wording.size(each.bytes)]
        moved += [] if each.gb_s is None else [wording.speed(each.gb_s)]
        reach = min(max(width, LETTER * len(name)), 100.0 - left)
        bars.append(ChartBar(left, width, _level(ends, left, reach), name, ", ".join([name, *moved])))
    return bars


def _level(ends: list[float], left: float, width: float) -> int:
    """The first level that is free from `left` on; marks it as taken up to `left + width`."""
    for level, end in enumerate(ends):
        if end <= left + 1e-9:
            ends[level] = left + width
            return level
    ends.append(left + width)
    return len(ends) - 1


def _gap(room: Room, axis: Axis) -> Iterator[str]:
    if room.gap is not None:
        left = axis.place(room.gap.start)
        width = axis.place(room.gap.end) - left
        yield f'<div class="gap{_calm(room)}" style="left:{left:.2f}%;width:{width:.2f}%"></div>'


def _gap_name(room: Room, rows: Sequence[StepRow], axis: Axis) -> Iterator[str]:
    """The gap's name above the lanes, on the side of the gap with more space."""
    if room.gap is None:
        return
    left, right = axis.place(room.gap.start), axis.place(room.gap.end)
    side = f"margin-left:{left:.2f}%" if left <= 100 - right else f"margin-right:{100 - right:.2f}%;text-align:right"
    yield f'<div></div><div class="gap-name{_calm(room)}" style="{side}">{escaped(gap_name(room, rows))}</div>'


def _calm(room: Room) -> str:
    return "" if room.outcome in BROKEN else " calm"


def _drawn_box(box: Box, prefix: str) -> str:
    marks = "".join(_drawn_mark(mark, prefix) for mark in box.marks)
    place = f"left:{box.left:.2f}%;width:{box.width:.2f}%;top:{TOP + MARK * box.level}px"
    return f'<div class="second" style="{place}">{marks}</div>'


def _drawn_mark(mark: ChartMark, prefix: str) -> str:
    step = mark.row.step
    phase = step.phase.value if step.phase else "line"
    kind = " echo" if step.echo else f" end {phase}" if step.phase and step.phase.ends else ""
    when = " ".join((wording.exact(step.delta_s, step.uncertainty_s), wording.doubt(step.uncertainty_s))).strip()
    who = f"{step.instance} {named(mark.row.ranks)}".strip()
    head = escaped(f"{when}  {who}  {phase.replace('_', ' ')}  {step.file}:{step.line}")
    return (
        f'<a class="mark{kind}" href="#{prefix}{mark.at}" data-at="{mark.at}" data-head="{head}" '
        f'data-text="{escaped(step.text)}" title="{head}" aria-label="{head}: {escaped(step.text)}"></a>'
    )


def _drawn_bar(bar: ChartBar, top: int) -> str:
    place = f"left:{bar.left:.2f}%;width:{bar.width:.2f}%;top:{top + BAR * bar.level}px"
    return f'<div class="bar" style="{place}" title="{escaped(bar.told)}">{escaped(bar.name)}</div>'


def event_rows(room: Room, prefix: str) -> Iterator[str]:
    """The table of all lines; a mark links to the id of its row."""
    yield '<div class="scroll"><table><thead><tr><th>since start</th><th>where</th><th>phase</th>'
    yield "<th>file</th><th>line</th></tr></thead><tbody>"
    rows = collapsed(room.events)
    gap = gap_row(rows, room.gap)
    for at, row in enumerate(rows):
        if at == gap:
            yield _gap_line(room, rows)
        step = row.step
        when = " ".join((wording.exact(step.delta_s, step.uncertainty_s), wording.doubt(step.uncertainty_s)))
        phase = step.phase.value.replace("_", " ") if step.phase else ""
        kind = role_class(step.role) + (" echo" if step.echo else "")
        yield f'<tr id="{prefix}{at}" class="{kind}"><td class="num">{when.strip()}</td>'
        yield f'<td class="who">{escaped(f"{step.instance} {named(row.ranks)}".strip())}</td><td>{phase}</td>'
        place = escaped(f"{step.file}:{step.line}")
        yield f'<td class="place">{place}</td><td class="text">{escaped(step.text)}</td></tr>'
    if gap == len(rows):
        yield _gap_line(room, rows)
    yield "</tbody></table></div>"


def lines(found: Sequence[Evidence], room: Room) -> Iterator[str]:
    roles = {lane.instance: lane.role for lane in lanes(room)}
    yield '<div class="scroll"><table><tbody>'
    for line in found:
        yield f'<tr class="{role_class(roles.get(line.instance, ""))}"><td class="who">{escaped(line.instance)}</td>'
        yield f'<td class="place">{escaped(f"{line.file}:{line.line}")}</td>'
        says = f'<span class="says">{escaped(line.says)}</span>' if line.says else ""
        yield f'<td class="text">{says}{escaped(line.text)}</td></tr>'
    yield "</tbody></table></div>"


def durations(room: Room) -> Iterator[str]:
    roles = {lane.instance: lane.role for lane in lanes(room)}
    yield '<div class="scroll"><table class="figures"><thead><tr><th>phase</th><th>where</th>'
    yield "".join(f'<th class="num">{head}</th>' for head in ("began", "took", "moved", "speed"))
    yield "</tr></thead><tbody>"
    for each in room.durations:
        began = wording.began(each)
        took = f"{wording.took(each.seconds, each.uncertainty_s)} {wording.doubt(each.uncertainty_s)}".strip()
        moved = "" if each.bytes is None else wording.size(each.bytes)
        speed = "" if each.gb_s is None else wording.speed(each.gb_s)
        yield f'<tr class="{role_class(roles.get(each.instance, ""))}"><td>{escaped(each.name)}</td>'
        yield f'<td class="who">{escaped(each.instance)}</td>'
        yield "".join(f'<td class="num">{cell}</td>' for cell in (began, took, moved, speed)) + "</tr>"
    yield "</tbody></table></div>"


def _gap_line(room: Room, rows: Sequence[StepRow]) -> str:
    if room.gap is None:
        return ""
    calm = "" if room.outcome in BROKEN else " calm"
    return f'<tr class="gap-row{calm}"><td colspan="5">{escaped(gap_name(room, rows))}</td></tr>'


HERE = data("render/trace")


def to_html(rooms: Sequence[Room], zone: dt.tzinfo | None = None) -> str:
    return "\n".join(_page(rooms, zone)).encode("ascii", "xmlcharrefreplace").decode()


def _page(rooms: Sequence[Room], zone: dt.tzinfo | None) -> Iterator[str]:
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(f"\n{script}".encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    title = f"room {rooms[0].room}" if len(rooms) == 1 else f"{len(rooms)} rooms"
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{escaped(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>"
    for number, room in enumerate(rooms):
        yield from _section(room, f"r{number}-", zone)
    yield f"<footer>pdctl {__version__} trace-room</footer>\n</main>"
    yield f"<script>\n{script}</script>\n</body>\n</html>"


def _section(told: Room, prefix: str, zone: dt.tzinfo | None) -> Iterator[str]:
    shown = (*told.evidence, *told.echoes)
    names = shortest([*(step.file for step in told.events), *(line.file for line in shown)])
    room = _renamed(told, names)
    yield '<section class="room">'
    yield from _head(room, zone)
    yield from _verdict(room)
    if any(step.delta_s is not None for step in room.events):
        yield "<h2>Timeline</h2>"
        yield from chart(room, prefix)
        yield '<div class="tip" aria-live="polite">Point at a mark, or walk them with the arrow keys.</div>'
    if room.evidence:
        yield "<h2>Evidence</h2>"
        yield from lines(room.evidence, room)
    if room.echoes:
        yield "<h2>Echoes: effects, not causes</h2>"
        yield from lines([line._replace(says="") for line in room.echoes], room)
    yield from _listed("What followed", room.consequences)
    if room.missing_evidence:
        yield "<h2>Missing evidence</h2><ul>"
        for missing in room.missing_evidence:
            yield f"<li>{escaped(missing.what)} → <code>{escaped(missing.enable_with)}</code></li>"
        yield "</ul>"
    if room.durations:
        yield "<h2>Phases</h2>"
        yield from durations(room)
    if room.events:
        yield "<h2>Lines</h2>"
        yield from event_rows(room, prefix)
    clocks = [
        f"{each.instance}: {each.offset_s:+.3f} s ±{each.uncertainty_s:g} s, {each.why}"
        for each in room.clocks
        if each.offset_s is not None
    ]
    yield from _listed("Clocks", clocks)
    yield from _listed("Notes", room.notes)
    yield from _listed("Files", [file if name == file else f"{name}: {file}" for file, name in names.items()])
    yield "</section>"


def _renamed(room: Room, names: Mapping[str, str]) -> Room:
    """The room with short file names; the full paths are listed once."""
    return room._replace(
        events=tuple(step._replace(file=names[step.file]) for step in room.events),
        evidence=tuple(line._replace(file=names[line.file]) for line in room.evidence),
        echoes=tuple(line._replace(file=names[line.file]) for line in room.echoes),
    )


def _head(room: Room, zone: dt.tzinfo | None) -> Iterator[str]:
    outcome = room.outcome.value
    yield f'<h1>Room {room.room} <span class="hex">0x{room.room:x}</span>'
    yield f'<span class="outcome {outcome}">{outcome}</span></h1>'
    pair = f"{room.prefill_requested or room.prefill_contacted or '?'} → {room.decode or '?'}"
    when = ""
    if room.began is not None:
        doubt = max((step.uncertainty_s for step in room.events), default=0.0)
        when = f", began {wording.moment(room.began, zone, doubt).isoformat(sep=' ')}"
        when += ", clocks tell whole seconds" if doubt >= wording.COARSE else ""
    yield f'<p class="sub">{escaped(pair + when)}</p>'
    rids = ", ".join(f"{instance} {rid}" for instance, rid in room.rids.items())
    if rids:
        yield f'<p class="sub">rid <span class="mono">{escaped(rids)}</span></p>'


def _verdict(room: Room) -> Iterator[str]:
    mark = MARKS[room.outcome.value]
    tone = {"green": "good", "red": "bad"}.get(mark.style, "doubt")
    yield f'<div class="verdict" style="--tone: var(--{tone})">'
    cause = room.cause
    if cause is not None:
        yield f'<p class="head">{escaped(f"{cause.code} {cause.slug}: {cause.headline}")}</p>'
        yield f"<p>{escaped(cause.why)}</p>" if cause.why else ""
    else:
        yield f'<p class="head">{escaped(f"{room.outcome.value}: {describe_without_cause(room)}")}</p>'
    wrong = room.wrong_prefill
    if wrong is not None:
        yield '<div class="contact">'
        yield f'<span>POST</span><span class="to">→ {escaped(wrong.requested)}</span>'
        yield f'<span class="said">{escaped(describe_wrong_prefill(wrong))}</span>'
        yield f'<span>TransferInfo</span><span class="to wrong">→ {escaped(wrong.contacted)}</span>'
        yield f'<span class="said">{escaped(STRAY)}</span></div>'
    if room.fix:
        yield f'<div class="fix"><pre>{escaped(room.fix)}</pre>'
        yield '<button class="copy" type="button" hidden>Copy</button></div>'
    yield "</div>"


def _listed(title: str, sentences: Sequence[str]) -> Iterator[str]:
    if sentences:
        yield f"<h2>{title}</h2><ul>"
        yield from (f"<li>{escaped(sentence)}</li>" for sentence in sentences)
        yield "</ul>"
